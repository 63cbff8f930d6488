"""The demo's live traffic cut into slices of time, and its figures before and after (pure).

Times are seconds since the traffic began. Nothing here knows how the figures are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from canary.intervals import Blocks, quantile, rate_interval, rate_ratio, rate_ratio_interval
from domain.interval import Interval
from domain.load import RequestRecord
from domain.slo import SLO
from domain.study import Block

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What ended in one slice from ``start_s`` on; ``None`` where nothing did."""

    start_s: float
    goodput_rps: float
    output_tok_s: float
    ttft_p95_ms: float | None
    candidate_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One window's figures with their intervals. ``n`` counts completed requests.

    ``cut`` is the window in whole slices: what the rates and their intervals rest on.
    """

    start_s: float
    end_s: float
    cut: tuple[Block, ...]
    n: int
    failed: int
    goodput_rps: float
    goodput: Interval
    output_tok_s: float
    output: Interval
    ttft_p50_ms: float
    ttft_p95_ms: float


def slices(
    records: Sequence[RequestRecord], slo: SLO, end_s: float, slice_s: float
) -> tuple[Slice, ...]:
    """Slices of ``slice_s`` from 0 to ``end_s``, by the time at which requests ended."""
    return tuple(
        _slice(records, slo, index * slice_s, slice_s)
        for index in range(max(0, int(end_s // slice_s)))
    )


def figures(
    records: Sequence[RequestRecord],
    slo: SLO,
    start_s: float,
    end_s: float,
    *,
    slice_s: float,
    seed: int,
) -> Figures | None:
    """Figures of one window; ``None`` where fewer than two requests completed in it."""
    ended = [r for r in records if start_s <= r.end_s < end_s]
    ttft = [latency.ttft_ms for r in ended if (latency := r.latency) is not None]
    cut = blocks(records, slo, start_s, end_s, slice_s)
    if len(ttft) < 2 or len(cut) < 2:
        return None
    good, tokens = _good(cut), _tokens(cut)
    return Figures(
        start_s=start_s,
        end_s=end_s,
        cut=cut,
        n=len(ttft),
        failed=sum(r.failed for r in ended),
        goodput_rps=good.rate,
        goodput=rate_interval(good, level=LEVEL, seed=seed),
        output_tok_s=tokens.rate,
        output=rate_interval(tokens, level=LEVEL, seed=seed),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p95_ms=quantile(ttft, 0.95),
    )


class Ratio(NamedTuple):
    """After over before, and its interval."""

    estimate: float
    interval: Interval


def goodput_ratio(before: Figures, after: Figures, seed: int) -> Ratio:
    """Goodput after over goodput before."""
    ours, theirs = _good(after.cut), _good(before.cut)
    # With none seen, up to three may be expected at 95 %: nothing is divided by zero.
    least = 3 / min(sum(ours.seconds), sum(theirs.seconds))
    interval = rate_ratio_interval(ours, theirs, least=least, level=LEVEL, seed=seed)
    return Ratio(rate_ratio(ours, theirs, least=least), interval)


def blocks(
    records: Sequence[RequestRecord], slo: SLO, start_s: float, end_s: float, slice_s: float
) -> tuple[Block, ...]:
    """The window cut into whole slices; a request counts, with its tokens, where it ended."""
    return tuple(
        _block(records, slo, start_s + index * slice_s, slice_s)
        for index in range(int((end_s - start_s) // slice_s))
    )


def _block(records: Sequence[RequestRecord], slo: SLO, start_s: float, slice_s: float) -> Block:
    ended = _ended(records, start_s, slice_s)
    latencies = [latency for r in ended if (latency := r.latency) is not None]
    return Block(
        seconds=slice_s,
        requests=len(latencies),
        good=sum(slo.met_by(latency) for latency in latencies),
        failed=sum(r.failed for r in ended),
        output_tokens=float(sum(r.osl for r in ended if r.error is None)),
    )


def _slice(records: Sequence[RequestRecord], slo: SLO, start_s: float, slice_s: float) -> Slice:
    block = _block(records, slo, start_s, slice_s)
    ended = _ended(records, start_s, slice_s)
    ttft = [latency.ttft_ms for r in ended if (latency := r.latency) is not None]
    arms = [r.arm for r in ended if r.arm is not None]
    return Slice(
        start_s=start_s,
        goodput_rps=block.good / slice_s,
        output_tok_s=block.output_tokens / slice_s,
        ttft_p95_ms=quantile(ttft, 0.95) if ttft else None,
        candidate_share=arms.count("candidate") / len(arms) if arms else None,
    )


def _ended(records: Sequence[RequestRecord], start_s: float, slice_s: float) -> list[RequestRecord]:
    return [r for r in records if start_s <= r.end_s < start_s + slice_s]


def _good(cut: Sequence[Block]) -> Blocks:
    return Blocks(
        amounts=tuple(float(block.good) for block in cut),
        seconds=tuple(block.seconds for block in cut),
    )


def _tokens(cut: Sequence[Block]) -> Blocks:
    return Blocks(
        amounts=tuple(block.output_tokens for block in cut),
        seconds=tuple(block.seconds for block in cut),
    )
