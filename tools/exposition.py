"""Read the text that an engine shows at ``/metrics``, keeping only the metrics asked for.

Filtering lines before they are parsed makes a scrape cheap: an engine shows several hundred series
of which Serinus asks for about a third. Older names become today's here, so that whoever reads the
points need not know which version of vLLM showed them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from tools import generations

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One line of the exposition: a series and its value, which may be NaN or infinite."""

    name: str
    labels: Labels
    value: float


def parse(text: str, names: Collection[str]) -> list[Point]:
    """The points of the metrics ``names``, which are today's, whatever the engine calls them.

    A series that is shown under several names is one point, with the newest name's value. Raises
    ValueError where the text is no exposition.
    """
    meant = {
        shown: (age, name) for name in names for age, shown in enumerate(generations.names(name))
    }
    kept: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name in meant:
            kept.append(line)
        elif " " not in line:
            raise ValueError("not a metrics exposition")
    families = text_string_to_metric_families("\n".join(kept) + "\n")
    samples = [sample for family in families for sample in family.samples]
    points: dict[tuple[str, Labels], Point] = {}
    for sample in sorted(samples, key=lambda sample: meant[sample.name][0]):
        _, name = meant[sample.name]
        labels = tuple(sorted(sample.labels.items()))
        points.setdefault((name, labels), Point(name, labels, float(sample.value)))
    return list(points.values())
