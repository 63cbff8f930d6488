"""Finding a data source in a Grafana, and reading its panels: over real HTTP, in all its moods."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.errors import BadInput, Temporary
from domain.metrics import Failed, Line, Sample
from tests.fakes.grafana import TOKEN, FakeGrafana
from tests.fakes.stuck import stuck_server
from tools import queries
from tools.grafana_alerts import Alert, active_alerts
from tools.grafana_api import Grafana
from tools.grafana_dashboards import dashboards
from tools.grafana_source import DataSource, GrafanaSource, data_sources

QUERY = queries.now(queries.RUNNING)
NOW_S = 1_700_000_000.0


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    grafana = FakeGrafana()
    yield grafana
    grafana.close()


@pytest.fixture
def reader(grafana: FakeGrafana) -> Grafana:
    return Grafana(grafana.url, TOKEN)


@pytest.fixture
def prometheus(httpserver: HTTPServer) -> Callable[..., str]:
    """The URL of a server whose every answer is this many requests running; ``None``: it has no
    metric of vLLM."""

    def serve(name: str, running: float | None) -> str:
        rows = [] if running is None else [{"metric": {}, "value": [NOW_S, str(running)]}]

        def handle(request: Request) -> Response:
            found = [] if request.form["query"].startswith("(up") else rows
            data = {"resultType": "vector", "result": found}
            return Response(json.dumps({"status": "success", "data": data}), 200)

        httpserver.expect_request(f"/{name}/api/v1/query").respond_with_handler(handle)
        return httpserver.url_for(f"/{name}")

    return serve


def closed_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def found(reader: Grafana, wanted: str = "") -> DataSource:
    source = GrafanaSource(reader, wanted, lookback_s=15.0)
    try:
        return await source.find(NOW_S)
    finally:
        source.close()


async def refusal(reader: Grafana, wanted: str = "", kind: type[Exception] = BadInput) -> str:
    """The one sentence, which never has the token in it."""
    with pytest.raises(kind) as refused:
        await found(reader, wanted)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert TOKEN not in sentence + repr(refused.value)
    return sentence


async def test_the_only_prometheus_is_found(grafana: FakeGrafana, reader: Grafana):
    grafana.add_source("l", "Loki", type="loki")
    grafana.add_source("p", "Metrics")
    assert (await found(reader)).uid == "p"


async def test_of_several_the_one_that_has_the_metrics_is_found(
    grafana: FakeGrafana, reader: Grafana, prometheus: Callable[..., str]
):
    grafana.add_source("nodes", "Nodes", prometheus("nodes", None))
    grafana.add_source("gpus", "GPUs", prometheus("gpus", 3))
    assert (await found(reader)).uid == "gpus"


@pytest.mark.parametrize("running", [3, None])
async def test_between_two_alike_a_person_chooses(
    grafana: FakeGrafana, reader: Grafana, prometheus: Callable[..., str], running: float | None
):
    grafana.add_source("eu", "vLLM\x1b[31m eu", prometheus("eu", running))
    grafana.add_source("us", "vLLM us", prometheus("us", running))
    sentence = await refusal(reader)
    assert "set grafana_datasource" in sentence
    assert "'vLLM [31m eu' (UID eu), 'vLLM us' (UID us)" in sentence
    assert (await found(reader, "us")).uid == "us"
    assert (await found(reader, "vLLM us")).uid == "us"


async def test_one_that_is_down_is_not_taken_for_one_without_metrics(
    grafana: FakeGrafana, reader: Grafana, prometheus: Callable[..., str]
):
    """It may be the one that is meant: the other would be a silent pick."""
    grafana.add_source("down", "Ours", closed_url())
    grafana.add_source("up", "Theirs", prometheus("up", 3))
    sentence = await refusal(reader, kind=Temporary)
    assert "'Ours' (UID down) could not be asked" in sentence


async def test_what_is_wrong_with_a_data_source_is_one_sentence(
    grafana: FakeGrafana, reader: Grafana
):
    assert "(types: none)" in await refusal(reader)
    grafana.add_source("l", "Loki", type="loki")
    assert "no data source of type prometheus (types: loki)" in await refusal(reader)
    grafana.add_source("p", "Metrics")
    assert "'Other'; set grafana_datasource to one of 'Metrics'" in await refusal(reader, "Other")
    assert "is of type loki; set" in await refusal(reader, "Loki")


async def test_a_viewer_who_may_not_list_still_finds(grafana: FakeGrafana, reader: Grafana):
    grafana.add_source("p", "Metrics")
    grafana.denied = {"/datasources"}
    assert (await found(reader, "Metrics")).uid == "p"
    grafana.denied = {"/datasources", "/frontend"}
    assert (await found(reader, "p")).uid == "p"
    sentence = await refusal(reader)
    assert "denies the token the list of data sources (HTTP 403)" in sentence
    assert "datasources:read" in sentence


async def test_a_refused_token_is_named_and_not_told(
    grafana: FakeGrafana, caplog: pytest.LogCaptureFixture
):
    reader = Grafana(grafana.url, "glsa_hush-wrong")
    with caplog.at_level(logging.DEBUG):
        sentence = await refusal(reader, "p")
        source = GrafanaSource(reader, lookback_s=15.0)
        reading = await source.read(QUERY, NOW_S)
        source.close()
    assert "refuses the token (HTTP 401); set grafana_token" in sentence
    assert isinstance(reading, Failed)
    assert "hush" not in sentence + reading.reason + caplog.text + repr(reader) + repr(source)


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (Response("", 302, headers={"Location": "http://elsewhere/login"}), "a redirect"),
        (Response("<html>sign in</html>", 200, content_type="text/html"), "not Grafana's API"),
        (Response("{", 200, content_type="application/json"), "not Grafana's API"),
        (Response("{}", 200, content_type="application/json"), "not Grafana's API"),
        (Response("no", 404), "does not know the list of data sources (HTTP 404)"),
    ],
)
async def test_what_is_no_grafana_is_said_so(
    httpserver: HTTPServer, response: Response, named: str
):
    httpserver.expect_request("/api/datasources").respond_with_response(response)
    assert named in await refusal(Grafana(httpserver.url_for("/"), TOKEN))
    assert len(httpserver.log) == 1, "nothing is retried, and no redirect followed"


async def test_an_answer_without_end_is_not_read(httpserver: HTTPServer):
    httpserver.expect_request("/api/datasources").respond_with_data(b"[" + b" " * 9_000_000)
    sentence = await refusal(Grafana(httpserver.url_for("/"), TOKEN), kind=Temporary)
    assert "too large" in sentence


@pytest.mark.parametrize("status", [500, 503])
async def test_a_grafana_in_trouble_is_temporary(httpserver: HTTPServer, status: int):
    httpserver.expect_request("/api/datasources").respond_with_json(
        {"message": f"echo {TOKEN}"}, status=status
    )
    sentence = await refusal(Grafana(httpserver.url_for("/"), TOKEN), kind=Temporary)
    assert f"HTTP {status}" in sentence


async def test_a_grafana_that_is_not_there_is_temporary():
    sentence = await refusal(Grafana(closed_url(), TOKEN), kind=Temporary)
    assert "cannot be reached" in sentence


@pytest.mark.parametrize("dribbling", [False, True], ids=["silent", "dribbling"])
async def test_the_deadline_holds_whatever_the_server_does(dribbling: bool):
    """The server never ends, so that an answer at all proves the deadline."""
    with stuck_server(dribbling=dribbling) as url:
        sentence = await refusal(Grafana(url, TOKEN, timeout_s=0.5), kind=Temporary)
    assert "within 0.5 s" in sentence or "cannot be reached" in sentence


@pytest.mark.parametrize("url", ["", "grafana.example", "http://user:pass@grafana.example"])
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(BadInput, match="Grafana URL"):
        Grafana(url, TOKEN)


async def test_readings_at_once_find_once_and_the_token_goes_no_further(
    grafana: FakeGrafana, reader: Grafana, prometheus: Callable[..., str]
):
    grafana.add_source("a b/c", "Odd", prometheus("p", 3))
    source = GrafanaSource(reader, lookback_s=15.0)
    readings = await asyncio.gather(*(source.read(QUERY, NOW_S) for _ in range(20)))
    source.close()
    assert {reading.total() for reading in readings if isinstance(reading, Sample)} == {3}
    assert [seen.path for seen in grafana.seen].count("/datasources") == 1
    proxied = [seen for seen in grafana.seen if seen.passed_on]
    assert len(proxied) == 40
    assert {seen.path for seen in proxied} == {"/datasources/proxy/uid/a%20b%2Fc/api/v1/query"}


async def test_a_grafana_that_comes_back_is_read_again(
    grafana: FakeGrafana, reader: Grafana, prometheus: Callable[..., str]
):
    source = GrafanaSource(reader, lookback_s=15.0)
    grafana.denied = {"/"}
    grafana.add_source("p", "Metrics", prometheus("p", 3))
    first = await source.read(QUERY, NOW_S)
    grafana.denied = set()
    second = await source.read(QUERY, NOW_S)
    grafana.denied = {"/datasources/proxy"}
    third = await source.read(QUERY, NOW_S)
    source.close()
    assert isinstance(first, Failed)
    assert "HTTP 403" in first.reason
    assert isinstance(second, Sample)
    assert isinstance(third, Failed)
    assert third.reason.startswith("through Grafana: ")
    assert TOKEN not in first.reason + third.reason


def panel(*expressions: str) -> dict[str, object]:
    return {"title": "Load", "targets": [{"expr": text} for text in expressions]}


async def test_panels_are_read_and_a_denied_dashboard_is_reported(
    grafana: FakeGrafana, reader: Grafana
):
    grafana.add_dashboard("one", "vLLM", panel("a", "b"), tags=["llm"])
    grafana.add_dashboard("two", "Secret", panel("c"))
    grafana.denied = {"/dashboards/uid/two"}
    read = await dashboards(reader)
    assert (read.listed, read.read) == (2, 1)
    assert [query.expression for query in read.queries] == ["a", "b"]
    (note,) = read.notes
    assert "denies the token the dashboard 'Secret' (HTTP 403)" in note
    assert TOKEN not in note


async def test_the_likeliest_dashboards_are_read_within_a_bound(
    grafana: FakeGrafana, reader: Grafana
):
    for number in range(405):
        grafana.add_dashboard(f"d{number}", f"Nodes {number}", panel("n"))
    grafana.add_dashboard("late", "Engines", panel("v"), tags=["vllm"])
    read = await dashboards(reader, most=3)
    assert (read.listed, read.read) == (406, 3)
    assert read.queries[0].expression == "v"
    assert read.notes[0] == "403 of 406 dashboards were not read."
    assert [seen.query["page"] for seen in grafana.seen if seen.path == "/search"] == [
        ["1"],
        ["2"],
        ["3"],
    ]


async def test_every_kind_of_data_source_is_listed(grafana: FakeGrafana, reader: Grafana):
    grafana.add_source("l", "Loki", type="loki")
    grafana.sources += [{"uid": 3, "name": "odd", "type": "prometheus"}, {}]
    assert [source.uid for source in await data_sources(reader)] == ["l"]


async def test_alerts_are_read_firing_ones_first(grafana: FakeGrafana, reader: Grafana):
    grafana.alerts = [
        {"state": "Pending", "labels": {"alertname": "Queue"}, "annotations": {}},
        {"state": "Normal", "labels": {"alertname": "Fine"}},
        {
            "state": "Alerting",
            "labels": {"alertname": "Slow\x1b[2J"},
            "annotations": {"summary": "TTFT is high.", "description": "x" * 999, "runbook": "no"},
        },
    ]
    slow, queue = await active_alerts(reader)
    assert (slow.name, slow.state) == ("Slow [2J", "Alerting")
    assert slow.text.startswith("TTFT is high. xxx")
    assert len(slow.text) == 300
    assert queue == Alert(name="Queue", state="Pending", text="")


@pytest.mark.parametrize("alerts", [None, {}, ["x", 7, {"labels": 3, "state": "Alerting"}]])
async def test_alerts_of_any_form_are_no_fault(
    grafana: FakeGrafana, reader: Grafana, alerts: object
):
    grafana.alerts = alerts
    found = await active_alerts(reader)
    assert [alert.name for alert in found] == (["unnamed"] if isinstance(alerts, list) else [])


async def test_alerts_that_are_denied_are_told_with_the_permission(
    grafana: FakeGrafana, reader: Grafana
):
    grafana.denied.add("/prometheus/grafana")
    with pytest.raises(BadInput, match=r"permission alert\.rules:read"):
        await active_alerts(reader)


async def test_an_expression_is_evaluated_through_grafana(
    grafana: FakeGrafana, reader: Grafana, httpserver: HTTPServer
):
    rows = [{"metric": {"arm": "a"}, "values": [[NOW_S, "3"]]}]
    document = {"status": "success", "data": {"resultType": "matrix", "result": rows}}
    httpserver.expect_request("/p/api/v1/query_range").respond_with_json(document)
    grafana.add_source("metrics", "Fleet", httpserver.url_for("/p"))
    source = GrafanaSource(reader, lookback_s=15.0)
    try:
        found = await source.evaluate("sum(up)", NOW_S, NOW_S, 10.0, most=3)
        assert found == (Line(labels={"arm": "a"}, points=((NOW_S, 3.0),)),)
        grafana.sources[0]["url"] = closed_url()
        failed = await source.evaluate("sum(up)", NOW_S, NOW_S, 10.0, most=3)
    finally:
        source.close()
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("through Grafana: Prometheus refused")
