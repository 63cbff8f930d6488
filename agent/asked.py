"""`serinus agent ask`: reads what the question is about, and answers; it changes nothing.

Needs no running controller. The rules answer where there is no language model, or it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

from agent import active_config, facts, interpretation, language_model, sources
from agent.clock import SystemClock
from agent.inquiry import dialogue, told
from agent.inquiry.dialogue import Bounds, NotFollowed
from agent.inquiry.figures import known
from agent.inquiry.period import Period, period
from agent.inquiry.rules import diagnose
from agent.inquiry.seen import Seen, look, setup
from agent.inquiry.told import RULES, Answered
from agent.settings import Settings
from agent.status import existing
from agent.what_if import simulate
from domain.engine import EngineConfig, SearchSpace
from domain.errors import BadInput
from domain.fleet import Role
from domain.outside import cleaned
from domain.ports import LanguageModel, MetricSource
from domain.slo import SLO
from domain.traffic import TrafficShape
from serving import flags
from tools.catalog import Catalog, Fleet, Reads, catalog
from tools.catalog.studies import Studied
from tools.grafana_alerts import active_alerts
from tools.grafana_dashboards import dashboards

LEAST_WINDOW_S: Final = 600.0
"""How much of the past a question is about that names no time, or the window, if that is longer."""

_LEAST_SCRAPES: Final = 4


async def asked(settings: Settings, question: str) -> Answered:
    """The answer; BadInput where the question or the settings must be mended."""
    if not question.strip() or len(question) > dialogue.QUESTION_CHARACTERS:
        raise BadInput(
            f"Ask a question of 1 to {dialogue.QUESTION_CHARACTERS} characters, such as 'why is "
            "TTFT high since 14:00?'."
        )
    now, zone = SystemClock().now(), ZoneInfo(settings.timezone)
    window_s = max(settings.window_s, LEAST_WINDOW_S)
    least_s = _LEAST_SCRAPES * settings.scrape_interval_s
    meant = period(question, now, zone, window_s, least_s)
    source = _source(settings)
    try:
        return await _answered(settings, source, question, meant, now, zone)
    finally:
        sources.close(source)


def _source(settings: Settings) -> MetricSource:
    """The metric source, which must have a past of its own."""
    places: dict[str, Callable[[], MetricSource]] = {
        "prometheus": lambda: sources.prometheus(settings, sources.lookback_s(settings)),
        "grafana": lambda: sources.narrowed(
            settings, sources.through_grafana(settings, sources.lookback_s(settings))
        ),
    }
    if settings.metrics not in places:
        raise BadInput(
            "metrics is scrape, whose past is in the running controller's memory alone, so nothing "
            "can be asked about it from here; set metrics to prometheus or grafana, or look at the "
            "dashboard for the present window."
        )
    return places[settings.metrics]()


async def _answered(
    settings: Settings,
    source: MetricSource,
    question: str,
    meant: Period,
    now: float,
    zone: ZoneInfo,
) -> Answered:
    slo, space = SLO.parse(settings.slo), _space(settings)
    config = _config(settings)
    known_setup = setup(
        model=settings.served_model_name or settings.model,
        arm=Role.PRODUCTION.arm,
        slo=slo,
        config=config,
        space=space,
    )
    seen = await look(source, known_setup, meant, settings.scrape_interval_s)
    diagnosis = diagnose(seen)
    by_rules = Answered(
        question=question,
        period=meant,
        zone=zone,
        diagnosis=diagnosis,
        text=diagnosis.sentence,
        author=RULES,
        note="No language model is set (model_base_url and model_name).",
        used=diagnosis.used,
    )
    with _language_model(settings) as model:
        if model is None:
            return by_rules
        try:
            said = await dialogue.ask(
                model,
                _catalog(settings, source, seen, space, config, now),
                question,
                told.window(meant, zone),
                diagnosis,
                known(seen),
                Bounds(),
            )
        except NotFollowed as error:
            note = f"The language model was not followed: {str(error).rstrip('.')}."
            return replace(by_rules, note=cleaned(note, 500))
    return replace(
        by_rules,
        text=said.text,
        author=f"model {cleaned(settings.model_name, 80)}",
        note=f"It read and wrote {said.tokens} tokens.",
        used=said.used,
        readings=said.readings,
    )


def _catalog(
    settings: Settings,
    source: MetricSource,
    seen: Seen,
    space: SearchSpace,
    config: EngineConfig,
    now: float,
) -> Catalog:
    """All that a language model may read by, of what the settings name."""
    shape = seen.now.shape if isinstance(seen.now.shape, TrafficShape) else None
    reader = sources.grafana(settings) if settings.grafana_url else None
    reads = Reads(
        metrics=source,
        evaluator=sources.evaluator(source),
        dashboards=partial(dashboards, reader) if reader else None,
        alerts=partial(active_alerts, reader) if reader else None,
        studies=partial(_studies, settings.store_url),
        simulate=simulate(
            settings.model, simulated=settings.simulated, shape=shape, slo=seen.setup.slo
        ),
    )
    fleet = Fleet(
        model=seen.setup.model,
        arm=seen.setup.arm,
        within=settings.metric_labels,
        scrape_s=settings.scrape_interval_s,
        knobs=space.knobs,
        config=config,
    )
    return catalog(reads, fleet, now)


def _space(settings: Settings) -> SearchSpace:
    """The knobs; none where this machine cannot tell what the engines run on."""
    try:
        lane = interpretation.lane(settings)
        return interpretation.space(
            settings, flags.catalogue(hardware=lane.kind), facts.known(settings), lane
        )
    except BadInput:
        return SearchSpace(knobs=())


def _config(settings: Settings) -> EngineConfig:
    """What production runs: the last config promoted, else the baseline of the settings."""
    try:
        with existing(settings.store_url) as store, store.view() as uow:
            stored = active_config.stored(uow)
    except BadInput:
        stored = None
    return stored or EngineConfig.of(settings.baseline)


def _studies(url: str, most: int) -> Sequence[Studied]:
    """The latest studies with their trials; none where there is no store yet."""
    try:
        with existing(url) as store, store.view() as uow:
            return [Studied(each, uow.trials.of(each.id)) for each in uow.studies.latest(most)]
    except BadInput:
        return ()


@contextmanager
def _language_model(settings: Settings) -> Iterator[LanguageModel | None]:
    """The model that the settings name, if they do; within the day's tokens where a store counts
    them."""
    if not (settings.model_base_url and settings.model_name):
        yield None
        return
    clock = SystemClock()
    server = language_model.endpoint(settings, clock)
    try:
        store = existing(settings.store_url)
    except BadInput:
        yield server
        return
    with store:
        yield language_model.budgeted(server, settings, store, clock)
