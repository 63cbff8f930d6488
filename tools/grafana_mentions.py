"""What a fleet's own panels tell of its metrics: which are asked for, and by which fixed labels.

People have already written down how their engines are told from all else in their Prometheus: in
the matchers of their panels. This takes those over, as label matches of a typed query. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tools import generations, queries
from tools.grafana_panels import PanelQuery
from tools.selectors import Selector, selectors

OWN_LABELS: Final = frozenset(
    {"engine", "finished_reason", "le", "model_name", "quantile", "reason"}
)
"""Labels that an engine sets itself: they choose a part of its series, never the fleet."""


_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def _known() -> dict[str, str]:
    known = {name: now for now in queries.METRICS for name in generations.names(now)}
    counts = {
        f"{name.removesuffix('_bucket')}_count": now
        for name, now in known.items()
        if name.endswith("_bucket")
    }
    return known | counts


KNOWN: Final[Mapping[str, str]] = _known()
"""Every name that a panel can call a signal by, and today's name of what Serinus reads for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A panel asks for a metric of vLLM; ``metric`` is today's name of it."""

    metric: str
    query: PanelQuery
    selector: Selector

    @property
    def fixed(self) -> Mapping[str, str]:
        """The labels that the panel fixes to one value, without those that engines set."""
        return {
            matcher.label: matcher.fixed
            for matcher in self.selector.matchers
            if matcher.fixed is not None and matcher.label not in OWN_LABELS
        }


class FleetLabels(NamedTuple):
    """Label matches that the panels agree on, and the labels on which they do not, with values."""

    where: queries.Where
    undecided: Mapping[str, tuple[str, ...]]


def mentions(asked: Iterable[PanelQuery]) -> tuple[Mention, ...]:
    """Every mention of a metric of vLLM in these queries."""
    return tuple(
        Mention(metric=KNOWN[selector.metric], query=query, selector=selector)
        for query in asked
        for selector in selectors(query.expression, KNOWN)
    )


def renamed(asked: Iterable[PanelQuery]) -> tuple[str, ...]:
    """Names that are vLLM's with something before or between them, such as a platform's prefix."""
    tails = tuple(name.replace(":", "_") for name in KNOWN)
    found = {
        name
        for query in asked
        for name in _NAME.findall(query.expression)
        if name not in KNOWN and name.replace(":", "_").endswith(tails)
    }
    return tuple(sorted(found))


def fleet_labels(seen: Iterable[Mention]) -> FleetLabels:
    """What tells this fleet from others: labels that more than half of the mentions fix, all alike.

    A label of one panel alone, such as an instance, chooses a part of the fleet and is not taken.
    """
    fixed = [mention.fixed for mention in seen]
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for labels in fixed:
        for label, value in labels.items():
            values[label][value] += 1
    common = {label: found for label, found in values.items() if found.total() * 2 > len(fixed)}
    return FleetLabels(
        where=queries.where(
            **{label: next(iter(found)) for label, found in common.items() if len(found) == 1}
        ),
        undecided={
            label: tuple(value for value, _ in found.most_common())
            for label, found in sorted(common.items())
            if len(found) > 1
        },
    )
