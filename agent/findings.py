"""What the doctor found, and how it is said: in plain lines, or as JSON. Pure.

Titles and names come from other people's dashboards and are cleaned where they were read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.grafana_mentions import Mention, fleet_labels
from tools.grafana_panels import cleaned
from tools.served import Served
from tools.signals import Finding, Look, State

_REASON = 160
_FAULT = 600
_SHOWN = 3
_NOTHING = Served()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place that metrics can come from; ``used`` is the one that the settings name.

    ``fault`` says in a sentence why it could not be looked at; then ``look`` is ``None``.
    """

    kind: str
    name: str
    used: bool
    look: Look | None = None
    fault: str = ""
    served: Served = _NOTHING

    @property
    def found(self) -> int:
        findings = self.look.findings if self.look else ()
        return sum(finding.state is State.FOUND for finding in findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing beside the metrics, a part ``of`` something; ``needed`` says that Serinus cannot
    start without it."""

    good: bool
    sentence: str
    needed: bool = True
    of: str = "what an engine starts from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was found. ``lookback_s`` is the age in seconds at which a sample is stale."""

    model: str
    arm: str
    window_s: float
    lookback_s: float
    places: tuple[Place, ...]
    checks: tuple[Check, ...]
    mentions: tuple[Mention, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all that is required was found, at the place that is used."""
        used = [place.look for place in self.places if place.used]
        return (
            all(check.good or not check.needed for check in self.checks)
            and bool(used)
            and all(look is not None and look.complete for look in used)
        )


def text(report: Report) -> str:
    """Plain lines, the place in use first."""
    panels = _panels(report.mentions)
    lines = [
        f"Signals of the model {cleaned(report.model)!r} on the arm {report.arm}, over the last "
        f"{report.window_s:g} s:"
    ]
    for place in sorted(report.places, key=lambda place: not place.used):
        lines += ["", *_place(place, panels if place.kind == "grafana" else {})]
    lines += ["", *_advice(report)]
    lines += [check.sentence for check in report.checks]
    lines += ["", _conclusion(report)]
    return "\n".join(lines)


def document(report: Report) -> str:
    """The same as JSON."""
    panels = _panels(report.mentions)
    fleet = fleet_labels(report.mentions)
    return json.dumps(
        {
            "complete": report.complete,
            "model": report.model,
            "arm": report.arm,
            "window_s": report.window_s,
            "places": [_as_json(place, panels) for place in report.places],
            "panels": {
                "fleet_labels": dict(fleet.where),
                "undecided_labels": {k: list(v) for k, v in fleet.undecided.items()},
                "queries": [
                    {
                        "dashboard": mention.query.dashboard,
                        "panel": mention.query.panel,
                        "metric": mention.metric,
                        "expression": mention.query.expression,
                    }
                    for mention in report.mentions
                ],
            },
            "notes": list(report.notes),
            "checks": [
                {"good": check.good, "needed": check.needed, "sentence": check.sentence}
                for check in report.checks
            ],
        },
        indent=2,
    )


def _panels(mentions: Sequence[Mention]) -> Mapping[str, list[str]]:
    """By metric, the panels that ask for it."""
    panels: dict[str, list[str]] = {}
    for mention in mentions:
        name = f"{mention.query.panel!r} of {mention.query.dashboard!r}"
        known = panels.setdefault(mention.metric, [])
        if name not in known:
            known.append(name)
    return panels


def _place(place: Place, panels: Mapping[str, Sequence[str]]) -> list[str]:
    use = "which Serinus reads" if place.used else "which Serinus does not read"
    if place.look is None:
        return [f"{place.name}, {use}: {cleaned(place.fault, _FAULT)}"]
    head = f"{place.name}, {use}: {place.found} of {len(place.look.findings)} signals found."
    if not place.used:
        return [head]
    lines = [head]
    for finding in place.look.findings:
        signal = finding.signal
        asked = panels.get(signal.query.metric, ())
        where = f"panel {', '.join(asked[:_SHOWN])}" if asked else ""
        if finding.state is State.FOUND:
            lines.append(f"  {finding.state.value:<11}{signal.name:<31}{where}".rstrip())
            continue
        need = "required" if signal.required else "optional"
        lines.append(f"  {finding.state.value:<11}{signal.name:<31}{need}; {_why(finding)}")
        lines += [f"{'':<13}on {where}"] if where else []
        lines.append(f"{'':<13}{signal.cost}")
    return lines


def _why(finding: Finding) -> str:
    if finding.unlabelled:
        return f"{finding.signal.query.metric} is there, but not under the labels asked for"
    return cleaned(finding.reason, _REASON)


def _advice(report: Report) -> list[str]:
    """What a person can do about it, and what the panels tell."""
    looks = [place.look for place in report.places if place.used and place.look]
    findings = [finding for look in looks for finding in look.findings]
    states = Counter(finding.state for finding in findings)
    lines = [
        f"Counted more than once: {cleaned(finding.reason, _FAULT)}."
        for finding in findings
        if finding.state is State.DOUBLED
    ]
    if states[State.STALE]:
        lines.append(
            f"Samples older than {report.lookback_s:g} s count as stale: set scrape_interval_s to "
            "how often your Prometheus scrapes, or see whether it still scrapes these engines."
        )
    if any(finding.unlabelled for finding in findings):
        seen = "; ".join(
            " ".join(f"{label}={cleaned(value)!r}" for label, value in labels)
            for look in looks
            for labels in look.labels[:_SHOWN]
        )
        lines.append(
            f"Serinus asks for arm={report.arm!r} model_name={cleaned(report.model)!r}, and the "
            f"engines there have {seen or 'other labels'}: give each scrape target its arm, and "
            "set served_model_name to the engines' own."
        )
    lines += [line for place in report.places if place.used for line in _served(report, place)]
    if report.mentions:
        fleet = fleet_labels(report.mentions)
        labels = ", ".join(f"{label}={cleaned(value)!r}" for label, value in fleet.where)
        boards = len({mention.query.dashboard for mention in report.mentions})
        lines.append(
            f"{len({m.query for m in report.mentions})} queries of panels on {boards} dashboards "
            f"ask for vLLM's metrics, most of them with {labels or 'no label in common'}"
            f"{'; metric_labels takes that over' if labels else ''}."
        )
        lines += [
            f"The panels differ on {cleaned(label)}: {', '.join(map(cleaned, values[:_SHOWN]))}."
            for label, values in fleet.undecided.items()
        ]
    return [*lines, *report.notes]


def _served(report: Report, place: Place) -> list[str]:
    """What else the same engines serve, and what of it Serinus tells apart."""
    lines = []
    if others := [model for model in place.served.models if model != report.model]:
        lines.append(
            f"Engines of the arm {report.arm} also serve {_names(others)}: none of that is counted."
        )
    if place.served.adapters:
        lines.append(
            f"LoRA adapters that had requests: {_names(place.served.adapters)}. Engines count them "
            "with their model, so there is one shape for all of them."
        )
    return lines


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(cleaned(name)) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _conclusion(report: Report) -> str:
    if report.complete:
        return "All that is required was found."
    holding = [
        finding
        for place in report.places
        if place.used and place.look
        for finding in place.look.findings
        if finding.holds
    ]
    doubled = [finding.signal.name for finding in holding if finding.state is State.DOUBLED]
    holding = [finding for finding in holding if finding.state is not State.DOUBLED]
    lacking = [finding.signal.name for finding in holding if finding.signal.required]
    lacking += ["all metrics" for place in report.places if place.used and place.look is None]
    holds = " Without them nothing is tuned, or rollouts hold." if lacking else ""
    lacking += dict.fromkeys(check.of for check in report.checks if check.needed and not check.good)
    sentences = [f"Required, and not found: {', '.join(lacking)}.{holds}"] if lacking else []
    if unread := [finding.signal.name for finding in holding if not finding.signal.required]:
        sentences.append(f"Not wholly read: {', '.join(unread)}. Until then nothing is tuned.")
    if doubled:
        sentences.append(
            f"Counted more than once: {', '.join(doubled)}. Until then nothing is tuned, and "
            "rollouts hold."
        )
    return " ".join(sentences)


def _as_json(place: Place, panels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    shown = panels if place.kind == "grafana" else {}
    return {
        "kind": place.kind,
        "name": place.name,
        "used": place.used,
        "fault": place.fault,
        "models": list(place.served.models),
        "adapters": list(place.served.adapters),
        "labels": [dict(labels) for labels in place.look.labels] if place.look else [],
        "signals": [
            {
                "signal": finding.signal.name,
                "metric": finding.signal.query.metric,
                "state": finding.state.value,
                "required": finding.signal.required,
                "reason": finding.reason,
                "unlabelled": finding.unlabelled,
                "cost": "" if finding.state is State.FOUND else finding.signal.cost,
                "panels": list(shown.get(finding.signal.query.metric, ())),
            }
            for finding in (place.look.findings if place.look else ())
        ],
    }
