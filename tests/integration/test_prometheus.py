"""The Prometheus adapter against servers that refuse, hang, hint or talk nonsense."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from importlib import metadata

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.errors import BadInput
from domain.events import Event, EventKind
from domain.metrics import Failed, Function, NoData, Partial, Query, Sample
from tests.fakes.stuck import stuck_server
from tools.grafana import GrafanaNotifier
from tools.prometheus import PrometheusSource

QUERY = Query(metric="vllm:num_requests_running", function=Function.LAST, by=("arm",))
PATH = "/prefix/api/v1/query"
GOOD = [{"metric": {"arm": "production"}, "value": [1.0, "2.5"]}]


@pytest.fixture
def source(httpserver: HTTPServer) -> Iterator[PrometheusSource]:
    source = PrometheusSource(
        httpserver.url_for("/prefix/"), timeout_s=2.0, headers={"Authorization": "Bearer hush"}
    )
    yield source
    source.close()


def vector(rows: object, **more: object) -> str:
    data = {"resultType": "vector", "result": rows}
    return json.dumps({"status": "success", "data": data, **more})


def serve(httpserver: HTTPServer, answer: Callable[[str], Response | str]) -> list[Request]:
    """Answer the metric's query by ``answer`` of its text, and the query of ``up`` with nothing."""
    seen = []

    def handle(request: Request) -> Response:
        seen.append(request)
        text = request.form["query"]
        said = vector([]) if text.startswith("(up") else answer(text)
        return said if isinstance(said, Response) else Response(said, 200)

    httpserver.expect_request(PATH).respond_with_handler(handle)
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
    source.close()
    assert isinstance(reading, Failed)
    assert "within 0.5 s" in reading.reason


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
