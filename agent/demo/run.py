"""Runs the demo: the real controller and gateway, generated traffic, simulated engines.

It changes only its own folder and ends everything that it started, also when interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from agent.bootstrap import Service
from agent.demo import report
from agent.demo.traffic import read_traffic
from agent.settings import Settings, load
from domain.approval import Autonomy
from domain.errors import BadInput, Permanent

AFTER_S = 20.0
LONGEST_S = 400.0
STREAMS = 48


async def run_demo(path: Path) -> int:
    """Run it all and write the report; 0 where a better config was promoted with no failure."""
    console = Console(highlight=False)
    logging.getLogger("tools").setLevel(logging.ERROR)  # engines that stop are part of the show
    with tempfile.TemporaryDirectory(prefix="serinus-demo-") as folder:
        service = Service(_settings(Path(folder)))
        records = Path(folder) / "traffic.jsonl"
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        console.print(
            "Serinus demo: [bold]SIMULATED engines[/bold], generated traffic, real controller."
        )
        traffic: subprocess.Popen[bytes] | None = None
        try:
            await service.start()
            running = asyncio.create_task(service.run(stop))
            await _production(service, stop)
            traffic = _send(service, records)
            console.print(f"Traffic: {STREAMS} coding agents at {service.gateway.url}/v1")
            await _watch(service, console, stop)
            _end(traffic)
            stop.set()
            await running
            story = _story(service, records)
            found = report.outcome(story)
            report.write(story, found, path)
            console.print(report.plain(story, found), markup=False)
            console.print(f"Report: {path}")
            return 0 if found.promoted and found.failed == 0 else 1
        finally:
            stop.set()
            if traffic is not None:
                _end(traffic)
            await service.stop_fleet(drain_s=0.0)
            await service.close()


def _settings(folder: Path) -> Settings:
    """Short windows, so that the whole loop fits into minutes; ports that are free now."""
    gateway, api, production, canary = free_ports()
    return load(
        None,
        state_dir=folder,
        model="demo-hybrid",
        executable="simulator",
        gateway_port=gateway,
        api_port=api,
        production_port=production,
        canary_port=canary,
        slo="ttft<=500ms, e2el<=2s, share>=90%",
        autonomy=Autonomy.AUTONOMOUS,
        cycle_s=0.5,
        scrape_interval_s=1.0,
        window_s=14.0,
        min_requests=30,
        cooldown_s=0.0,
        trial_budget=7,
        trial_warm_up_s=2.0,
        trial_s=6.5,
        quality_questions=200,
        engine_start_s=20.0,
        drain_s=20.0,
        bake_s=6.0,
        step_requests=12,
        stall_s=90.0,
    )


def free_ports() -> tuple[int, int, int, int]:
    """Four ports that are free now, the first with a free neighbour for the gateway's metrics."""
    with ExitStack() as held:

        def bound(port: int) -> int:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])

        while True:
            first = bound(0)
            with suppress(OSError, OverflowError):
                bound(first + 1)
                return first, bound(0), bound(0), bound(0)


async def _production(service: Service, stop: asyncio.Event) -> None:
    """Wait until production takes requests."""
    deadline_s = time.monotonic() + 60.0
    while not stop.is_set():
        observed = service.controller.report.observed
        split = observed.split if observed else None
        if split is not None and any(slot.up and slot.admitted for slot in split.slots):
            return
        if time.monotonic() > deadline_s:
            raise BadInput(f"Production did not start: {service.controller.report.sentence}")
        await asyncio.sleep(0.2)


def _send(service: Service, records: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agent.demo.traffic", "--url", service.gateway.url]
    command += ["--model", service.model, "--records", str(records)]
    command += ["--streams", str(STREAMS), "--longest", str(LONGEST_S)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _end(traffic: subprocess.Popen[bytes]) -> None:
    if traffic.poll() is None:
        traffic.send_signal(signal.SIGTERM)
        traffic.wait(timeout=20)


async def _watch(service: Service, console: Console, stop: asyncio.Event) -> None:
    """Say what the controller does until its rollout or failed study, and a while after.

    Sentences that differ in their figures alone are said once; the status line shows them all.
    """
    began_s, said, over_s = time.monotonic(), "", None
    with console.status("Starting") as status:
        while not stop.is_set():
            now_s = time.monotonic()
            sentence = service.controller.report.sentence
            status.update(f"{now_s - began_s:4.0f} s  {sentence}")
            if (kind := re.sub(r"[\d.]+", "", sentence)) != said:
                console.print(f"[dim]{now_s - began_s:4.0f} s[/dim]  {escape(sentence)}")
                said = kind
            if over_s is None and _over(service):
                over_s = now_s + AFTER_S
            if (over_s is not None and now_s >= over_s) or now_s - began_s > LONGEST_S - 10:
                return
            await asyncio.sleep(0.25)


def _over(service: Service) -> bool:
    """Whether the loop has come to its end, good or bad."""
    with service.store.view() as uow:
        rollouts, studies = uow.rollouts.latest(1), uow.studies.latest(1)
    if rollouts:
        return rollouts[0].phase.ended
    return bool(studies) and studies[0].state.ended


def _story(service: Service, records: Path) -> report.Story:
    with service.store.view() as uow:
        rollouts, studies = uow.rollouts.latest(1), uow.studies.latest(10)
        if not rollouts:
            ended = studies[0].conclusion if studies else service.controller.report.sentence
            raise Permanent(f"The demo came to no rollout: {ended}")
        rollout = rollouts[0]
        return report.Story(
            model=service.model,
            slo=service.slo,
            traffic=read_traffic(records),
            study=uow.studies.get(rollout.study_id),
            trials=uow.trials.of(rollout.study_id),
            rollout=rollout,
            verdicts=(*uow.verdicts.of(rollout.study_id), *uow.verdicts.of(rollout.id)),
            events=uow.events.latest(500)[::-1],
            ended_s=time.time(),
        )
