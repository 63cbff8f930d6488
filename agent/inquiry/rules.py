"""The diagnosis by rules: what is the matter in one window beside the one before it. Pure.

Rules stand in order: what explains more of the rest comes first. Each that holds gives a clause
with its figures by name; the first names the cause, and the next two are told beside it. A rule
that lacks a figure says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from agent.inquiry.causes import MEANS, Cause
from agent.inquiry.figures import Figures, filled, known
from agent.inquiry.seen import Seen
from domain.figure import Figure
from domain.outside import cleaned
from domain.traffic import TrafficShape
from tools.profiler import Missing

WORSE: Final = 1.25
"""A latency so many times the one before counts as worse."""

GROWN: Final = 1.5
"""Demand or a length so many times the one before counts as grown."""

SHRUNK: Final = 0.67
"""Demand so many times the one before counts as fallen."""

FELL: Final = 0.15
"""By so much, of 1, a share must fall to count."""

QUEUE: Final = 0.1
"""Waiting requests a running one from which there is a queue."""

PREEMPTED: Final = 0.01
FULL: Final = 0.9
STALLED: Final = 4.0
"""ITL p95 over its median from which single steps are held up."""

SERVER: Final = 0.5
SERVER_MS: Final = 200.0
"""Share and milliseconds of TTFT outside queue and prefill from which the API server is slow."""

PROMPT_HEAVY: Final = 8.0
"""Prompt tokens to compute for each generated one from which prompts count as long."""

_FACTS: Final = (
    ("demand", "demand"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("ttft_p95", "TTFT p95"),
    ("tpot_p95", "TPOT p95"),
    ("hit_rate", "prefix hit rate"),
    ("kv_cache", "KV cache in use"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """``sentence`` has the figures filled in that are ``used``."""

    cause: Cause
    sentence: str
    used: tuple[Figure, ...]
    also: tuple[Cause, ...] = ()


_ALONE: Final = frozenset(
    {Cause.NO_METRICS, Cause.NO_TRAFFIC, Cause.CLIENTS, Cause.HEALTHY, Cause.UNKNOWN}
)
"""Causes beside which nothing else is told, and which are not told beside another."""


_EXPLAINED: Final[Mapping[Cause, frozenset[Cause]]] = {
    Cause.COLD_START: frozenset({Cause.PREFIX_CACHE}),
    Cause.KV_CACHE: frozenset({Cause.PREFIX_CACHE}),
    Cause.BLOCKED_DECODES: frozenset({Cause.PREFILL}),
}
"""By cause what it brings about, which is not told beside it."""


class _Look(NamedTuple):
    """The figures, and what was seen, for rules."""

    figures: Figures
    seen: Seen

    def value(self, name: str) -> float | None:
        figure = self.figures.get(name)
        return None if figure is None else figure.value

    def now(self, name: str) -> float:
        """Zero where it is not known."""
        return self.value(f"{name}_now") or 0.0

    def ratio(self, name: str) -> float | None:
        return self.value(f"{name}_ratio")

    def grew(self, name: str, times: float) -> bool:
        return (self.ratio(name) or 0.0) >= times

    def fall(self, name: str) -> float:
        """By how much a share fell; zero where that is not known."""
        before, now = self.value(f"{name}_before"), self.value(f"{name}_now")
        return before - now if before is not None and now is not None else 0.0

    @property
    def broken(self) -> tuple[str, ...]:
        """Which of TTFT and TPOT break their limits."""
        limits = ((name, self.value(f"{name}_limit")) for name in ("ttft", "tpot"))
        return tuple(n for n, limit in limits if limit and self.now(f"{n}_p95") > limit)

    @property
    def worse(self) -> tuple[str, ...]:
        """Which latencies rose, by their means where there are any: a quantile near the edge of a
        bucket jumps over the whole of it."""
        return tuple(n for n in ("ttft", "tpot", "e2el") if self.grew(self._best(n), WORSE))

    def _best(self, latency: str) -> str:
        return f"{latency}_{'mean' if self.ratio(f'{latency}_mean') is not None else 'p95'}"

    @property
    def queue(self) -> bool:
        return self.now("waiting") >= 1 and self.now("waiting") > QUEUE * self.now("running")

    @property
    def hurts(self) -> bool:
        return bool(self.broken or self.worse or self.queue)

    @property
    def fault(self) -> str:
        """Why the window's shape is not known; empty where it is."""
        shape = self.seen.now.shape
        return _plain(shape.reason) if isinstance(shape, Missing) else ""


Rule = Callable[[_Look], str]
"""The clause of a rule that holds, with figures by name; empty where it does not hold."""


def diagnose(seen: Seen) -> Diagnosis:
    """The cause, and a sentence of it with all its figures."""
    look = _Look(known(seen), seen)
    found = [(cause, clause) for cause, rule in RULES.items() if (clause := rule(look))]
    found.append((Cause.UNKNOWN, "no rule holds"))
    (cause, clause), *rest = found
    told = _ALONE | _EXPLAINED.get(cause, frozenset())
    also = [] if cause in _ALONE else [one for one in rest if one[0] not in told][:2]
    parts = [f"{MEANS[cause]}: {clause}."]
    parts += [f"Beside that: {beside}." for _, beside in also]
    parts += _context(look)
    text, used = filled(" ".join(parts), look.figures)
    return Diagnosis(cause=cause, sentence=text, used=used, also=tuple(other for other, _ in also))


def _context(look: _Look) -> list[str]:
    """The figures that every answer stands on, and what is not known of the time before."""
    facts = []
    for name, words in _FACTS:
        if f"{name}_now" in look.figures:
            before = f" ({{{name}_before}} before)" if f"{name}_before" in look.figures else ""
            facts.append(f"{words} {{{name}_now}}{before}")
    told = [f"Seen: {', '.join(facts)}."] if facts else []
    shape = look.seen.before.shape
    if facts and isinstance(shape, Missing):
        told.append(f"The time before is not known: {_plain(shape.reason)}.")
    return told


def _no_metrics(look: _Look) -> str:
    engines = look.seen.now.engines
    if engines.fault:
        return _plain(engines.fault)
    if look.fault and not engines.known:
        return f"no engine is scraped, so whether there is traffic is not known ({look.fault})"
    return ""


def _lost(look: _Look) -> str:
    """A shape that is not known, for a reason that no engine is to blame for."""
    return "" if _replica_down(look) or _cold_start(look) else look.fault


def _replica_down(look: _Look) -> str:
    now, before = look.seen.now.engines, look.seen.before.engines
    if now.down:
        names = _plain(", ".join(now.down[:3]))
        return f"{names} does not answer its scrapes, which leaves {{engines_up_now}}"
    gone = sorted(set(before.seen) - set(now.up))
    if gone and now.known and before.known and len(now.up) < before.most:
        names = _plain(", ".join(gone[:3]))
        return (
            f"{names} is there no more, with {{engines_up_now}} that answer and "
            "{engines_most_before} before"
        )
    return ""


def _cold_start(look: _Look) -> str:
    names = look.seen.now.engines.restarted
    cold = look.fall("hit_rate") >= FELL
    if not names or not (look.fault or cold or look.hurts):
        return ""
    clause = f"{_plain(', '.join(names[:3]))} counted from zero again in this time"
    if cold:
        clause += "; the prefix cache found {hit_rate_now} ({hit_rate_before} before)"
    return clause


def _no_traffic(look: _Look) -> str:
    shape = look.seen.now.shape
    assert isinstance(shape, TrafficShape)
    if shape.requests > 0 or shape.rate_rps > 0 or shape.concurrency > 0:
        return ""
    before = " ({demand_before} before)" if "demand_before" in look.figures else ""
    return (
        "scrapes are answered ({engines_up_now}) and no request came" + before
        if "engines_up_now" in look.figures
        else f"no request came{before}"
    )


def _demand(look: _Look) -> str:
    if not (look.grew("demand", GROWN) and look.hurts):
        return ""
    return "demand is {demand_now}, {demand_ratio} what it was"


def _kv_cache(look: _Look) -> str:
    if look.now("preemptions") > PREEMPTED:
        return "preemptions are {preemptions_now}, and each throws work away"
    if look.queue and look.now("kv_cache") >= FULL:
        return "{waiting_now} wait, and {kv_cache_now} of the KV cache is in use"
    if look.fall("hit_rate") >= FELL and look.now("kv_cache") >= FULL:
        # Blocks in use leave no room for those that are kept for their prefixes.
        return (
            "{kv_cache_now} of it is in use, so that the prefix cache found {hit_rate_now} of the "
            "prompts' tokens ({hit_rate_before} before)"
        )
    return ""


def _api_server(look: _Look) -> str:
    server, ttft = look.now("server_mean"), look.now("ttft_mean")
    before = look.value("server_mean_before")
    if server < SERVER_MS or server < SERVER * ttft:
        return ""
    if before is not None and server < 2 * before:
        return ""
    return (
        "of a mean TTFT of {ttft_mean_now} the engine explains {queued_mean_now} of queue and "
        "{prefill_mean_now} of prefill, and {server_mean_now} are spent outside it"
    )


def _scheduler(look: _Look) -> str:
    seats, engines = look.value("max_num_seqs"), look.value("engines_up_now") or 1.0
    if not look.queue or seats is None or look.now("running") < FULL * seats * engines:
        return ""
    return "{waiting_now} wait beside {running_now} running, and max_num_seqs is {max_num_seqs}"


def _prefix_cache(look: _Look) -> str:
    if look.fall("hit_rate") < FELL:
        return ""
    return "it found {hit_rate_now} of the prompts' tokens ({hit_rate_before} before)"


def _speculation(look: _Look) -> str:
    if look.fall("acceptance") < FELL:
        return ""
    return "{acceptance_now} of drafted tokens are accepted ({acceptance_before} before)"


def _blocked(look: _Look) -> str:
    chunked = look.seen.setup.chunked
    slow = "tpot" in look.broken or "tpot" in look.worse or look.grew("itl_p95", GROWN)
    stalls = look.now("itl_p50") > 0 and look.now("itl_p95") >= STALLED * look.now("itl_p50")
    if chunked or not stalls or not slow:
        return ""
    known = "chunked prefill is off" if chunked is False else "chunked prefill may be off"
    return (
        "the gap between tokens is {itl_p50_now} as a rule and {itl_p95_now} at its 95th "
        f"percentile, prompts have {{isl_now}} on average, and {known}"
    )


def _prefill(look: _Look) -> str:
    miss = 1 - look.now("hit_rate")
    heavy = look.now("isl") * miss > PROMPT_HEAVY * max(look.now("osl"), 1.0)
    if look.grew("isl", GROWN) and look.hurts:
        return "prompts have {isl_now} on average, {isl_ratio} what they had"
    if heavy and (look.queue or "ttft" in look.broken or "ttft" in look.worse):
        return "prompts have {isl_now} and answers {osl_now} on average"
    return ""


def _decode(look: _Look) -> str:
    if look.grew("osl", GROWN) and look.hurts:
        return "answers have {osl_now} on average, {osl_ratio} what they had"
    if "tpot" in look.broken:
        return "TPOT p95 is {tpot_p95_now}, its limit {tpot_limit}, with {running_now} running"
    return ""


def _clients(look: _Look) -> str:
    ratio = look.ratio("demand")
    if ratio is None or ratio > SHRUNK or look.hurts:
        return ""
    return (
        "demand is {demand_now} ({demand_before} before), {waiting_now} wait, and latencies are "
        "no worse"
    )


def _healthy(look: _Look) -> str:
    if look.hurts or "ttft_p95_now" not in look.figures:
        return ""
    return "TTFT p95 is {ttft_p95_now}, and {waiting_now} wait"


def _on_shape(rule: Rule) -> Rule:
    """Where the shape is not known such a rule has nothing to say."""
    return lambda look: "" if look.fault else rule(look)


RULES: Final[Mapping[Cause, Rule]] = {
    Cause.NO_METRICS: lambda look: _no_metrics(look) or _lost(look),
    Cause.REPLICA_DOWN: _replica_down,
    Cause.COLD_START: _cold_start,
    Cause.NO_TRAFFIC: _on_shape(_no_traffic),
    Cause.DEMAND: _on_shape(_demand),
    Cause.KV_CACHE: _on_shape(_kv_cache),
    Cause.API_SERVER: _on_shape(_api_server),
    Cause.SCHEDULER: _on_shape(_scheduler),
    Cause.PREFIX_CACHE: _on_shape(_prefix_cache),
    Cause.SPECULATION: _on_shape(_speculation),
    Cause.BLOCKED_DECODES: _on_shape(_blocked),
    Cause.PREFILL: _on_shape(_prefill),
    Cause.DECODE: _on_shape(_decode),
    Cause.CLIENTS: _on_shape(_clients),
    Cause.HEALTHY: _on_shape(_healthy),
}


def _plain(text: str) -> str:
    """Text from outside, which asks for no figure."""
    return cleaned(text).replace("{", "(").replace("}", ")")
