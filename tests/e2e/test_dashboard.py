"""The page in a real browser: it renews itself, can be used by keyboard, and fits a telephone."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from agent.api import create_app
from agent.live import LiveState
from agent.store import Store, migrate, open_store
from domain.approval import Answer, Autonomy, CommandKind
from domain.fleet import Role, SlotTraffic, Split
from domain.slo import SLO
from domain.study import TrialPurpose, TrialState
from tests.fakes import records

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
DEADLINE_S = 20.0
NOW = 3000.0

# The protocol's pipes are file descriptors 3 and 4 of the browser, whatever their numbers here.
WIRE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class StoppedClock:
    def now(self) -> float:
        return NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"The API waited {seconds} s.")


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"Not within {DEADLINE_S} s: {what}."
        time.sleep(0.05)


class Page:
    """One page of a Chromium that is spoken to through a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        read, from_browser = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WIRE, str(to_browser), str(from_browser), str(CHROMIUM),
             *options, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._answers = os.fdopen(read, "rb")
        self._buffer = b""
        self._id = 0
        self._session: dict[str, str] = {}

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        message = {"id": self._id, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                chunk = self._answers.read1(65_536)
                assert chunk, "The browser ended."
                self._buffer += chunk
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._id:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def js(self, expression: str) -> Any:
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        ready = f"location.href === {url!r} && document.readyState === 'complete'"
        until(lambda: bool(self.js(ready)), "the page is loaded")

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text,
                      windowsVirtualKeyCode=code)  # fmt: skip

    def close(self) -> None:
        os.close(self._write)
        self._answers.close()
        # The browser ends by itself once its pipe is closed.
        try:
            self._process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("profile"))
    try:
        page.attach()
        yield page
    finally:
        page.close()


class Served:
    """The API on a free port of loopback; ``live`` may be replaced."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.live = LiveState(
            at_s=NOW,
            sentence="Waiting for approval.",
            simulated=True,
            paused=False,
            autonomy=Autonomy.APPROVE,
            slo=SLO.parse("ttft<=500ms"),
            active=records.BASELINE,
            split=Split(weight=5, slots=(SlotTraffic(slot="production-0", role=Role.PRODUCTION,
                        admitted=True, up=True, in_flight=4, requests=9, errors=0),)),
            shape=records.shape(),
        )  # fmt: skip
        app = create_app(store=store, tokens={}, clock=StoppedClock(), live=lambda: self.live)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        until(lambda: self._server.started, "the API is up")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        self._socket.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    url = f"sqlite:///{tmp_path}/serinus.db"
    migrate(url)
    with open_store(url) as store:
        with store.work() as uow:
            uow.studies.add(records.study())
            uow.trials.add(records.trial(measurement=records.measurement()))
            uow.verdicts.add("study-1", 1900.0, records.verdict())
            uow.rollouts.add(records.rollout())
            uow.approvals.add(records.request())
            uow.commit()
        served = Served(store)
        yield served
        served.close()


def test_the_page_renews_itself(served: Served, page: Page) -> None:
    page.open(served.url)
    assert "Waiting for approval." in page.js("document.querySelector('#now').innerText")
    served.live = replace(served.live, sentence="Setting weight 25.")
    until(
        lambda: "Setting weight 25." in page.js("document.querySelector('#now').innerText"),
        "the new sentence is shown",
    )


def test_a_person_approves_by_keyboard(served: Served, page: Page) -> None:
    page.open(served.url)
    focused = "document.activeElement.id"
    for _ in range(12):
        page.press("Tab", 9)
        if page.js(focused) == "approve-1":
            break
    assert page.js(focused) == "approve-1"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.js(outline) == "solid"
    page.press("Enter", 13, "\r")
    until(
        lambda: page.js("document.querySelector('#word').innerText") == "Your answer was recorded.",
        "the answer is confirmed",
    )
    with served.store.view() as uow:
        assert uow.approvals.get("approval-1").answer is Answer.APPROVE
    until(
        lambda: page.js("document.querySelectorAll('#approvals article').length") == 0,
        "the question is gone",
    )


def test_an_order_keeps_the_focus_and_a_refusal_is_said(served: Served, page: Page) -> None:
    page.open(served.url)
    page.js("document.querySelector('#order-pause').focus()")
    page.press("Enter", 13, "\r")
    word = "document.querySelector('#word').innerText"
    until(lambda: page.js(word) == "A pause was ordered.", "the order is confirmed")
    with served.store.work() as uow:
        assert [c.kind for c in uow.commands.pending()] == [CommandKind.PAUSE]
        uow.approvals.answer("approval-1", Answer.REJECT, "bob", NOW)
        uow.commit()
    served.live = replace(served.live, paused=True)
    until(
        lambda: page.js("document.querySelector('#order-pause').innerText") == "Resume",
        "resuming is offered",
    )
    assert page.js("document.activeElement.id") == "order-pause"
    # As from a page that has not been renewed since: the other person was faster.
    page.js(
        """{
        const form = document.createElement("form");
        form.action = "/api/approvals/approval-1";
        form.innerHTML = `<input name="answer" value="approve"><input name="rollout_version"
            value="1"><input name="digest" value="DIGEST"><button>Approve</button>`;
        document.body.append(form);
        form.requestSubmit(form.querySelector("button"));
    }""".replace("DIGEST", records.CANDIDATE.digest)
    )
    until(
        lambda: page.js(word) == "The request was already rejected by bob.",
        "the refusal is said",
    )


def test_a_server_that_is_gone_is_said(served: Served, page: Page) -> None:
    page.open(served.url)
    assert page.js("document.querySelector('#lost').hidden") is True
    served.close()
    until(
        lambda: page.js("document.querySelector('#lost').hidden") is False,
        "the page says that it is out of date",
    )


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_and_can_be_read(served: Served, page: Page, width: int, dark: bool) -> None:
    page.open(served.url, width=width, dark=dark)
    assert page.js("document.documentElement.scrollWidth") <= width
    faint = page.js(CONTRAST)
    assert faint == [], "These have a contrast below 4.5."


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_of_a_study_fits_and_can_be_read(
    served: Served, page: Page, width: int, dark: bool
) -> None:
    page.open(served.url, width=width, dark=dark)
    with served.store.work() as uow:
        uow.trials.add(
            records.trial(
                2,
                config=records.BASELINE,
                purpose=TrialPurpose.BASELINE,
                state=TrialState.MEASURED,
                measurement=records.measurement(),
                fidelity=records.fidelity(),
            )
        )
        uow.commit()
    page.js("document.querySelector('#study-report').click()")
    title = "document.readyState === 'complete' && document.title"
    until(lambda: page.js(title) == "Report of study study-1", "the report is shown")
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 27)" if dark else "rgb(246, 245, 241)"), "It has its style."
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js("document.querySelectorAll('.front circle').length") == 2
    assert page.js(CONTRAST) == [], "These have a contrast below 4.5."


# Elements with text of their own whose colour is too near to their background's.
CONTRAST = """(() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => {
            const c = v / 255;
            return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        for (let n = node; n; n = n.parentElement) {
            const colour = getComputedStyle(n).backgroundColor;
            if (!/^rgba.*, 0\\)$/.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [];
    for (const node of document.body.querySelectorAll("*")) {
        const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || !node.checkVisibility()) continue;
        const pair = [light(getComputedStyle(node).color), light(ground(node))].sort();
        const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        if (ratio < 4.5) found.push(`${node.innerText}: ${ratio.toFixed(1)}`);
    }
    return found;
})()"""
