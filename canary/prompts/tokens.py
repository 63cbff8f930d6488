"""What prompts are made of: token ids drawn by chance, or runs of a natural text. Pure, seeded.

Speculative decoding accepts more drafts on text than on chance, and experts are chosen otherwise,
so natural text is the better load wherever its token ids are known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from domain.errors import BadInput

# Special tokens of common vocabularies have low ids; text that is cut off by one is not a load.
FIRST_TOKEN = 256
# Random tokens that every run of natural text opens with: no two runs begin alike by accident, so
# no prefix cache finds one in another. More would spoil the text.
OPENING = 4
# A text shorter than this repeats itself in every prompt, which flatters speculative decoding.
LEAST_CORPUS = 1024


class Tokens(Protocol):
    """An endless source of token ids from one seed; equal ids are one object, 8 bytes a token."""

    def take(self, n: int) -> tuple[int, ...]:
        """The next ``n`` tokens."""

    def begin(self) -> None:
        """A new session begins, whose text is its own."""

    def reserve(self) -> None:
        """What was taken since ``begin`` stays in every later session's prompts."""


def tokens_from(rng: random.Random, vocabulary: int, corpus: Sequence[int] | None) -> Tokens:
    """Natural text where there is a ``corpus`` (its token ids), else ids below ``vocabulary``."""
    return RandomTokens(rng, vocabulary) if corpus is None else NaturalTokens(rng, corpus)


class RandomTokens:
    """Every token is drawn by chance."""

    def __init__(self, rng: random.Random, vocabulary: int) -> None:
        if vocabulary <= 2 * FIRST_TOKEN:
            raise BadInput(f"A vocabulary of {vocabulary} tokens is too small to make prompts of.")
        self._rng = rng
        span = vocabulary - FIRST_TOKEN
        ids = tuple(range(FIRST_TOKEN, vocabulary))
        self._table = tuple(ids[draw % span] for draw in range(1 << 16))

    def take(self, n: int) -> tuple[int, ...]:
        draws = memoryview(self._rng.randbytes(2 * n)).cast("H")
        return tuple(map(self._table.__getitem__, draws))

    def begin(self) -> None:
        """Nothing: no two runs are alike."""

    def reserve(self) -> None:
        """Nothing: no two runs are alike."""


class NaturalTokens:
    """Runs of a corpus, each session's from a place of its own, one run after the other.

    A session's text repeats none of the corpus until it has taken all of it.
    """

    def __init__(self, rng: random.Random, corpus: Sequence[int]) -> None:
        if len(corpus) < LEAST_CORPUS:
            raise BadInput(
                f"A corpus of {len(corpus)} tokens would repeat itself in every prompt; give one of"
                f" {LEAST_CORPUS} at least."
            )
        self._rng = rng
        same = {token: token for token in corpus}
        start = rng.randrange(len(corpus))
        self.text = tuple(same[token] for token in (*corpus[start:], *corpus[:start]))
        self._words = tuple(sorted(same))
        self._at = 0

    def opening(self, n: int) -> tuple[int, ...]:
        """``n`` tokens of the corpus's vocabulary, by chance."""
        return tuple(self._rng.choices(self._words, k=n))

    def take(self, n: int) -> tuple[int, ...]:
        opening = self.opening(min(n, OPENING))
        text = self.stretch(self._at, n - len(opening))
        self._at = (self._at + len(text)) % len(self.text)
        return opening + text

    def begin(self) -> None:
        self._at = self._rng.randrange(len(self.text))

    def reserve(self) -> None:
        """Keep later sessions off the text before the present place, where enough is left."""
        left = self.text[self._at :]
        self.text = left if len(left) >= LEAST_CORPUS else self.text
        self._at = 0

    def stretch(self, at: int, n: int) -> tuple[int, ...]:
        """``n`` tokens of the text from ``at`` on, and from its beginning after its end."""
        found = self.text[at : at + n]
        while len(found) < n:
            found += self.text[: n - len(found)]
        return found
