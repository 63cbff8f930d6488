"""Notifiers deliver, never raise, and never tell a secret."""

import json
import logging
import socket
from collections.abc import Callable

import pytest
from pytest_httpserver import HTTPServer

from domain.errors import BadInput
from domain.events import Event, EventKind
from domain.ports import Notifier
from tools.grafana import GrafanaNotifier
from tools.notify import Notifiers, WebhookNotifier

EVENT = Event(
    at_s=1_700_000_000.25,
    kind=EventKind.ROLLED_BACK,
    sentence="Rolled back: TTFT 900 ms against <!channel> & 500 ms.",
    subject="rollout-7",
)
SECRET = "hush-hush"


def closed_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("suffix", ["/grafana", "/grafana/"])
async def test_grafana_gets_an_annotation_with_its_tags(httpserver: HTTPServer, suffix: str):
    httpserver.expect_oneshot_request("/grafana/api/annotations", method="POST").respond_with_json(
        {"id": 1}
    )
    notifier = GrafanaNotifier(httpserver.url_for(suffix), SECRET, "dash")
    await notifier.notify(EVENT)
    ((request, _),) = httpserver.log
    assert request.headers["Authorization"] == f"Bearer {SECRET}"
    body = json.loads(request.get_data())
    assert body["tags"] == ["serinus", "rolled_back"]
    assert body["time"] == 1_700_000_000_250
    assert body["dashboardUID"] == "dash"
    assert body["text"].endswith("(rollout-7)")
    assert notifier.failures == 0


@pytest.mark.parametrize("status", [400, 401, 403, 500])
async def test_a_grafana_that_refuses_is_counted_and_said_once(
    httpserver: HTTPServer, caplog: pytest.LogCaptureFixture, status: int
):
    httpserver.expect_request("/api/annotations").respond_with_json(
        {"message": f"bad token {SECRET}"}, status=status
    )
    notifier = GrafanaNotifier(httpserver.url_for("/"), SECRET)
    with caplog.at_level(logging.DEBUG):
        await notifier.notify(EVENT)
        await notifier.notify(EVENT)
    assert notifier.failures == 2
    assert sum("takes no annotations" in record.message for record in caplog.records) == 1
    assert SECRET not in caplog.text


async def test_a_webhook_gets_one_line_without_markup(httpserver: HTTPServer):
    httpserver.expect_oneshot_request("/hook", method="POST").respond_with_data("ok")
    notifier = WebhookNotifier(httpserver.url_for("/hook"))
    await notifier.notify(EVENT)
    ((request, _),) = httpserver.log
    assert json.loads(request.get_data()) == {
        "text": "Serinus, rolled back: Rolled back: TTFT 900 ms against &lt;!channel&gt; &amp; 500"
        " ms. (rollout-7)"
    }
    assert notifier.failures == 0


@pytest.mark.parametrize("status", [302, 404, 429, 500])
async def test_a_webhook_that_refuses_is_counted_and_said_once_without_its_url(
    httpserver: HTTPServer, caplog: pytest.LogCaptureFixture, status: int
):
    httpserver.expect_request(f"/{SECRET}").respond_with_data("no", status=status)
    notifier = WebhookNotifier(httpserver.url_for(f"/{SECRET}"))
    with caplog.at_level(logging.DEBUG):
        await notifier.notify(EVENT)
        await notifier.notify(EVENT)
    assert notifier.failures == 2
    ours = [record for record in caplog.records if not record.name.startswith("werkzeug")]
    assert sum("takes no messages" in record.message for record in ours) == 1
    assert not any(SECRET in record.getMessage() for record in ours)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GrafanaNotifier(closed_url(), SECRET),
        lambda: WebhookNotifier(closed_url()),
        lambda: WebhookNotifier("http://127.0.0.1:99999"),
    ],
    ids=["grafana", "webhook", "no port"],
)
async def test_a_receiver_that_is_not_there_is_no_error(
    make: Callable[[], GrafanaNotifier | WebhookNotifier],
):
    notifier = make()
    await notifier.notify(EVENT)
    assert notifier.failures == 1


@pytest.mark.parametrize("url", ["", "grafana.example", "ftp://grafana.example"])
def test_a_url_or_token_that_is_none_is_refused(url: str):
    for make in (lambda: GrafanaNotifier(url, SECRET), lambda: WebhookNotifier(url)):
        with pytest.raises(BadInput, match="URL"):
            make()
    with pytest.raises(BadInput, match="token"):
        GrafanaNotifier("http://grafana.example", "")


class Kept:
    def __init__(self) -> None:
        self.events: list[Event] = []

    async def notify(self, event: Event) -> None:
        self.events.append(event)


class Broken:
    async def notify(self, event: Event) -> None:
        raise RuntimeError(SECRET)


async def test_one_notifier_that_breaks_its_promise_stops_no_other(
    caplog: pytest.LogCaptureFixture,
):
    kept = Kept()
    notifiers: list[Notifier] = [Broken(), kept]
    await Notifiers(notifiers).notify(EVENT)
    assert kept.events == [EVENT]
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text
