"""What the simulated model answers: filler words, and the results of small sums.

The answer is a function of the prompt and of the lossy settings alone, so that an evaluation set
sees the same config answer the same way twice. A prompt that holds ``Compute 17 + 25 - 3.`` is
answered ``Answer: 39``, or wrong by one as often as the profile says. Pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from zlib import crc32

from serving.simulator.profile import WrongAnswers
from serving.simulator.scheduler import Finish
from serving.simulator.setup import KVType, Setup, StateType

_WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
    "had",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "all",
    "her",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "no",
    "more",
    "if",
    "out",
    "so",
    "up",
    "said",
    "what",
    "its",
    "about",
    "than",
    "into",
    "them",
    "can",
    "only",
    "other",
    "time",
    "new",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "man",
    "me",
    "even",
    "most",
    "made",
]
_FILLER = tuple(f" {word}" for word in _WORDS)
_SUM = re.compile(r"Compute\s+(-?\d+(?:\s*[+-]\s*\d+)*)\s*\.")
_TERM = re.compile(r"([+-]?)\s*(\d+)")
_PIECE = re.compile(r"\s?\w{1,7}|\s?[^\w\s]|\s+")
_WORKING_TOKENS = range(8, 25)


class Answer(NamedTuple):
    """``osl`` tokens, the last of them ``tail``; the rest is filler that begins at ``offset``."""

    offset: int
    tail: tuple[str, ...]
    osl: int
    ends: Finish

    def text(self, start: int, end: int) -> str:
        """The text of tokens ``start`` to ``end``; it never needs escaping in JSON."""
        filler = self.osl - len(self.tail)
        words = [
            _FILLER[(self.offset + 7 * i) % len(_FILLER)] for i in range(start, min(end, filler))
        ]
        return "".join((*words, *self.tail[max(start - filler, 0) : max(end - filler, 0)]))


def tokens(text: str) -> tuple[int, ...]:
    """Token ids of a text: about one for a short word, the same for the same text."""
    return tuple(crc32(piece.encode()) & 0xFFFF for piece in _PIECE.findall(text))


def answer(
    prompt: tuple[int, ...], text: str, max_tokens: int, ignore_eos: bool, wrong: float, salt: str
) -> Answer:
    """The answer to a prompt given as ``text``, or, where that is empty, as token ids alone.

    ``wrong`` is the probability of a wrong result and ``salt`` names the settings that cause it.
    """
    offset = hash(prompt) % len(_FILLER)
    sums = _SUM.findall(text)
    if not sums:
        return Answer(offset, (), max_tokens, Finish.LENGTH)
    result = sum(int(f"{sign}{digits}") for sign, digits in _TERM.findall(sums[-1]))
    draw = int.from_bytes(hashlib.blake2b(f"{salt}|{text}".encode(), digest_size=8).digest(), "big")
    if draw / 2**64 < wrong:
        result += 1 if draw % 2 else -1
    tail = (" Answer:", f" {result}")
    osl = _WORKING_TOKENS[draw % len(_WORKING_TOKENS)] + len(tail)
    if ignore_eos:
        return Answer(offset, tail[:max_tokens], max_tokens, Finish.LENGTH)
    if osl > max_tokens:
        return Answer(offset, (), max_tokens, Finish.LENGTH)
    return Answer(offset, tail, osl, Finish.STOP)


def wrong_chance(wrong: WrongAnswers, setup: Setup) -> float:
    """Probability that the setup's lossy settings make an answer wrong; 0 without any."""
    state = 0.0
    if setup.state is StateType.FLOAT16:
        state = wrong.float16_state_stochastic if setup.stochastic_rounding else wrong.float16_state
    kv = wrong.fp8_kv if setup.kv is KVType.FP8 else 0.0
    return 1 - (1 - state) * (1 - kv)


def lossy_salt(setup: Setup) -> str:
    """Names the lossy settings in force: engines that differ in nothing else answer alike."""
    return f"{setup.state.value},{setup.stochastic_rounding},{setup.kv.value}"
