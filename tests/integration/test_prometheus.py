"""The Prometheus adapter against servers that refuse, hang, hint or talk nonsense."""

import asyncio
import json
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.errors import BadInput
from domain.events import Event, EventKind
from domain.metrics import Failed, Function, Line, NoData, Partial, Query, Sample
from tests.fakes.stuck import stuck_server
from tools.grafana import GrafanaNotifier
from tools.prometheus import PrometheusSource

QUERY = Query(metric="vllm:num_requests_running", function=Function.LAST, by=("arm",))
PATH, RANGE_PATH = "/prefix/api/v1/query", "/prefix/api/v1/query_range"
GOOD = [{"metric": {"arm": "production"}, "value": [1.0, "2.5"]}]


@pytest.fixture
def source(httpserver: HTTPServer) -> Iterator[PrometheusSource]:
    source = PrometheusSource(
        httpserver.url_for("/prefix/"), timeout_s=2.0, headers={"Authorization": "Bearer hush"}
    )
    yield source
    source.close()


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the local time zone of this process, and takes it back at the end."""

    def to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield to
    monkeypatch.undo()
    time.tzset()


def matrix(rows: object) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}})


def vector(rows: object, **more: object) -> str:
    data = {"resultType": "vector", "result": rows}
    return json.dumps({"status": "success", "data": data, **more})


def serve(
    httpserver: HTTPServer, answer: Callable[[str], Response | str], path: str = PATH
) -> list[Request]:
    """Answer the metric's query by ``answer`` of its text, and the query of ``up`` with nothing."""
    seen = []

    def handle(request: Request) -> Response:
        seen.append(request)
        text = request.form["query"]
        said = vector([]) if text.startswith("(up") else answer(text)
        return said if isinstance(said, Response) else Response(said, 200)

    httpserver.expect_request(path).respond_with_handler(handle)
    return seen


async def test_the_question_is_in_the_body_with_its_time_and_the_headers(
    httpserver: HTTPServer, source: PrometheusSource
):
    seen = serve(httpserver, lambda _: vector(GOOD))
    reading = await source.read(QUERY, 1_700_000_000.25)
    assert isinstance(reading, Sample)
    assert reading.by("arm") == {"production": 2.5}
    assert len(seen) == 2
    for request in seen:
        assert (request.method, request.query_string) == ("POST", b"")
        assert request.form["time"] == "1700000000.250"
        assert request.headers["Authorization"] == "Bearer hush"


async def test_a_warning_makes_the_answer_partial(httpserver: HTTPServer, source: PrometheusSource):
    """The client drops warnings, and a store that did not answer looks like a lower sum."""
    serve(httpserver, lambda _: vector(GOOD, warnings=["store 10.0.0.7 did not answer"]))
    reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, Partial)
    assert "store 10.0.0.7" in reading.reason
    assert reading.sample.total() == 2.5


async def test_a_note_for_the_curious_is_no_warning(
    httpserver: HTTPServer, source: PrometheusSource
):
    serve(httpserver, lambda _: vector(GOOD, infos=["metric might not be a counter"]))
    assert isinstance(await source.read(QUERY, 1.0), Sample)


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf"])
async def test_a_number_that_is_none_is_no_data(
    httpserver: HTTPServer, source: PrometheusSource, text: str
):
    rows = [*GOOD, {"metric": {"arm": "candidate"}, "value": [1.0, text]}]
    serve(httpserver, lambda _: vector(rows))
    reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, NoData)
    assert "finite" in reading.reason


async def test_several_series_where_one_was_asked_for_are_no_answer(
    httpserver: HTTPServer, source: PrometheusSource
):
    """A proxy that merges several servers badly; summed, an engine would count twice."""
    serve(httpserver, lambda _: vector([*GOOD, {**GOOD[0], "value": [1.0, "2.5"]}]))
    reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, Failed)
    assert "several series" in reading.reason


async def test_an_empty_vector_is_no_data(httpserver: HTTPServer, source: PrometheusSource):
    serve(httpserver, lambda _: vector([]))
    assert isinstance(await source.read(QUERY, 1.0), NoData)


async def test_a_refusal_says_why(httpserver: HTTPServer, source: PrometheusSource):
    said = json.dumps({"status": "error", "error": "query timed out " + "x" * 1000})
    seen = serve(httpserver, lambda _: Response(said, 503))
    reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, Failed)
    assert "503" in reading.reason
    assert "query timed out" in reading.reason
    assert len(reading.reason) < 300
    assert len(seen) == 1, "nothing is retried in the path of a verdict"


async def test_a_failed_look_at_the_targets_is_no_complete_answer(
    httpserver: HTTPServer, source: PrometheusSource
):
    def handle(request: Request) -> Response:
        if request.form["query"].startswith("(up"):
            return Response("{}", 500)
        return Response(vector(GOOD), 200)

    httpserver.expect_request(PATH).respond_with_handler(handle)
    assert isinstance(await source.read(QUERY, 1.0), Failed)


async def test_a_redirect_is_not_followed_and_takes_no_token_elsewhere(
    httpserver: HTTPServer, source: PrometheusSource
):
    elsewhere = httpserver.url_for("/elsewhere")
    seen = serve(httpserver, lambda _: Response("", 307, headers={"Location": elsewhere}))
    reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, Failed)
    assert "307" in reading.reason
    assert len(seen) == 1
    assert len(httpserver.log) == 1


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>sign in</html>",
        "[]",
        "null",
        '{"status":"success"}',
        vector("text"),
        vector([{"metric": {}}]),
        vector([{"metric": {}, "value": [1]}]),
        vector([{"metric": None, "value": [1, "1"]}]),
        vector([{"metric": {}, "value": [1, "one"]}]),
        vector([1]),
    ],
)
async def test_what_is_no_query_result_is_a_failure(
    httpserver: HTTPServer, source: PrometheusSource, body: str
):
    serve(httpserver, lambda _: body)
    assert isinstance(await source.read(QUERY, 1.0), Failed)


AUTUMN_S = 1_762_063_200.5
"""Half a second into the hour in which New York's clocks went back."""


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
async def test_a_range_is_unix_seconds_whatever_the_local_time_zone(
    httpserver: HTTPServer, source: PrometheusSource, set_zone: Callable[[str], None], zone: str
):
    """The client takes dates and rounds them to seconds; neither may show in question or answer."""
    set_zone(zone)
    times = [AUTUMN_S + 0.25 * k for k in range(5)]
    rows = [{"metric": {"arm": "a"}, "values": [[at_s, str(at_s)] for at_s in times]}]
    seen = serve(httpserver, lambda _: matrix(rows), RANGE_PATH)
    readings = await source.read_range(QUERY, times[0], times[-1], 0.25)
    assert [(one.at_s, one.total()) for one in readings if isinstance(one, Sample)] == [
        (at_s, at_s) for at_s in times
    ]
    assert len(seen) == 2
    for request in seen:
        asked = [request.form[name] for name in ("start", "end", "step")]
        assert asked == ["1762063200.500", "1762063201.500", "0.250"]
        assert (request.method, request.query_string) == ("POST", b"")


async def test_a_range_has_each_series_where_it_was(
    httpserver: HTTPServer, source: PrometheusSource
):
    rows = [
        {"metric": {"arm": "a"}, "values": [[1, "1"], [2, "NaN"]]},
        {"metric": {"arm": "b"}, "values": [[1, "5"], [4, "6"]]},
    ]
    serve(httpserver, lambda _: matrix(rows), RANGE_PATH)
    first, second, third, fourth = await source.read_range(QUERY, 1.0, 4.0, 1.0)
    assert isinstance(first, Sample)
    assert first.by("arm") == {"a": 1, "b": 5}
    assert isinstance(second, NoData)
    assert isinstance(third, NoData)
    assert isinstance(fourth, Sample)
    assert fourth.by("arm") == {"b": 6}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response("no", 503), "503"),
        (Response("<html>", 200), "no query result"),
        (Response(vector(GOOD), 200), "no query result"),
        (Response(matrix([{"metric": {}, "values": [[9, "1"]]}]), 200), "no query result"),
    ],
)
async def test_a_range_that_is_not_answered_is_a_failure_at_every_moment(
    httpserver: HTTPServer, source: PrometheusSource, answer: Response, reason: str
):
    serve(httpserver, lambda _: answer, RANGE_PATH)
    readings = await source.read_range(QUERY, 1.0, 3.0, 1.0)
    assert len(readings) == 3
    for reading in readings:
        assert isinstance(reading, Failed)
        assert reason in reading.reason


async def test_a_server_that_is_not_there_is_a_failure_without_its_url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = PrometheusSource(f"http://user:hush@127.0.0.1:{port}", timeout_s=2.0)
    reading = await source.read(QUERY, 1.0)
    source.close()
    assert isinstance(reading, Failed)
    assert "cannot be reached" in reading.reason
    assert "hush" not in reading.reason


@pytest.fixture(params=["silent", "dribbling"])
def stuck(request: pytest.FixtureRequest) -> Iterator[str]:
    with stuck_server(dribbling=request.param == "dribbling") as url:
        yield url


async def test_the_deadline_holds_whatever_the_server_does(stuck: str):
    """The client alone waits for ever for a byte now and then, and its retries outlast the rest.

    The server never ends, so that an answer at all proves the deadline.
    """
    source = PrometheusSource(stuck, timeout_s=0.5)
    reading = await source.read(QUERY, 1.0)
    of_range = await source.read_range(QUERY, 1.0, 2.0, 1.0)
    source.close()
    assert isinstance(reading, Failed)
    assert "within 0.5 s" in reading.reason
    assert of_range == (reading, reading)


async def test_readings_can_be_made_at_once(httpserver: HTTPServer, source: PrometheusSource):
    serve(httpserver, lambda _: vector(GOOD))
    readings = await asyncio.gather(*(source.read(QUERY, float(i)) for i in range(30)))
    assert all(isinstance(reading, Sample) for reading in readings)
    assert [reading.at_s for reading in readings if isinstance(reading, Sample)] == list(range(30))


async def test_nothing_that_is_logged_has_the_token(
    httpserver: HTTPServer, source: PrometheusSource, caplog: pytest.LogCaptureFixture
):
    serve(httpserver, lambda _: Response("no", 500))
    with caplog.at_level(logging.DEBUG):
        reading = await source.read(QUERY, 1.0)
    assert isinstance(reading, Failed)
    assert "hush" not in caplog.text + reading.reason


@pytest.mark.parametrize("url", ["", "prometheus:9090", "file:///etc/passwd"])
def test_a_url_that_is_none_is_refused(url: str):
    with pytest.raises(BadInput, match="Prometheus URL"):
        PrometheusSource(url)


async def test_both_clients_work_in_one_process_though_they_share_urllib3(
    httpserver: HTTPServer, source: PrometheusSource
):
    """grafana-client brings urllib3-future, which takes the module ``urllib3`` under requests."""
    httpserver.expect_request("/api/annotations").respond_with_json({"id": 1})
    serve(httpserver, lambda _: vector(GOOD))
    grafana = GrafanaNotifier(httpserver.url_for("/"), "token")
    event = Event(at_s=1.0, kind=EventKind.PROMOTED, sentence="Promoted.")
    for _ in range(2):
        assert isinstance(await source.read(QUERY, 1.0), Sample)
        await grafana.notify(event)
    assert grafana.failures == 0
    assert metadata.version("urllib3-future"), "without it this test shows nothing"


async def evaluated(source: PrometheusSource) -> tuple[Line, ...] | Failed:
    return await source.evaluate("sum(up)", 1_700_000_000.0, 1_700_000_020.0, 10.0, most=3)


async def test_an_expression_is_evaluated_over_a_range(
    httpserver: HTTPServer, source: PrometheusSource
):
    values = [[1_700_000_000.0, "1"], [1_700_000_020.0, "NaN"]]
    rows = [{"metric": {"arm": "a"}, "values": values}, {"metric": {}, "values": values[:1]}]
    seen = serve(httpserver, lambda _: matrix(rows), RANGE_PATH)
    found = await evaluated(source)
    assert isinstance(found, tuple)
    first, second = found
    assert first.labels == {"arm": "a"}
    assert first.points[0] == (1_700_000_000.0, 1.0)
    assert math.isnan(first.points[1][1])
    assert second.points == ((1_700_000_000.0, 1.0),)
    [request] = seen
    assert request.form["query"] == "sum(up)"
    assert (request.form["limit"], request.form["step"]) == ("3", "10.000")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response("{}", 200), "something that is no query result"),
        (Response('{"status": "error", "error": "too deep"}', 422), "refused"),
        (
            Response('{"status":"success","warnings":["part"],"data":{"result":[]}}', 200),
            "part",
        ),
    ],
)
async def test_an_expression_that_is_not_answered_whole_has_failed(
    httpserver: HTTPServer, source: PrometheusSource, answer: Response, reason: str
):
    serve(httpserver, lambda _: answer, RANGE_PATH)
    found = await evaluated(source)
    assert isinstance(found, Failed)
    assert reason in found.reason
