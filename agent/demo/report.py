"""The demo's report, for a terminal and as one self-contained HTML file, from what was recorded.

Every figure comes from the clients' own records and the store; none is computed by the engines.
What the engines are is said in the scenario's words alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from agent import graph
from agent.demo.plots import Band, Line, plot
from agent.demo.scenario import Scenario
from agent.demo.timeline import Figures, Ratio, figures, goodput_ratio, slices
from agent.demo.traffic import Traffic
from agent.report import serve_line
from agent.store import GivenVerdict
from domain.events import Event, EventKind
from domain.fidelity import Fidelity
from domain.interval import Interval
from domain.load import RequestRecord
from domain.rollout import Phase, Rollout
from domain.slo import SLO
from domain.study import Study, Trial, TrialPurpose

SEED = 7
MOST_FAILURES_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that happened, as the store and the clients recorded it.

    ``engine_args`` are what every engine was started with beside its config.
    """

    scenario: Scenario
    model: str
    engine_args: tuple[str, ...]
    slo: SLO
    traffic: Traffic
    study: Study
    trials: tuple[Trial, ...]
    rollout: Rollout
    verdicts: tuple[GivenVerdict, ...]
    events: tuple[Event, ...]
    ended_s: float

    def since_start(self, at_s: float) -> float:
        return at_s - self.traffic.started_s

    @property
    def fidelity(self) -> Fidelity | None:
        """How far the rehearsals can be trusted; ``None`` where nobody looked."""
        return graph.fidelity(self.trials)

    def moment(self, kind: EventKind) -> float | None:
        """When the first event of the kind was, in seconds since the traffic began."""
        found = [event.at_s for event in self.events if event.kind is kind]
        return self.since_start(min(found)) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the demo has shown. ``ratio`` is goodput after over before, ``None`` if unmeasured;
    ``failures`` says of the first failed requests when and how they failed."""

    promoted: bool
    requests: int
    failed: int
    failures: tuple[str, ...]
    configs: int
    before: Figures | None
    after: Figures | None
    ratio: Ratio | None


def outcome(story: Story) -> Outcome:
    """The figures: before is the baseline's undisturbed traffic, after all since the promotion."""
    records, scenario = story.traffic.records, story.scenario
    left = EventKind.STUDY_STARTED if scenario.shared_cores else EventKind.WEIGHT_SET
    promoted, end_s = story.moment(EventKind.PROMOTED), story.since_start(story.ended_s)

    def window(start_s: float, until_s: float) -> Figures | None:
        return figures(
            records,
            story.slo,
            start_s + scenario.settle_s,
            until_s,
            slice_s=scenario.slice_s,
            seed=SEED,
        )

    before = window(0.0, story.moment(left) or end_s)
    after = None if promoted is None else window(promoted, end_s)
    searched = {
        t.config for t in story.trials if t.purpose in (TrialPurpose.BASELINE, TrialPurpose.SEARCH)
    }
    return Outcome(
        promoted=story.rollout.phase is Phase.PROMOTED,
        requests=sum(r.error is None or r.failed for r in records),
        failed=sum(r.failed for r in records),
        failures=_failures(records),
        configs=len(searched),
        before=before,
        after=after,
        ratio=goodput_ratio(before, after, SEED) if before and after else None,
    )


def _failures(records: Sequence[RequestRecord]) -> tuple[str, ...]:
    failed = sorted((r for r in records if r.failed), key=lambda r: r.end_s)
    told = ((r, r.error) for r in failed[:MOST_FAILURES_TOLD] if r.error is not None)
    return tuple(
        f"Sent at {r.sent_s:.1f} s, failed at {r.end_s:.1f} s ({r.arm or 'no arm'}): {error.value}."
        for r, error in told
    )


def plain(story: Story, found: Outcome) -> str:
    """The report as plain lines."""
    lines = [
        story.scenario.words.caution,
        f"Client requests: {found.requests} answered or failed, {found.failed} failed.",
        *found.failures,
        f"Configs rehearsed on the canary lane: {found.configs}.",
        f"Rollout: {story.rollout.phase.value}. {story.rollout.reason}",
    ]
    if (likeness := story.fidelity) is not None:
        lines.append(f"Fidelity {likeness.grade.value}: the rehearsal {likeness.grade.words}.")
    for name, window in (("before", found.before), ("after", found.after)):
        if window is not None:
            lines.append(
                f"Goodput {name}: {window.goodput_rps:.2f} requests/s {bounds(window.goodput)}, "
                f"{window.output_tok_s:.0f} output tokens/s {bounds(window.output)}, TTFT p95 "
                f"{window.ttft_p95_ms:.0f} ms, {window.n} requests."
            )
    if found.ratio is not None:
        lines.append(
            f"Goodput after / before: {found.ratio.estimate:.2f} {bounds(found.ratio.interval)}."
        )
    lines.append(f"{'Promoted' if found.promoted else 'Not promoted'}: {story.rollout.candidate}")
    return "\n".join(lines)


def bounds(interval: Interval) -> str:
    return f"({interval.percent} interval {interval.low:.2f} to {interval.high:.2f})"


def write(story: Story, found: Outcome, path: Path) -> None:
    """Write the report as one HTML file that needs nothing else."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        story=story,
        found=found,
        plots=_plots(story),
        bounds=bounds,
        changes=story.rollout.baseline.diff(story.rollout.candidate),
        command=vllm_command(story),
        seconds=story.since_start,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def vllm_command(story: Story) -> str:
    """The promoted config as a command line to copy."""
    return serve_line(story.rollout.candidate, story.engine_args)


def _plots(story: Story) -> list[str]:
    end_s = story.since_start(story.ended_s)
    slice_s = story.scenario.slice_s
    cut = slices(story.traffic.records, story.slo, end_s, slice_s)
    middle = slice_s / 2

    def line(label: str, style: str, values: list[float | None]) -> Line:
        times = (piece.start_s + middle for piece in cut)
        return Line(label=label, style=style, points=tuple(zip(times, values, strict=True)))

    bands = _bands(story, end_s)
    limit = Line(
        label="SLO", style="limit", points=((0.0, story.slo.ttft_ms), (end_s, story.slo.ttft_ms))
    )
    ttft = line("TTFT p95", "bad", [piece.ttft_p95_ms for piece in cut])
    return [
        plot(
            "Goodput under the SLO",
            "requests/s",
            end_s,
            [line("goodput", "good", [piece.goodput_rps for piece in cut])],
            bands,
        ),
        plot(
            "Throughput",
            "output tokens/s",
            end_s,
            [line("throughput", "plain", [piece.output_tok_s for piece in cut])],
            bands,
        ),
        plot("TTFT p95", "ms", end_s, [ttft, *([limit] if story.slo.ttft_ms else [])], bands),
        plot(
            "Share of requests on the candidate, as observed",
            "%",
            end_s,
            [
                line(
                    "share",
                    "share",
                    [
                        None if piece.candidate_share is None else 100 * piece.candidate_share
                        for piece in cut
                    ],
                )
            ],
            bands,
        ),
    ]


def _bands(story: Story, end_s: float) -> list[Band]:
    moments = [
        ("watching", "calm", 0.0),
        ("rehearsing", "busy", story.moment(EventKind.STUDY_STARTED)),
        ("shifting", "move", story.moment(EventKind.ROLLOUT_STARTED)),
        ("promoted", "calm", story.moment(EventKind.PROMOTED)),
    ]
    known = [(label, style, at) for label, style, at in moments if at is not None]
    ends = [at for _, _, at in known[1:]] + [end_s]
    return [
        Band(label=label, style=style, start_s=start, end_s=end)
        for (label, style, start), end in zip(known, ends, strict=True)
    ]
