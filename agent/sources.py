"""Where metrics come from, by the settings: one literal table, for all who read them."""

from __future__ import annotations

from collections.abc import Callable

from agent.settings import Settings
from domain.errors import SerinusError
from domain.ports import MetricSource
from tools.grafana_api import Grafana
from tools.grafana_source import GrafanaSource
from tools.narrowed import Narrowed
from tools.prometheus import PrometheusSource

LOOKBACK_SCRAPES = 3.0
"""Scrape intervals after which a sample is stale."""


def metric_source(settings: Settings, scraper: MetricSource) -> MetricSource:
    """The source that ``metrics`` names; close it with ``close``. ``scraper`` is the built-in one,
    whose owner closes it."""
    sources: dict[str, Callable[[], MetricSource]] = {
        "scrape": lambda: scraper,
        "prometheus": lambda: prometheus(settings, lookback_s(settings)),
        "grafana": lambda: narrowed(settings, through_grafana(settings, lookback_s(settings))),
    }
    return sources[settings.metrics]()


def lookback_s(settings: Settings) -> float:
    """The age in seconds at which a sample is stale."""
    return LOOKBACK_SCRAPES * settings.scrape_interval_s


def prometheus(settings: Settings, lookback_s: float) -> MetricSource:
    source = PrometheusSource(settings.prometheus_url, lookback_s=lookback_s)
    return narrowed(settings, source)


def grafana(settings: Settings) -> Grafana:
    return Grafana(settings.grafana_url, settings.grafana_token.get_secret_value())


def through_grafana(settings: Settings, lookback_s: float, uid: str = "") -> GrafanaSource:
    """The source itself, which can be found; ``uid`` names the data source where it is known."""
    wanted = uid or settings.grafana_datasource
    return GrafanaSource(grafana(settings), wanted, lookback_s=lookback_s)


def narrowed(settings: Settings, source: MetricSource) -> MetricSource:
    """The source, for the fleet that ``metric_labels`` tells from others."""
    return Narrowed(source, settings.metric_labels) if settings.metric_labels else source


def evaluator(source: MetricSource) -> PrometheusSource | GrafanaSource | None:
    """What evaluates PromQL of the source's own server; ``None`` where there is no such."""
    inner = _inner(source)
    return inner if isinstance(inner, PrometheusSource | GrafanaSource) else None


async def fault(source: MetricSource, now: float) -> str:
    """Why a source that has to be found first is not found as of ``now``; else nothing.

    No reason not to start: what serves must be kept alive without metrics too.
    """
    inner = _inner(source)
    if isinstance(inner, GrafanaSource):
        try:
            await inner.find(now)
        except SerinusError as error:
            return str(error)
    return ""


def close(source: MetricSource) -> None:
    """Let go of the threads of a source that has any."""
    inner = _inner(source)
    if isinstance(inner, PrometheusSource | GrafanaSource):
        inner.close()


def _inner(source: MetricSource) -> MetricSource:
    return source.source if isinstance(source, Narrowed) else source
