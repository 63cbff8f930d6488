"""The composition root: turns settings into parts, runs them, and shuts them down.

The only module that knows every adapter. Backends are chosen in literal tables; what is not in a
table is refused by the settings. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from agent import facts, gateways, interpretation, language_model, pausing, preflight, sources
from agent.api import create_app
from agent.clock import SystemClock
from agent.earlier import EarlierStudies
from agent.evidence import LiveEvidence
from agent.executor import Executor
from agent.graph import Explain, checkpoints, unexplained
from agent.leadership import Leadership
from agent.live import LiveState
from agent.load_client import LoadClients
from agent.loads import TrialLength, trace_in
from agent.loop import Controller
from agent.orders import Orders
from agent.planner.experience import Experienced
from agent.planner.model import ModelPlanner
from agent.planner.rationale import Explainer
from agent.planner.rulebook import Rulebook
from agent.progress import Progress
from agent.rehearsals import Rehearsals, Rehearse, StoredTrials, unresolved
from agent.schedule import Schedule
from agent.settings import Settings
from agent.store import migrate, open_store
from agent.study_job import StudyJob
from agent.tuning import Tuning
from canary.quality import STREAMS, ask_all, questions
from canary.racing import Bar
from canary.rollout import Observed
from canary.tokenization import NaturalText
from canary.trial import PlansOf, Rehearsal
from domain.errors import BadInput, Temporary
from domain.fidelity import Grade
from domain.fleet import Replica, ReplicaState, Role, Split, forgotten
from domain.ports import Clock, LanguageModel, Notifier, Planner
from domain.slo import SLO
from domain.study import QualityScore, Trial
from serving import flags
from serving.dry_run import DryRun
from serving.launchers.process import ProcessLauncher
from serving.model_card import ModelFacts
from serving.vllm_process import python_of
from tools.counters import read_counters
from tools.grafana import GrafanaNotifier
from tools.live_shape import LiveShape
from tools.notify import Notifiers, WebhookNotifier
from tools.scrape import Scraper, Target

log = logging.getLogger(__name__)

LEASE_CYCLES = 4
LEAST_LEASE_S = 6.0
RETENTION_S = 7200.0


def new_id() -> str:
    return uuid.uuid4().hex


class Service:
    """All parts of one controller, wired. ``start`` before ``run``; ``close`` at the end."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.state_dir = preflight.state_folder(settings.state_dir)
        log_folder = settings.requests_log
        self.requests_log = preflight.requests_folder(log_folder) if log_folder else None
        executable = preflight.executable(settings.executable)
        known = facts.known(settings)
        lane = interpretation.lane(settings)
        catalogue = flags.catalogue(hardware=lane.kind)
        self.space = interpretation.space(settings, catalogue, known, lane)
        self.engine = interpretation.engine(settings, catalogue, lane)
        self.baseline = interpretation.baseline(settings, self.space)
        self.slo = SLO.parse(settings.slo)
        schedule = Schedule(settings.schedule, settings.timezone) if settings.schedule else None
        migrate(settings.store_url)
        self.store = open_store(settings.store_url)
        self.clock = clock or SystemClock()
        self.model = settings.served_model_name or settings.model
        self.production = interpretation.production(settings)
        self.lanes = interpretation.lanes(settings)
        self.canary = self.lanes[0]
        self.slots = {slot.name: slot for slot in (*self.production, *self.lanes)}
        self.arms = {slot.name: slot for slot in gateways.arms(settings)}
        self.gateway = gateways.gateway(settings, self.state_dir / "gateway")
        self.launcher = ProcessLauncher(
            directory=self.state_dir / "engines",
            executable=executable,
            model=settings.model,
            served_model_name=self.model,
            render=flags.command_line,
            extra_args=settings.engine_args,
            start_timeout_s=settings.engine_start_s,
            clock=self.clock,
        )
        self.resolver = _resolver(settings, executable)
        self.scraper = Scraper(
            self._targets,
            interval_s=settings.scrape_interval_s,
            # What is told of a window needs what was there just before it.
            retention_s=max(RETENTION_S, 2 * settings.window_s),
            clock=self.clock,
        )
        self.source = sources.metric_source(settings, self.scraper)
        self.progress = Progress(self.source, model=self.model, stuck_s=settings.stuck_s)
        self.notifier = _notifier(settings)
        self.language_model = (
            language_model.endpoint(settings, self.clock) if settings.planner == "model" else None
        )
        self.leadership = Leadership(
            self.store,
            holder=f"{os.getpid()}-{new_id()}",
            ttl_s=max(LEAST_LEASE_S, LEASE_CYCLES * settings.cycle_s),
        )
        self.tuning = self._tuning(schedule, known)
        self.controller = self._controller()
        self._replicas: tuple[Replica, ...] = ()
        self._gateway_fault = ""

    async def start(self) -> None:
        """Check the ports and bring the gateway up; BadInput before anything else was started."""
        preflight.ports_free([("api_port", self.settings.api_port)])
        if fault := await sources.fault(self.source, self.clock.now()):
            log.warning("There are no metrics yet, and Serinus holds until there are: %s", fault)
        self._replicas = await self.launcher.observe()
        held = {replica.slot for replica in self._replicas}
        free = {slot.port for slot in self.slots.values() if slot.name not in held}
        preflight.ports_free((name, port) for name, port in self.settings.ports if port in free)
        await self.gateway.start()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve the dashboard and cycle until ``stop``; engines and gateway keep serving."""
        scraping = asyncio.create_task(self.scraper.run(), name="scraper")
        server = uvicorn.Server(
            uvicorn.Config(
                self._app(), host="127.0.0.1", port=self.settings.api_port, log_level="warning"
            )
        )
        # Not ``serve``: it would take the signals that ``stop`` is for.
        serving = asyncio.create_task(server._serve(), name="api")
        probing = asyncio.create_task(self._probe_language_model(), name="probe")
        try:
            await self.controller.run(stop, self.settings.cycle_s)
        finally:
            server.should_exit = True
            scraping.cancel()
            probing.cancel()
            await asyncio.gather(serving, scraping, probing, return_exceptions=True)

    async def close(self) -> None:
        """Let go of everything that this process holds, and of nothing that serves."""
        await self.launcher.aclose()
        if self.resolver is not None:
            await self.resolver.aclose()
        sources.close(self.source)
        await self.scraper.close()
        self.store.close()

    async def stop_fleet(self, drain_s: float) -> tuple[str, ...]:
        """Stop every engine and the gateway, or let the users' own send nothing to the candidate;
        the names of the slots that held one."""
        held = tuple(replica.slot for replica in await self.launcher.observe())
        gone = [name for name in held if name not in self.slots]
        slots = (*self.slots.values(), *map(forgotten, gone))
        await asyncio.gather(*(self.launcher.stop(slot, drain_s) for slot in slots))
        await self.gateway.stop()
        return held

    def live(self) -> LiveState:
        """What the dashboard shows of this moment."""
        report = self.controller.report
        with self.store.view() as uow:
            paused = pausing.paused(uow)
        return LiveState(
            at_s=report.at_s,
            sentence=report.sentence,
            simulated=self.settings.simulated,
            paused=paused,
            autonomy=self.settings.autonomy,
            slo=self.slo,
            active=self.tuning.active_config(),
            split=report.observed.split if report.observed else None,
            replicas=self._replicas,
            shape=self.tuning.shape,
        )

    def _app(self) -> FastAPI:
        tokens = {
            secret.get_secret_value(): actor for actor, secret in self.settings.api_tokens.items()
        }
        return create_app(
            store=self.store,
            tokens=tokens,
            clock=self.clock,
            live=self.live,
            hosts=self.settings.api_hosts,
        )

    async def _observe(self) -> Observed:
        self._replicas = await self.launcher.observe()
        split = await self._split()
        observed = Observed(
            production=self.production,
            canary=self.canary,
            replicas={replica.slot: replica for replica in self._replicas},
            split=split,
        )
        return await self.progress.seen(observed, self.clock.now())

    async def _split(self) -> Split | None:
        """The split in force, or ``None`` and, once, the reason in the log."""
        try:
            split = await self.gateway.read()
        except Temporary as error:
            if (fault := str(error)) != self._gateway_fault:
                log.warning(fault)
            self._gateway_fault = fault
            return None
        self._gateway_fault = ""
        return split

    def _targets(self) -> Sequence[Target]:
        """Engines that have served; one that is still starting misses no scrape. What only
        rehearses on a search lane is in no arm."""
        return [
            Target(
                url=self.arms[replica.slot].url,
                arm=self.arms[replica.slot].role.arm,
                config=replica.config.digest,
                replica=replica.slot,
            )
            for replica in self._replicas
            if replica.state is not ReplicaState.STARTING and replica.slot in self.arms
        ]

    def _planner(self) -> Planner:
        if (language := self._asked_in_studies()) is None:
            return Rulebook()
        return ModelPlanner(language=language, name=self.settings.model_name, fallback=Rulebook())

    def _explain(self) -> Explain:
        if (language := self._asked_in_studies()) is None:
            return unexplained
        return Explainer(language, self.settings.model_name)

    def _asked_in_studies(self) -> LanguageModel | None:
        """The language model within its budgets, where it plans."""
        if self.language_model is None:
            return None
        return language_model.budgeted(self.language_model, self.settings, self.store, self.clock)

    async def _probe_language_model(self) -> None:
        """Find out how it answers; one that does not yet is asked again when it is needed."""
        if self.language_model is not None:
            found = await language_model.probed(self.settings, self.language_model)
            log.log(logging.INFO if found.good else logging.WARNING, "%s", found.sentence)

    async def _ask_quality(self, url: str) -> QualityScore | None:
        count = self.settings.quality_questions
        if count == 0:
            return None
        return await ask_all(url, self.model, questions(seed=1, n=count), concurrency=STREAMS)

    def _rehearse(self) -> Rehearse:
        settings = self.settings
        clients = LoadClients(
            request_timeout_s=settings.request_timeout_s,
            shards=settings.shards,
            most_requests=settings.trial_requests,
            most_tokens=settings.trial_tokens,
            folder=self.requests_log,
        )
        text = NaturalText(self.model, settings.corpus)

        async def rehearse(
            trial: Trial, plans_of: PlansOf, slo: SLO, with_quality: bool, bar: Bar | None
        ) -> Trial:
            rehearsal = Rehearsal(
                launcher=self.launcher,
                load=clients.fresh(trial),
                slot=self.slots[trial.lane],
                model=self.model,
                clock=self.clock,
                read_counters=read_counters,
                read_text=text.ids,
                ask_quality=self._ask_quality,
                may_act=self.leadership.may_act,
                start_timeout_s=settings.engine_start_s,
                poll_s=min(1.0, settings.cycle_s),
            )
            return await rehearsal.run(trial, plans_of, slo, with_quality, bar)

        return rehearse

    def _tuning(self, schedule: Schedule | None, known: ModelFacts) -> Tuning:
        settings = self.settings
        rehearsals = Rehearsals(
            log=StoredTrials(self.leadership),
            planner=Experienced(self._planner(), EarlierStudies(self.leadership)),
            space=self.space,
            rehearse=self._rehearse(),
            resolve=self.resolver.resolve if self.resolver else unresolved,
            length=TrialLength(
                warm_up_s=settings.trial_warm_up_s,
                measured_s=settings.trial_s,
                screened_s=min(settings.screen_s, settings.trial_s),
                min_requests=settings.min_requests,
                rounds=settings.confirm_rounds,
                max_model_len=known.max_model_len,
                arrival=settings.arrivals,
            ),
            trace=None if settings.trace is None else trace_in(settings.trace),
            fidelity_limit=Grade(settings.fidelity_limit),
            lanes=tuple(slot.name for slot in self.lanes),
            explain=self._explain(),
            checkpoints=checkpoints(settings.store_url),
            terms=interpretation.terms(settings),
            clock=self.clock,
            new_id=new_id,
        )
        live = LiveShape(
            self.source,
            model=self.model,
            arm=Role.PRODUCTION.arm,
            scrape_s=settings.scrape_interval_s,
        )
        return Tuning(
            leadership=self.leadership,
            job=StudyJob(rehearsals.graph_for),
            read_shape=live.read,
            policy=interpretation.policy(settings, self.slo, self.engine, len(self.production)),
            baseline=self.baseline,
            schedule=schedule,
            new_id=new_id,
            notifier=self.notifier,
            clock=self.clock,
        )

    def _controller(self) -> Controller:
        return Controller(
            observe=self._observe,
            executor=Executor(
                launcher=self.launcher,
                gateway=self.gateway,
                slots=self.slots,
                leadership=self.leadership,
                clock=self.clock,
                drain_s=self.settings.drain_s,
            ),
            leadership=self.leadership,
            orders=Orders(self.leadership),
            tuning=self.tuning,
            judge=LiveEvidence(self.source, self.slo, self.leadership, model=self.model).verdict,
            revive_gateway=self.gateway.start,
            notifier=self.notifier,
            clock=self.clock,
        )


def _resolver(settings: Settings, executable: tuple[str, ...]) -> DryRun | None:
    """Asks the installed vLLM; ``None`` for an engine that has no Python to be asked in."""
    if settings.simulated:
        return None
    try:
        python = python_of(Path(executable[0]))
    except BadInput as error:
        log.warning("Configs are tried without asking vLLM first: %s", error)
        return None
    return DryRun(
        python=python,
        model=settings.model,
        engine_args=settings.engine_args,
        gpu_ids=settings.canary_gpu_ids,
    )


def _notifier(settings: Settings) -> Notifier:
    notifiers: list[Notifier] = []
    if settings.grafana_url:
        token = settings.grafana_token.get_secret_value()
        notifiers.append(GrafanaNotifier(settings.grafana_url, token))
    if webhook := settings.webhook_url.get_secret_value():
        notifiers.append(WebhookNotifier(webhook))
    return Notifiers(notifiers)
