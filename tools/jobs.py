"""Whether several jobs of one Prometheus scrape the same engine, which then counts twice; pure.

Two jobs that find the same engine keep its series twice, told apart by the label ``job`` alone, and
every sum over them is doubled without a trace. Which job is meant only a person can say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from domain.metrics import Series

SCRAPED: Final = ("instance", "job", "replica")
"""The labels to sum by so that ``doubled`` can tell."""


class _Target(NamedTuple):
    instance: str
    job: str
    replica: str

    def is_also(self, other: _Target) -> bool:
        """Whether the other's job scrapes this very engine too.

        The replica tells, where both name one: several engines may stand behind one address.
        """
        if self.job == other.job:
            return False
        if self.replica and other.replica:
            return self.replica == other.replica
        return self.instance == other.instance


def doubled(series: Sequence[Series]) -> str:
    """Which engine counts more than once, and how to mend it; empty where none is known to.

    Series that are not told by job say nothing.
    """
    targets = sorted(
        {
            _Target(*(one.label(name) for name in SCRAPED))
            for one in series
            if any(name == "job" for name, _ in one.labels)
        }
    )
    for target in targets:
        jobs = {target.job, *(other.job for other in targets if target.is_also(other))}
        if len(jobs) > 1:
            names = [repr(job) for job in sorted(jobs) if job]
            *others, last = names if len(names) == len(jobs) else (*names, "none")
            engine = f"replica {target.replica!r}" if target.replica else repr(target.instance)
            return (
                f"{engine} is scraped by the jobs {', '.join(others)} and {last}: name one of them "
                f"in metric_labels, such as {{job = {names[0]}}}"
            )
    return ""
