"""A question about the fleet, answered from what is read: by rules, and by a language model.

Rules diagnose first; a model may look further through the catalog and word the answer. It acts on
nothing, and no figure of its own gets into the text.
"""
