"""`serinus doctor`: looks at every place that metrics can come from, and says what is there.

It reads only, needs no running controller, and ends within its deadline whatever is down. What is
missing is told with its price; nothing is mended here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from agent import facts, gateways, interpretation, language_model, preflight, sources
from agent.clock import SystemClock
from agent.findings import Check, Place, Report
from agent.settings import Settings
from canary.prompts import corpus_text
from domain.errors import BadInput, SerinusError, Temporary
from domain.fleet import Role, Slot
from domain.metrics import Sample
from domain.ports import MetricSource
from tools import queries
from tools.grafana_dashboards import dashboards
from tools.grafana_mentions import Mention, fleet_labels, mentions, renamed
from tools.grafana_panels import cleaned
from tools.scrape import Scraper, Target
from tools.served import Served, read_served
from tools.signals import Look, Signal, State, look, signals

DEADLINE_S: Final = 30.0
_PATIENT_S: Final = 300.0
_GAP_S: Final = 0.5
_NAMED: Final = 3
_ARM: Final = Role.PRODUCTION.arm


class _Panels(NamedTuple):
    """What the dashboards tell, and sentences about what was left out."""

    mentions: tuple[Mention, ...] = ()
    notes: tuple[str, ...] = ()


class _Seen(NamedTuple):
    """A place by its full name, what it has, and what is served there."""

    name: str
    look: Look
    served: Served


async def examined(settings: Settings) -> Report:
    """All that can be found out now. BadInput where what the settings name must be mended."""
    now = SystemClock().now()
    panels = asyncio.create_task(_panels(settings), name="panels")
    production = interpretation.production(settings)
    urls = [f"{slot.url}/metrics" for slot in production]
    engines = f"The engine{'s' if urls[1:] else ''} at {', '.join(urls)}"
    looks = [_place(settings, "scrape", engines, _scraped(settings, engines, production))]
    if settings.prometheus_url:
        name = f"Prometheus at {_shown(settings.prometheus_url)}"
        asked = _asked_prometheus(settings, name, now, panels)
        looks.append(_place(settings, "prometheus", name, asked))
    if settings.grafana_url:
        name = f"Grafana at {_shown(settings.grafana_url)}"
        looks.append(_place(settings, "grafana", name, _asked_grafana(settings, now, panels)))
    language = asyncio.create_task(_language(settings), name="language model")
    places = await asyncio.gather(*looks)
    told = await panels
    return Report(
        model=_model(settings),
        arm=_ARM,
        window_s=settings.window_s,
        lookback_s=sources.lookback_s(settings),
        places=tuple(places),
        checks=(*_checks(settings), *await _gateway(settings), *await language),
        mentions=told.mentions,
        notes=told.notes,
    )


async def _place(settings: Settings, kind: str, name: str, seen: Awaitable[_Seen]) -> Place:
    """The place as it was seen, or why it could not be."""
    used = settings.metrics == kind
    try:
        async with asyncio.timeout(DEADLINE_S):
            name, look, served = await seen
    except TimeoutError:
        fault = f"it did not answer within {DEADLINE_S:g} s."
    except SerinusError as error:
        if used and isinstance(error, BadInput):
            raise
        fault = str(error)
    else:
        if {finding.state for finding in look.findings} != {State.UNREADABLE}:
            return Place(kind=kind, name=name, used=used, look=look, served=served)
        fault = f"{look.findings[0].reason}."
    return Place(kind=kind, name=name, used=used, fault=fault)


async def _panels(settings: Settings) -> _Panels:
    if not settings.grafana_url:
        return _Panels()
    try:
        async with asyncio.timeout(DEADLINE_S / 2):
            read = await dashboards(sources.grafana(settings))
    except TimeoutError:
        return _Panels(notes=("Grafana's dashboards took too long to read.",))
    except SerinusError as error:
        return _Panels(notes=(f"Dashboards were not read: {error}",))
    others = renamed(read.queries)
    notes = read.notes
    if others:
        notes += (
            f"Panels ask for {', '.join(map(cleaned, others[:_NAMED]))}: something renames vLLM's "
            "metrics, and Serinus reads them under vLLM's own names alone.",
        )
    return _Panels(mentions(read.queries), notes)


async def _scraped(settings: Settings, name: str, production: Sequence[Slot]) -> _Seen:
    """The engines themselves, scraped thrice: a window wants two samples in it and one before."""
    clock = SystemClock()
    targets = [Target(url=slot.url, arm=_ARM, config="", replica=slot.name) for slot in production]
    scraper = Scraper(
        lambda: targets,
        interval_s=settings.scrape_interval_s,
        retention_s=_PATIENT_S,
        clock=clock,
        lookback_s=_PATIENT_S,
    )
    try:
        began_s = clock.now()
        await scraper.scrape_once(began_s)
        ups = [queries.now(queries.UP, queries.where(replica=one.replica)) for one in targets]
        if not any([isinstance(await scraper.read(up, began_s), Sample) for up in ups]):
            raise Temporary("no engine answers there.")
        await clock.sleep(_GAP_S)
        await scraper.scrape_once(middle_s := clock.now())
        await clock.sleep(_GAP_S)
        await scraper.scrape_once(end_s := clock.now())
        window_s = end_s - (began_s + middle_s) / 2
        seen = await look(scraper, _signals(settings, window_s), at_s=end_s)
        return _Seen(name, seen, await _served(scraper, end_s, window_s))
    finally:
        await scraper.close()


async def _asked_prometheus(
    settings: Settings, name: str, now: float, panels: Awaitable[_Panels]
) -> _Seen:
    source, patient = (
        sources.prometheus(settings, lookback_s)
        for lookback_s in (sources.lookback_s(settings), _PATIENT_S)
    )
    try:
        seen = await _look(settings, source, patient, now, panels)
        return _Seen(name, seen, await _served(source, now, settings.window_s))
    finally:
        sources.close(source)
        sources.close(patient)


async def _asked_grafana(settings: Settings, now: float, panels: Awaitable[_Panels]) -> _Seen:
    source = sources.through_grafana(settings, sources.lookback_s(settings))
    try:
        found = await source.find(now)
        patient = sources.through_grafana(settings, _PATIENT_S, found.uid)
        try:
            ours, ours_before = (sources.narrowed(settings, one) for one in (source, patient))
            seen = await _look(settings, ours, ours_before, now, panels)
            served = await _served(ours, now, settings.window_s)
        finally:
            patient.close()
    finally:
        source.close()
    return _Seen(f"Grafana's data source {found}", seen, served)


async def _look(
    settings: Settings,
    source: MetricSource,
    patient: MetricSource,
    now: float,
    panels: Awaitable[_Panels],
) -> Look:
    told = await asyncio.shield(panels)
    return await look(
        source,
        _signals(settings, settings.window_s),
        at_s=now,
        patient=patient,
        fleet=fleet_labels(told.mentions).where,
    )


async def _served(source: MetricSource, end_s: float, window_s: float) -> Served:
    return await read_served(source, arm=_ARM, end_s=end_s, window_s=window_s)


def _signals(settings: Settings, window_s: float) -> tuple[Signal, ...]:
    return signals(model=_model(settings), arm=_ARM, window_s=window_s)


def _model(settings: Settings) -> str:
    return settings.served_model_name or settings.model


async def _language(settings: Settings) -> tuple[Check, ...]:
    """How the language model answers, where one plans; without it the rulebook does."""
    if settings.planner != "model":
        return ()
    bounded = settings.model_copy(
        update={"model_timeout_s": min(settings.model_timeout_s, DEADLINE_S)}
    )
    try:
        server = language_model.endpoint(bounded, SystemClock())
    except BadInput as error:
        return (Check(good=False, sentence=str(error)),)
    found = await language_model.probed(bounded, server)
    cost = language_model.spent(settings, SystemClock().now())
    sentence = " ".join(filter(None, (found.sentence, cost)))
    return (Check(good=found.good, sentence=sentence, needed=False),)


def _checks(settings: Settings) -> Iterator[Check]:
    """What an engine is started from, and whether its ports are free."""
    needed: tuple[tuple[str, Callable[[], object]], ...] = (
        (
            f"The engine's executable {settings.executable!r} is there.",
            lambda: preflight.executable(settings.executable),
        ),
        (f"The model {settings.model!r} is known.", lambda: facts.known(settings)),
    )
    if (corpus := settings.corpus) is not None:
        needed += ((f"The corpus {corpus} can be read.", lambda: corpus_text(corpus)),)
    for good, found in needed:
        try:
            found()
        except BadInput as error:
            yield Check(good=False, sentence=str(error))
        else:
            yield Check(good=True, sentence=good)
    taken = [f"{port} ({name})" for name, port in settings.ports if not _free(name, port)]
    if taken:
        sentence = f"In use, by a Serinus that runs or by something else: port {', '.join(taken)}."
    else:
        ports = sorted(port for _, port in settings.ports)
        sentence = f"The ports {', '.join(map(str, ports))} are free."
    yield Check(good=not taken, sentence=sentence, needed=False)


async def _gateway(settings: Settings) -> tuple[Check, ...]:
    """Whether a HAProxy of the user's own can be driven; nothing is to be told of another."""
    if settings.haproxy_socket is None:
        return ()
    try:
        await gateways.check_users(settings)
    except SerinusError as error:
        return (Check(good=False, sentence=str(error), of="the gateway"),)
    sentence = f"Your HAProxy at {settings.haproxy_socket} has all that Serinus drives it by."
    return (Check(good=True, sentence=sentence),)


def _free(name: str, port: int) -> bool:
    try:
        preflight.ports_free([(name, port)])
    except BadInput:
        return False
    return True


def _shown(url: str) -> str:
    """An address without a user and a password, which it may hold."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
