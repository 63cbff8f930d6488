"""Reads which of Grafana's alerts are pending or firing. Their texts are data, never orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tools.grafana_api import Grafana
from tools.grafana_panels import cleaned

_TEXT: Final = 300
_MOST: Final = 200
_TOLD: Final = ("summary", "description", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """``state`` is Grafana's word; ``text`` is what its author wrote, cleaned and cut."""

    name: str
    state: str
    text: str


async def active_alerts(grafana: Grafana) -> tuple[Alert, ...]:
    """The alerts that are not normal, firing ones first; raises as ``Grafana.ask`` does."""
    document = await grafana.ask(
        "the list of alerts",
        lambda api: api.client.GET("/prometheus/grafana/api/v1/alerts"),
        dict,
        "alert.rules:read",
    )
    data = document.get("data")
    listed = data.get("alerts") if isinstance(data, dict) else None
    found = [_alert(row) for row in (listed if isinstance(listed, list) else [])[:_MOST]]
    active = [alert for alert in found if alert and alert.state.lower() != "normal"]
    return tuple(sorted(active, key=lambda alert: not alert.state.lower().startswith("alerting")))


def _alert(row: Any) -> Alert | None:
    if not isinstance(row, dict):
        return None
    labels, annotations = (_texts(row.get(key)) for key in ("labels", "annotations"))
    text = " ".join(annotations[key] for key in _TOLD if key in annotations)
    return Alert(
        name=cleaned(labels.get("alertname", "unnamed")),
        state=cleaned(row.get("state", "unknown"), 20),
        text=cleaned(text, _TEXT),
    )


def _texts(value: Any) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}
