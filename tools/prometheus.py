"""A Prometheus server as a metric source, within a deadline and without a guess.

``prometheus-api-client`` makes the request. The session it is given takes away what cannot be
had in the path of a verdict: it sends the query in the body, follows no redirect, retries nothing
and keeps the warnings, of which the client tells nobody. No error text of a library leaves this
module, for it may carry a URL with a secret.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect

from domain.errors import BadInput
from domain.metrics import Failed, Line, NoData, Partial, Query, Reading, Sample, Series, moments
from tools.completeness import missed
from tools.promql import missed_promql, promql
from tools.trust import authorities

_THREADS: Final = 8
_SHOWN: Final = 200
_NONSENSE: Final = "Prometheus answered with something that is no query result"


class _Row(NamedTuple):
    labels: Mapping[str, str]
    value: float


Rows: TypeAlias = Mapping[int, Sequence[_Row]]
"""The rows of an answer by the moment that they hold at, in milliseconds."""
Ask: TypeAlias = Callable[[PrometheusConnect, str, Mapping[str, str], float], Rows]
"""Puts a text to the server, with these parameters and this timeout in seconds."""


class _Answer(NamedTuple):
    rows: Rows
    warnings: tuple[str, ...]


class _Session(requests.Session):
    """One reading's connection; ``said`` is the last answer, with what the client would drop."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.verify = authorities()
        self.said: dict[str, Any] = {}

    def request(self, method: Any, url: Any, **options: Any) -> requests.Response:  # type: ignore[override]
        if method == "POST":
            options["data"] = options.pop("params")
        response = super().request(method, url, allow_redirects=False, **options)
        try:
            said = response.json()
        except ValueError:
            said = {}
        self.said = said if isinstance(said, dict) else {}
        return response


class PrometheusSource:
    """A MetricSource that asks the Prometheus server at ``url``.

    A reading takes ``timeout_s`` at most. Samples as old as ``lookback_s`` are stale: three scrape
    intervals are a good value. ``headers`` go with every request, for example an authorization.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
        *,
        lookback_s: float = 15.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput("The Prometheus URL must begin with http:// or https://.")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._lookback_s = lookback_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prometheus")

    async def read(self, query: Query, at_s: float) -> Reading:
        def ask(
            client: PrometheusConnect, text: str, limit: Mapping[str, str], timeout_s: float
        ) -> Rows:
            params = {"time": f"{at_s:.3f}", **limit}
            rows = client.custom_query(text, params=params, timeout=timeout_s)  # type: ignore[arg-type]
            return {_ms(at_s): [_Row(dict(r["metric"]), float(r["value"][1])) for r in rows]}

        return (await self._read(query, (at_s,), ask))[0]

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]:
        times = moments(start_s, end_s, step_s)

        return await self._read(query, times, _over(times, step_s))

    async def evaluate(
        self, expression: str, start_s: float, end_s: float, step_s: float, most: int
    ) -> tuple[Line, ...] | Failed:
        """The series of PromQL text over a range, ``most`` of them where the server knows that
        bound; Failed where it cannot be asked or calls its own answer incomplete."""
        times = moments(start_s, end_s, step_s)
        found = await self._answers((expression,), _over(times, step_s, {"limit": str(most)}))
        if isinstance(found, Failed):
            return found
        if found[0].warnings:
            return Failed(reason="; ".join(found[0].warnings))
        return _lines(found[0].rows)

    async def _read(self, query: Query, times: Sequence[float], ask: Ask) -> tuple[Reading, ...]:
        """The readings at the times, all of them Failed where the server could not be asked."""
        try:
            asked = promql(query, self._lookback_s), missed_promql(query, self._lookback_s)
        except BadInput as error:
            return (Failed(reason=str(error)),) * len(times)
        found = await self._answers(asked, ask)
        if isinstance(found, Failed):
            return (found,) * len(times)
        answer, absent = found
        return tuple(_reading(query, at_s, answer, absent) for at_s in times)

    async def _answers(self, asked: tuple[str, ...], ask: Ask) -> tuple[_Answer, ...] | Failed:
        """The answers to all texts, within the one deadline."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, self._ask, asked, ask)
        except (TimeoutError, requests.Timeout):
            fault = f"Prometheus did not answer within {self._timeout_s:g} s"
        except requests.JSONDecodeError:
            fault = _NONSENSE
        except requests.RequestException as error:
            fault = f"Prometheus cannot be reached ({type(error).__name__})"
        except PrometheusApiClientException as error:
            fault = str(error)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            fault = _NONSENSE
        return Failed(reason=fault)

    def close(self) -> None:
        """Let go of the threads; a request under way ends at its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, asked: tuple[str, ...], ask: Ask) -> tuple[_Answer, ...]:
        """All questions over one connection; blocks, at most ``timeout_s`` between two bytes."""
        end_s = time.monotonic() + self._timeout_s
        with (
            _Session() as session,
            PrometheusConnect(
                self._url, headers=self._headers, retry=0, session=session, method="POST"
            ) as client,
        ):
            return tuple(self._answer(client, session, text, ask, end_s) for text in asked)

    def _answer(
        self, client: PrometheusConnect, session: _Session, text: str, ask: Ask, end_s: float
    ) -> _Answer:
        left_s = max(end_s - time.monotonic(), 0.001)
        limit = {"timeout": f"{math.ceil(left_s * 1000)}ms"}
        try:
            rows = ask(client, text, limit, left_s)
        except PrometheusApiClientException as error:
            status = str(error).partition(" (")[0]
            detail = str(session.said.get("error", "no detail"))[:_SHOWN]
            raise PrometheusApiClientException(f"Prometheus refused: {status}, {detail}") from error
        return _Answer(
            rows,
            tuple(str(warning)[:_SHOWN] for warning in session.said.get("warnings") or ()),
        )


def _over(times: Sequence[float], step_s: float, more: Mapping[str, str] | None = None) -> Ask:
    """Asks for the range of these times."""

    def ask(
        client: PrometheusConnect, text: str, limit: Mapping[str, str], timeout_s: float
    ) -> Rows:
        # The client rounds its times to whole seconds, so they are given once more.
        first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (times[0], times[-1]))
        params = {"start": f"{times[0]:.3f}", "end": f"{times[-1]:.3f}", **limit, **(more or {})}
        rows = client.custom_query_range(
            text,
            first,
            last,
            f"{_ms(step_s) / 1000:.3f}",
            params=params,
            timeout=timeout_s,  # type: ignore[arg-type]
        )
        found: dict[int, list[_Row]] = {_ms(at_s): [] for at_s in times}
        for row in rows:
            labels = dict(row["metric"])
            for at_s, value in row["values"]:
                found[_ms(at_s)].append(_Row(labels, float(value)))
        return found

    return ask


def _lines(rows: Rows) -> tuple[Line, ...]:
    """The same by series."""
    points: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for at_ms, at_once in rows.items():
        for row in at_once:
            key = tuple(sorted(row.labels.items()))
            points.setdefault(key, []).append((at_ms / 1000, row.value))
    return tuple(Line(labels=dict(key), points=tuple(each)) for key, each in points.items())


def _ms(at_s: float) -> int:
    return round(at_s * 1000)


def _reading(query: Query, at_s: float, answer: _Answer, absent: _Answer) -> Reading:
    """What the two answers mean together at that time."""
    rows, failed = answer.rows[_ms(at_s)], absent.rows[_ms(at_s)]
    gaps = [missed(row.labels for row in failed)] if failed else []
    reasons = [*gaps, *dict.fromkeys((*answer.warnings, *absent.warnings))]
    tail = "".join(f"; {reason}" for reason in reasons)
    if not rows:
        return NoData(reason=f"{query.metric}: nothing fresh matches{tail}")
    if not all(math.isfinite(row.value) for row in rows):
        return NoData(reason=f"{query.metric}: the answer is not a finite number{tail}")
    series = [
        Series(labels=tuple((name, row.labels.get(name, "")) for name in query.by), value=row.value)
        for row in rows
    ]
    if len({one.labels for one in series}) < len(series):
        return Failed(reason=f"{query.metric}: several series came where one was asked for{tail}")
    sample = Sample(at_s=at_s, series=tuple(sorted(series, key=lambda one: one.labels)))
    return Partial(reason="; ".join(reasons), sample=sample) if reasons else sample
