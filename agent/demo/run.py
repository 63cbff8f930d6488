"""Runs the demo: the real controller and gateway and generated traffic, on a scenario's engines.

It changes only its own folder and ends everything that it started, also when interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from agent import gateways
from agent.bootstrap import Service
from agent.demo import report
from agent.demo.ports import free_ports
from agent.demo.scenario import Scenario
from agent.demo.traffic import read_traffic
from agent.settings import Settings, load
from domain.errors import BadInput

INTERRUPTED = 130


async def run_demo(scenario: Scenario, path: Path) -> int:
    """Run it all and write the report; 0 where a better config was promoted with no failure."""
    console = Console(highlight=False)
    logging.getLogger("tools").setLevel(logging.ERROR)  # engines that stop are part of the show
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="serinus-demo-") as folder:
        os.environ.update(scenario.environment, TMPDIR=folder)  # what engines leave behind as well
        service = Service(_settings(scenario, Path(folder)))
        records = Path(folder) / "traffic.jsonl"
        console.print(f"Serinus demo: {scenario.words.headline}", markup=False)
        try:
            if not await _played(scenario, service, records, console, stop):
                console.print("Interrupted: everything that was started is being ended.")
                return INTERRUPTED
            return _told(scenario, service, records, console, path)
        finally:
            await service.stop_fleet(drain_s=0.0)
            await service.close()


def _settings(scenario: Scenario, folder: Path) -> Settings:
    """The scenario's settings, with a folder of its own and ports that are free now."""
    gateway, api, production, canary = free_ports()
    return load(
        None,
        state_dir=folder,
        haproxy_socket=None,
        gateway_port=gateway,
        api_port=api,
        production_port=production,
        canary_port=canary,
        **scenario.settings,
    )


async def _played(
    scenario: Scenario, service: Service, records: Path, console: Console, stop: asyncio.Event
) -> bool:
    """Run the controller under traffic until the show is over, and end both; ``False`` where
    ``stop`` came first."""
    await service.start()
    running = asyncio.create_task(service.run(stop))
    try:
        await _production(scenario, service, console, stop)
        if stop.is_set():
            return False
        traffic = _send(scenario, service, records)
        url = gateways.url(service.settings)
        console.print(f"Traffic: {scenario.agents.streams} coding agents at {url}/v1")
        try:
            await _watch(scenario, service, console, stop)
        finally:
            _end(traffic)
        return not stop.is_set()
    finally:
        stop.set()
        await running


async def _production(
    scenario: Scenario, service: Service, console: Console, stop: asyncio.Event
) -> None:
    """Wait until production takes requests."""
    deadline_s = time.monotonic() + scenario.start_s
    with console.status("Production is starting."):
        while not stop.is_set():
            observed = service.controller.report.observed
            split = observed.split if observed else None
            if split is not None and any(slot.up and slot.admitted for slot in split.slots):
                return
            if time.monotonic() > deadline_s:
                raise BadInput(f"Production did not start: {service.controller.report.sentence}")
            await asyncio.sleep(0.2)


def _send(scenario: Scenario, service: Service, records: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agent.demo.traffic", "--url", gateways.url(service.settings)]
    command += ["--model", service.model, "--records", str(records)]
    command += ["--agents", scenario.agents.written(), "--longest", str(scenario.longest_s)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _end(traffic: subprocess.Popen[bytes]) -> None:
    if traffic.poll() is None:
        traffic.send_signal(signal.SIGTERM)
        traffic.wait(timeout=20)


async def _watch(
    scenario: Scenario, service: Service, console: Console, stop: asyncio.Event
) -> None:
    """Say what the controller does until its rollout or failed study, and a while after.

    Sentences that differ in their figures alone are said once; the status line shows them all.
    """
    began_s, said, over_s = time.monotonic(), "", scenario.longest_s - 10.0
    over = False
    with console.status("Starting") as status:
        while not stop.is_set():
            now_s = time.monotonic() - began_s
            sentence = service.controller.report.sentence
            status.update(f"{now_s:4.0f} s  {escape(sentence)}")
            if (kind := re.sub(r"[\d.]+", "", sentence)) != said:
                console.print(f"[dim]{now_s:4.0f} s[/dim]  {escape(sentence)}")
                said = kind
            if not over and _over(service):
                over, over_s = True, min(over_s, now_s + scenario.after_s)
            if now_s >= over_s:
                return
            await asyncio.sleep(0.25)


def _over(service: Service) -> bool:
    """Whether the loop has come to its end, good or bad."""
    with service.store.view() as uow:
        rollouts, studies = uow.rollouts.latest(1), uow.studies.latest(1)
    if rollouts:
        return rollouts[0].phase.ended
    return bool(studies) and studies[0].state.ended


def _told(scenario: Scenario, service: Service, records: Path, console: Console, path: Path) -> int:
    """Tell how it ended, also in the report where there was a rollout; the exit code."""
    story = _story(scenario, service, records)
    if story is None:
        console.print(f"The demo came to no rollout: {_last_word(service)}", markup=False)
        return 1
    found = report.outcome(story)
    report.write(story, found, path)
    console.print(report.plain(story, found), markup=False)
    console.print(f"Report: {path}", markup=False)
    return 0 if found.promoted and found.failed == 0 else 1


def _last_word(service: Service) -> str:
    """The study's conclusion, or what the controller said last where it has none."""
    with service.store.view() as uow:
        studies = uow.studies.latest(1)
    return (studies[0].conclusion if studies else "") or service.controller.report.sentence


def _story(scenario: Scenario, service: Service, records: Path) -> report.Story | None:
    """All that was recorded; ``None`` where there was no rollout."""
    with service.store.view() as uow:
        rollouts = uow.rollouts.latest(1)
        if not rollouts:
            return None
        rollout = rollouts[0]
        return report.Story(
            scenario=scenario,
            model=service.model,
            engine_args=service.settings.engine_args,
            slo=service.slo,
            traffic=read_traffic(records),
            study=uow.studies.get(rollout.study_id),
            trials=uow.trials.of(rollout.study_id),
            rollout=rollout,
            verdicts=(*uow.verdicts.of(rollout.study_id), *uow.verdicts.of(rollout.id)),
            events=uow.events.latest(500)[::-1],
            ended_s=time.time(),
        )
