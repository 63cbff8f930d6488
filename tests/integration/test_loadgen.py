"""The load client against a real server that behaves well, badly, or not at all."""

import asyncio
import json
import math
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from canary.loadgen import Budget, HttpLoadGenerator, Limits, Options, ProcessLoadGenerator
from canary.loadgen.codec import Job, job_lines, read_record
from canary.loadgen.process import _Client
from canary.prompts import agents
from domain.errors import BadInput, Temporary
from domain.load import (
    Arrival,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestSpec,
    Session,
    StopCause,
)
from tests.fakes.streaming_engine import (
    Exchange,
    StreamingEngine,
    chunked,
    event,
    steady,
    usage_of,
)


def plan(
    *,
    sessions: int = 4,
    turns: int = 1,
    concurrency: int = 4,
    osl: int = 4,
    duration_s: float = 20.0,
    think_s: float = 0.0,
    arrival: Arrival = Arrival.CLOSED,
    every_s: float = 0.0,
) -> LoadPlan:
    specs = (RequestSpec(prompt=tuple(range(300, 320)), osl=osl, think_s=think_s),) * turns
    return LoadPlan(
        level="test",
        arrival=arrival,
        concurrency=concurrency,
        sessions=tuple(
            Session(name=f"s{i}", turns=specs, start_s=i * every_s) for i in range(sessions)
        ),
        warm_up_s=0.0,
        duration_s=duration_s,
        seed=7,
    )


def never() -> bool:
    return False


async def send(script: Callable, **options: object) -> LoadResult:
    async with StreamingEngine(script) as engine:
        client = HttpLoadGenerator(Options(request_timeout_s=0.5))
        return await client.run(plan(**options), engine.url, "m", never)


async def test_a_good_stream_is_complete_and_counted_by_usage() -> None:
    async with StreamingEngine(steady(ttft_s=0.05, itl_s=0.01, arm="candidate")) as engine:
        client = HttpLoadGenerator(Options(headers={"authorization": "Bearer x"}))
        result = await client.run(plan(osl=5), engine.url, "the-model", never)
        await engine.until(lambda: engine.live == 0)
    assert [record.error for record in result.records] == [None] * 4
    for record in result.records:
        assert (record.isl, record.osl, record.arm) == (20, 5, "candidate")
        assert record.first_s - record.sent_s >= 0.05
        assert record.last_s - record.sent_s >= 0.09
        assert record.scheduled_s <= record.sent_s <= record.last_s <= record.end_s
    body, headers = engine.seen[0].body, engine.seen[0].headers
    assert body["model"] == "the-model"
    assert body["prompt"] == list(range(300, 320))
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
    assert body["stream_options"] == {"include_usage": True}
    assert headers["authorization"] == "bearer x"
    assert {exchange.headers["x-session-id"] for exchange in engine.seen} == {
        "s0",
        "s1",
        "s2",
        "s3",
    }


async def test_connections_are_kept_alive() -> None:
    async with StreamingEngine(steady()) as engine:
        client = HttpLoadGenerator()
        result = await client.run(plan(sessions=6, turns=3, concurrency=2), engine.url, "m", never)
    assert len(result.records) == 18
    assert engine.connections == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("500 Internal Server Error", RequestError.HTTP_5XX),
        ("503 Service Unavailable", RequestError.HTTP_5XX),
        ("429 Too Many Requests", RequestError.HTTP_429),
        ("400 Bad Request", RequestError.HTTP_4XX),
        ("302 Found", RequestError.MALFORMED),
    ],
)
async def test_http_errors_have_their_class(status: str, error: RequestError) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.refuse(status)

    result = await send(script, sessions=2)
    assert [record.error for record in result.records] == [error, error]


async def closes_at_once(exchange: Exchange) -> None:
    exchange.writer.close()


async def closes_in_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    exchange.writer.close()


async def hangs_before_headers(exchange: Exchange) -> None:
    await asyncio.sleep(60)


async def hangs_in_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await asyncio.sleep(60)


async def truncates_json(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.chunk(b'data: {"choices":[{"text":"a"\n\n')
    await exchange.usage()
    await exchange.done()


async def sends_no_usage(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.done()


async def sends_nothing(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.done()


async def sends_a_role_only(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    await exchange.usage()
    await exchange.done()


async def speaks_another_protocol(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n")


async def fails_in_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.chunk(event({"error": {"message": "out of memory", "code": 500}}))
    await exchange.done()


async def refuses_as_too_many(exchange: Exchange) -> None:
    await exchange.refuse("429 Too Many Requests")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (closes_at_once, RequestError.DISCONNECTED),
        (closes_in_mid_stream, RequestError.DISCONNECTED),
        (hangs_before_headers, RequestError.TIMEOUT),
        (hangs_in_mid_stream, RequestError.TIMEOUT),
        (truncates_json, RequestError.MALFORMED),
        (sends_no_usage, RequestError.MALFORMED),
        (sends_nothing, RequestError.EMPTY),
        (sends_a_role_only, RequestError.EMPTY),
        (speaks_another_protocol, RequestError.MALFORMED),
        (fails_in_mid_stream, RequestError.HTTP_5XX),
    ],
)
async def test_bad_streams_have_their_class(script: Callable, error: RequestError) -> None:
    result = await send(script, sessions=2)
    assert [record.error for record in result.records] == [error, error]


GOOD_AND_BAD: dict[Callable, RequestError | None] = {
    steady(): None,
    closes_at_once: RequestError.DISCONNECTED,
    closes_in_mid_stream: RequestError.DISCONNECTED,
    hangs_in_mid_stream: RequestError.TIMEOUT,
    truncates_json: RequestError.MALFORMED,
    sends_no_usage: RequestError.MALFORMED,
    sends_nothing: RequestError.EMPTY,
    sends_a_role_only: RequestError.EMPTY,
    fails_in_mid_stream: RequestError.HTTP_5XX,
    refuses_as_too_many: RequestError.HTTP_429,
}


async def test_every_request_is_accounted_for_among_faults_of_all_kinds() -> None:
    scripts = list(GOOD_AND_BAD)
    given: Counter[RequestError | None] = Counter()

    async def script(exchange: Exchange) -> None:
        chosen = scripts[exchange.number % len(scripts)]
        given[GOOD_AND_BAD[chosen]] += 1
        await chosen(exchange)

    async with StreamingEngine(script) as engine:
        client = ProcessLoadGenerator(Options(request_timeout_s=0.5), shards=2)
        result = await client.run(plan(sessions=70, concurrency=16), engine.url, "m", never)
    assert Counter(record.error for record in result.records) == given
    assert given.total() == 70


async def test_a_refused_connection_shows_in_the_records() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = await HttpLoadGenerator().run(plan(turns=2), url, "m", never)
    assert [record.error for record in result.records] == [RequestError.CONNECT] * 8
    assert result.health.send_lag_ms == 0


async def test_a_dead_engine_does_not_use_the_plan_up_in_a_busy_loop() -> None:
    client = HttpLoadGenerator()
    dead = "http://127.0.0.1:9"
    result = await client.run(plan(sessions=1000, duration_s=0.45), dead, "m", never)
    assert 4 <= len(result.records) <= 4 * 5


async def test_a_role_only_chunk_is_not_the_first_token() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(0.1)
        await exchange.chunk(event({"choices": [{"delta": {"reasoning_content": "so"}}]}))
        await exchange.usage(1)
        await exchange.done()

    (record,) = (await send(script, sessions=1)).records
    assert record.error is None
    assert record.first_s - record.sent_s >= 0.1


async def test_chunks_may_be_merged_or_split_anywhere() -> None:
    text = event({"choices": [{"text": 'the "quote'}]}) + event(usage_of(20, 4))

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        if exchange.number == 0:
            await exchange.raw(chunked(text) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        for i in range(len(text)):
            await exchange.chunk(text[i : i + 1])
            await asyncio.sleep(0)
        await exchange.done()

    result = await send(script, sessions=2, concurrency=1)
    assert [(record.error, record.osl) for record in result.records] == [(None, 4), (None, 4)]


async def test_what_is_under_way_at_the_end_is_cut_off_and_the_engine_sees_it() -> None:
    async with StreamingEngine(steady(itl_s=0.05)) as engine:
        client = HttpLoadGenerator()
        result = await client.run(plan(osl=1000, duration_s=0.5), engine.url, "m", never)
        await engine.until(lambda: engine.live == 0)
    assert [record.error for record in result.records] == [RequestError.CANCELLED] * 4
    assert all(record.first_s is not None for record in result.records)
    assert result.duration_s == 0.5
    assert engine.cut_off == 4


async def test_an_open_plan_keeps_its_times_when_the_engine_is_slow() -> None:
    """No coordinated omission: a slow engine must not slow down what is asked of it."""
    async with StreamingEngine(steady(ttft_s=1.0)) as engine:
        result = await HttpLoadGenerator().run(
            plan(arrival=Arrival.OPEN, sessions=6, concurrency=1, every_s=0.05),
            engine.url,
            "m",
            never,
        )
    scheduled = sorted(record.scheduled_s for record in result.records)
    assert scheduled == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    last_sent_s = max(record.sent_s for record in result.records)
    assert last_sent_s < min(record.end_s for record in result.records)


async def test_stop_ends_a_plan_of_unbounded_duration_and_records_are_written_as_they_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.jsonl"
    live = agents(
        seed=1, sessions=500, turns=4, concurrency=3, system_tokens=64, think_s=0.01, osl=4
    )
    assert live.duration_s == math.inf

    def ten_are_written() -> bool:
        return path.exists() and len(path.read_text().splitlines()) >= 10

    async with StreamingEngine(steady()) as engine:
        client = HttpLoadGenerator(Options(records_path=path))
        result = await client.run(live, engine.url, "m", ten_are_written)
    written = tuple(map(read_record, path.read_text().splitlines()))
    assert written == result.records
    assert len(written) >= 10


async def test_a_chat_is_sent_as_messages_and_counted_by_the_engine() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await exchange.chunk(event({"choices": [{"delta": {"content": "Hello"}}]}))
        await exchange.chunk(event(usage_of(12, 4)))
        await exchange.done()

    spec = RequestSpec(text="Hi", text_isl=10, osl=4)
    chats = replace(plan(), sessions=(Session(name="s0", turns=(spec,)),))
    async with StreamingEngine(script) as engine:
        client = ProcessLoadGenerator(Options(path="/v1/chat/completions"))
        (record,) = (await client.run(chats, engine.url, "m", never)).records
        with pytest.raises(BadInput, match="takes text and no token ids"):
            await client.run(plan(), engine.url, "m", never)
    assert engine.seen[0].body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (record.error, record.isl, record.planned_isl, record.osl) == (None, 12, 10, 4)


@pytest.mark.parametrize("arrival", Arrival)
async def test_a_budget_ends_a_run_with_nothing_cut_off(arrival: Arrival) -> None:
    options = Options(budget=Budget(requests=5))
    async with StreamingEngine(steady()) as engine:
        client = HttpLoadGenerator(options)
        asked = plan(arrival=arrival, sessions=9, turns=2, every_s=0.01)
        result = await client.run(asked, engine.url, "m", never)
    assert [record.error for record in result.records] == [None] * 5
    assert len(engine.seen) == 5
    assert result.stopped is not None
    assert result.stopped.cause is StopCause.BUDGET


async def test_a_budget_of_seconds_cuts_off() -> None:
    async with StreamingEngine(steady(itl_s=0.05)) as engine:
        client = HttpLoadGenerator(Options(budget=Budget(seconds=0.4)))
        result = await client.run(plan(osl=1000), engine.url, "m", never)
    assert [record.error for record in result.records] == [RequestError.CANCELLED] * 4
    assert result.duration_s == 0.4
    assert result.stopped is not None
    assert result.stopped.sentence == "The budget of 0.4 s was spent."


@pytest.mark.parametrize("shards", [1, 2])
async def test_an_open_load_that_the_engine_cannot_carry_is_given_up(shards: int) -> None:
    options = Options(saturation=Limits(under_way=8))
    async with StreamingEngine(hangs_in_mid_stream) as engine:
        client = ProcessLoadGenerator(options, shards=shards)
        asked = plan(arrival=Arrival.OPEN, sessions=400, every_s=0.05)
        result = await client.run(asked, engine.url, "m", never)
        await engine.until(lambda: engine.live == 0)
    assert result.arrival is Arrival.OPEN
    assert result.stopped is not None
    assert result.stopped.cause is StopCause.OVER_SATURATED
    assert "requests were under way at once" in result.stopped.sentence
    assert 8 < len(result.records) < 400


async def test_shards_play_one_plan_together(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    async with StreamingEngine(steady()) as engine:
        client = ProcessLoadGenerator(Options(records_path=path), shards=3)
        asked = plan(arrival=Arrival.OPEN, sessions=30, turns=2, every_s=0.02)
        result = await client.run(asked, engine.url, "m", never)
    assert sorted((r.session, r.turn) for r in result.records) == sorted(
        (f"s{i}", turn) for i in range(30) for turn in range(2)
    )
    due = {r.session: r.scheduled_s for r in result.records if r.turn == 0}
    assert due == pytest.approx({f"s{i}": 0.02 * i for i in range(30)})
    written = list(map(read_record, path.read_text().splitlines()))
    assert sorted(written, key=lambda r: r.end_s) == list(result.records)


@pytest.mark.parametrize("arrival", Arrival)
async def test_nothing_is_sent_before_the_common_start(arrival: Arrival) -> None:
    start_at_s = time.perf_counter() + 0.3
    seen_s = []

    async def script(exchange: Exchange) -> None:
        seen_s.append(time.perf_counter())
        await steady()(exchange)

    async with StreamingEngine(script) as engine:
        asked = plan(arrival=arrival)
        client = HttpLoadGenerator()
        result = await client.run(asked, engine.url, "m", never, start_at_s=start_at_s)
    assert min(seen_s) >= start_at_s
    assert min(record.sent_s for record in result.records) >= 0


async def test_shards_need_a_process() -> None:
    with pytest.raises(BadInput, match="got 0 shards"):
        ProcessLoadGenerator(shards=0)


async def test_cancelling_the_run_closes_every_connection() -> None:
    async with StreamingEngine(steady(itl_s=0.05)) as engine:
        run = asyncio.create_task(HttpLoadGenerator().run(plan(osl=1000), engine.url, "m", never))
        await engine.until(lambda: len(engine.seen) == 4)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await engine.until(lambda: engine.live == 0)


async def test_an_error_of_stop_itself_passes_on() -> None:
    def stop() -> bool:
        raise LookupError("the trial is gone")

    async with StreamingEngine(steady()) as engine:
        with pytest.raises(LookupError):
            await HttpLoadGenerator().run(plan(), engine.url, "m", stop)
        await engine.until(lambda: engine.live == 0)


@pytest.mark.parametrize("url", ["https://x", "127.0.0.1:80", "http://", "http://x:notaport"])
async def test_a_bad_url_is_refused_with_a_sentence(url: str) -> None:
    for client in (HttpLoadGenerator(), ProcessLoadGenerator()):
        with pytest.raises(BadInput, match="The engine's URL"):
            await client.run(plan(), url, "m", never)


@pytest.mark.parametrize("shards", [1, 2])
async def test_the_processes_end_when_their_run_is_cancelled(shards: int) -> None:
    async with StreamingEngine(steady(itl_s=0.05)) as engine:
        client = ProcessLoadGenerator(shards=shards)
        run = asyncio.create_task(client.run(plan(osl=1000), engine.url, "m", never))
        await engine.until(lambda: len(engine.seen) == 4, within_s=10)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await engine.until(lambda: engine.live == 0)


async def test_a_client_that_could_not_run_raises_its_last_words(tmp_path: Path) -> None:
    client = ProcessLoadGenerator(Options(records_path=tmp_path / "no" / "such" / "directory"))
    with pytest.raises(Temporary, match="No such file"):
        await client.run(plan(), "http://127.0.0.1:1", "m", never)


async def test_a_client_killed_in_the_middle_of_a_line_is_a_failed_client() -> None:
    """Half a record is none, and no fault of the caller's."""
    code = "import os; os.write(1, b'half a li'); os.kill(os.getpid(), 9)"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=pipe, stdout=pipe, stderr=pipe
    )
    # Only a client that dies at the right moment does this, so one is put in its place.
    client = _Client(process)
    with pytest.raises(Temporary, match="ended with code -9"):
        await client.result(lambda record: None)
    await client.end()


async def test_the_load_process_imports_nothing_heavy() -> None:
    code = "import sys, json, canary.loadgen.__main__; print(json.dumps(sorted(sys.modules)))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    heavy = {"numpy", "scipy", "optuna", "pydantic", "httpx", "sqlalchemy"}
    assert not heavy & set(json.loads(out))


async def test_a_caller_that_reads_late_does_not_hold_up_the_load() -> None:
    """What it was not told yet is more than a pipe holds; the load goes on, and nothing is lost."""
    async with StreamingEngine(steady(ttft_s=0.001, itl_s=0.0)) as engine:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "canary.loadgen"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1024,
        )
        assert client.stdin and client.stdout
        wanted = plan(sessions=2000, concurrency=32, osl=1, duration_s=60.0)
        for line in job_lines(Job(plan=wanted, url=engine.url, model="m", options=Options())):
            client.stdin.write(line)
        assert await client.stdout.readline() == b"ready\n"
        client.stdin.write(f"{time.perf_counter()!r}\n".encode())
        await engine.until(lambda: len(engine.seen) == 2000, within_s=60.0)
        told = [line async for line in client.stdout]
        assert await client.wait() == 0
    records, closing = told[:-2], told[-1]
    assert len({read_record(line).session for line in records}) == 2000
    assert sum(map(len, records)) > 4 * 65_536
    assert told[-2] == b"\n" and json.loads(closing)["stopped"] is None
