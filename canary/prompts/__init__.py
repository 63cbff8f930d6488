"""Turns what traffic looks like, or a trace of it, into the concrete requests of a load test.

Two promises make a rehearsal honest. Lengths follow the live ones, so the engine does the same
work; and every token of a plan comes from its seed, or is preceded by some that do, so a fresh seed
can never be flattered by a prefix cache that an earlier plan has warmed. Nothing here sends
anything or reads a clock.
"""

from canary.prompts.arrivals import Arriving, arrivals_of
from canary.prompts.caching import ideal_hit_rate
from canary.prompts.conversations import agents
from canary.prompts.corpus import corpus_text
from canary.prompts.sharing import part_of
from canary.prompts.stretches import stretch_like
from canary.prompts.synthesis import synthesise
from canary.prompts.traced import replay

__all__ = [
    "Arriving",
    "agents",
    "arrivals_of",
    "corpus_text",
    "ideal_hit_rate",
    "part_of",
    "replay",
    "stretch_like",
    "synthesise",
]
