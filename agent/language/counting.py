"""How many tokens a question can cost, and whether to believe what a server says that it did. Pure.

Bounds hold for any tokenizer that falls back to bytes, which is what today's models have: a token
is one byte at least.
"""

from __future__ import annotations

from domain.language import Question, Tokens

TEMPLATE_TOKENS = 64
"""Most tokens that a chat template puts around a question, and around each of its messages."""

BYTES_A_TOKEN = 16
"""No text of some length has more bytes a token than this on average."""


def most(question: Question) -> Tokens:
    """What the question can cost at most on a server that keeps to ``max_tokens``."""
    templates = TEMPLATE_TOKENS * (1 + len(question.messages))
    schema = 0 if question.schema is None else _length(str(dict(question.schema)))
    return Tokens(read=_bytes(question) + templates + schema, written=question.max_tokens)


def counted(question: Question, said: str, read: object, written: object) -> Tokens:
    """The server's ``read`` and ``written`` where they can be true of the question and of all that
    it ``said``; else, each for itself, the most that it can be."""
    bound = most(question)
    length = _length(said)
    return Tokens(
        read=_believed(read, _bytes(question) // BYTES_A_TOKEN, bound.read),
        written=_believed(written, length // BYTES_A_TOKEN, max(bound.written, length)),
    )


def _bytes(question: Question) -> int:
    return sum(_length(message.text) for message in question.messages)


def _length(text: str) -> int:
    """In bytes; half a character, which no server would take, has a length too."""
    return len(text.encode("utf-8", "surrogatepass"))


def _believed(told: object, least: int, bound: int) -> int:
    return told if type(told) is int and least <= told <= bound else bound
