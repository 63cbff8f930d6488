"""One way to read the requests of two clients, so that they differ in what they saw alone.

Pure. All figures are of the stretch in which every stream is up: from when the first round of
answers has made way for the second, up to the last request sent. The first round opens connections
and fills the engine at once; after the last request streams run dry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from domain.load import RequestRecord

# How far a client's own summary may be from what is read out of its requests: rounding.
ROUNDING = 0.001


class Answered(NamedTuple):
    """One complete answer: its stamps in its client's clock, and the engine's own counts."""

    sent_s: float
    first_s: float
    last_s: float
    isl: int
    osl: int

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.sent_s) * 1000

    @property
    def tpot_ms(self) -> float:
        """As vLLM defines it; 0 for an answer of one token."""
        return (self.last_s - self.first_s) * 1000 / (self.osl - 1) if self.osl > 1 else 0.0

    def tokens_within(self, of: Stretch) -> float:
        """The first token at its stamp, the others evenly up to the last one's."""
        lasted_s = self.last_s - self.first_s
        inside_s = min(self.last_s, of.until_s) - max(self.first_s, of.from_s)
        first = 1.0 if of.from_s <= self.first_s <= of.until_s else 0.0
        return first + (self.osl - 1) * max(inside_s, 0.0) / lasted_s if lasted_s > 0 else first


class Stretch(NamedTuple):
    """A time in which all streams were up."""

    from_s: float
    until_s: float


class Figures(NamedTuple):
    """What a client gave: of the requests sent in a stretch, and the tokens that came in it."""

    output_tok_s: float
    ttft_p50_ms: float
    ttft_mean_ms: float
    tpot_mean_ms: float


def ours(records: Sequence[RequestRecord], zero_s: float = 0.0) -> list[Answered]:
    """Our client's complete answers; its plan began at ``zero_s``."""
    return [
        Answered(zero_s + r.sent_s, zero_s + r.first_s, zero_s + r.last_s, r.isl, r.osl)
        for r in records
        if r.error is None and r.first_s is not None and r.last_s is not None
    ]


def theirs(said: Mapping[str, Any]) -> list[Answered]:
    """What `vllm bench serve` kept of each request; its latency ends with the last token."""
    rows = zip(
        said["start_times"],
        said["ttfts"],
        said["latencies"],
        said["input_lens"],
        said["output_lens"],
        said["errors"],
        strict=True,
    )
    return [
        Answered(sent_s, sent_s + ttft_s, sent_s + latency_s, isl, osl)
        for sent_s, ttft_s, latency_s, isl, osl, error in rows
        if not error
    ]


def stretch(answers: Sequence[Answered], streams: int) -> Stretch:
    sent_s = sorted(each.sent_s for each in answers)
    return Stretch(sent_s[streams], sent_s[-1])


def figures(answers: Sequence[Answered], of: Stretch) -> Figures:
    sent = [each for each in answers if of.from_s <= each.sent_s <= of.until_s]
    tokens = sum(each.tokens_within(of) for each in answers)
    return Figures(
        output_tok_s=tokens / (of.until_s - of.from_s),
        ttft_p50_ms=median(each.ttft_ms for each in sent),
        ttft_mean_ms=fmean(each.ttft_ms for each in sent),
        tpot_mean_ms=fmean(each.tpot_ms for each in sent),
    )


def as_planned(answers: Sequence[Answered], isl: int, osls: Iterable[int]) -> bool:
    """Whether a run's answers have the lengths that they were to have, by the engine's count."""
    return {each.isl for each in answers} == {isl} and sorted(
        each.osl for each in answers
    ) == sorted(osls)


def silent(lines: Iterable[str]) -> float:
    """Of the streamed answers to several prompts, the share whose first chunk holds no text."""
    first: dict[int, bool] = {}
    for line in lines:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                first.setdefault(choice["index"], not choice["text"])
    return fmean(first.values())


def as_summed_up(said: Mapping[str, Any]) -> bool:
    """Whether the requests that vLLM's client kept, read as above, give its own summary of them."""
    answers = theirs(said)
    pairs = (
        (said["output_throughput"], sum(each.osl for each in answers) / said["duration"]),
        (said["median_ttft_ms"], median(each.ttft_ms for each in answers)),
        (said["mean_ttft_ms"], fmean(each.ttft_ms for each in answers)),
        (said["mean_tpot_ms"], fmean(each.tpot_ms for each in answers)),
    )
    return all(abs(read / its_own - 1) <= ROUNDING for its_own, read in pairs)
