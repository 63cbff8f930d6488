"""Reads a Grafana's dashboards for the queries of their panels, within bounds.

Those whose title or tags name vLLM come first, for not all of a company's dashboards are read. A
dashboard that is denied or cannot be read is noted; nothing here is a reason to stop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from domain.errors import SerinusError
from tools import grafana_panels
from tools.grafana_api import Client, Grafana
from tools.grafana_panels import PanelQuery, cleaned

MOST_READ: Final = 60
_PAGES: Final = 5
_PAGE: Final = 200
_LIKELY: Final = ("vllm", "llm", "inference", "serving")
_NOTES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboards:
    """``read`` of ``listed`` dashboards could be read; ``notes`` say what was left out."""

    listed: int
    read: int
    queries: tuple[PanelQuery, ...]
    notes: tuple[str, ...]


async def dashboards(grafana: Grafana, most: int = MOST_READ) -> Dashboards:
    """The panels' queries of at most ``most`` dashboards; raises only where none can be listed."""
    rows = await _listed(grafana)
    chosen = sorted(rows, key=_unlikely)[:most]
    answers = await asyncio.gather(*(_read(grafana, row) for row in chosen))
    read = [answer for answer in answers if isinstance(answer, grafana_panels.Read)]
    notes = [answer for answer in answers if isinstance(answer, str)]
    notes += [note for answer in read for note in answer.notes]
    if len(rows) > most:
        notes.insert(0, f"{len(rows) - most} of {len(rows)} dashboards were not read.")
    if len(notes) > _NOTES:
        notes[_NOTES:] = [f"{len(notes) - _NOTES} more notes are left out."]
    return Dashboards(
        listed=len(rows),
        read=len(read),
        queries=tuple(query for answer in read for query in answer.queries),
        notes=tuple(notes),
    )


async def _listed(grafana: Grafana) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for page in range(1, _PAGES + 1):
        search = partial(_search, page=page)
        found = await grafana.ask("the list of dashboards", search, list, "dashboards:read")
        rows |= {
            row["uid"]: row
            for row in found
            if isinstance(row, dict) and isinstance(row.get("uid"), str) and row["uid"]
        }
        if len(found) < _PAGE:
            break
    return list(rows.values())


def _search(api: Client, page: int) -> Any:
    return api.search.search_dashboards(type_="dash-db", limit=_PAGE, page=page)


async def _read(grafana: Grafana, row: dict[str, Any]) -> grafana_panels.Read | str:
    """The queries of one dashboard, or why there are none."""
    uid = quote(row["uid"], safe="")
    try:
        document = await grafana.ask(
            f"the dashboard {cleaned(row.get('title') or row['uid'])!r}",
            lambda api: api.dashboard.get_dashboard(uid),
            dict,
            "dashboards:read",
        )
    except SerinusError as error:
        return str(error)
    return grafana_panels.read(document)


def _unlikely(row: dict[str, Any]) -> int:
    """How late a dashboard comes: the place of the first telling word in its title and tags."""
    tags = row.get("tags")
    words = f"{row.get('title')} {tags if isinstance(tags, list) else ''}".lower()
    return next((place for place, word in enumerate(_LIKELY) if word in words), len(_LIKELY))
