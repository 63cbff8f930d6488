"""One way to read the requests of two clients, so that they differ in what they saw alone, and what
the engine itself says of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from domain.load import RequestRecord
from tools.exposition import parse

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


class Figures(NamedTuple):
    """What a client saw of a run; tokens a second from the first request sent to the last token."""

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


def figures(answers: Sequence[Answered]) -> Figures:
    seconds = max(each.last_s for each in answers) - min(each.sent_s for each in answers)
    return Figures(
        output_tok_s=sum(each.osl for each in answers) / seconds,
        ttft_p50_ms=median(each.ttft_ms for each in answers),
        ttft_mean_ms=fmean(each.ttft_ms for each in answers),
        tpot_mean_ms=fmean(each.tpot_ms for each in answers),
    )


class Counted(NamedTuple):
    """An engine's own sums since its start, or of a run: of answered requests, their TTFT and their
    TPOT, in ms."""

    requests: float
    ttft_ms: float
    tpot_ms: float

    def since(self, before: Counted) -> Counted:
        return Counted(*(now - then for now, then in zip(self, before, strict=True)))


_TTFT = "vllm:time_to_first_token_seconds_sum"
_TPOT = "vllm:request_time_per_output_token_seconds_sum"
_ANSWERED = "vllm:request_time_per_output_token_seconds_count"


def counted(text: str) -> Counted:
    """From an engine's metrics; KeyError where one is not shown."""
    sums = {point.name: point.value for point in parse(text, (_TTFT, _TPOT, _ANSWERED))}
    return Counted(sums[_ANSWERED], 1000 * sums[_TTFT], 1000 * sums[_TPOT])


class ByEngine(NamedTuple):
    """A client's figures over the engine's own, 1 where both say the same. The median is over the
    engine's mean, since an engine counts no median."""

    ttft_p50_ms: float
    ttft_mean_ms: float
    tpot_mean_ms: float


def by_engine(seen: Figures, own: Counted) -> ByEngine:
    ttft_ms, tpot_ms = own.ttft_ms / own.requests, own.tpot_ms / own.requests
    return ByEngine(
        ttft_p50_ms=seen.ttft_p50_ms / ttft_ms,
        ttft_mean_ms=seen.ttft_mean_ms / ttft_ms,
        tpot_mean_ms=seen.tpot_mean_ms / tpot_ms,
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
