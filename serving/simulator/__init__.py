"""A simulated engine with vLLM's own command line and API, driven by a stated performance model.

It serves the demo, the tests and what-if questions. It computes no model: its answers are filler,
its times follow a profile, and it says everywhere that it is a simulation.
"""
