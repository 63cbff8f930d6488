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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect

from domain.errors import BadInput
from domain.metrics import Failed, NoData, Partial, Query, Reading, Sample, Series
from tools.completeness import missed
from tools.promql import missed_promql, promql
from tools.trust import authorities

_THREADS: Final = 8
_SHOWN: Final = 200


class _Row(NamedTuple):
    labels: Mapping[str, str]
    value: float


class _Answer(NamedTuple):
    rows: tuple[_Row, ...]
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
        try:
            asked = promql(query, self._lookback_s), missed_promql(query, self._lookback_s)
        except BadInput as error:
            return Failed(reason=str(error))
        late = f"Prometheus did not answer within {self._timeout_s:g} s"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer, absent = await loop.run_in_executor(self._threads, self._ask, asked, at_s)
        except (TimeoutError, requests.Timeout):
            return Failed(reason=late)
        except requests.RequestException as error:
            return Failed(reason=f"Prometheus cannot be reached ({type(error).__name__})")
        except PrometheusApiClientException as error:
            return Failed(reason=str(error))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return Failed(reason="Prometheus answered with something that is no query result")
        return _reading(query, at_s, answer, absent)

    def close(self) -> None:
        """Let go of the threads; a request under way ends at its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, asked: tuple[str, str], at_s: float) -> tuple[_Answer, _Answer]:
        """Both questions over one connection; blocks, at most ``timeout_s`` between two bytes."""
        end_s = time.monotonic() + self._timeout_s
        with (
            _Session() as session,
            PrometheusConnect(
                self._url, headers=self._headers, retry=0, session=session, method="POST"
            ) as client,
        ):
            first, second = (self._answer(client, session, text, at_s, end_s) for text in asked)
            return first, second

    def _answer(
        self, client: PrometheusConnect, session: _Session, text: str, at_s: float, end_s: float
    ) -> _Answer:
        left_s = max(end_s - time.monotonic(), 0.001)
        params = {"time": f"{at_s:.3f}", "timeout": f"{math.ceil(left_s * 1000)}ms"}
        try:
            rows = client.custom_query(text, params=params, timeout=left_s)  # type: ignore[arg-type]
        except PrometheusApiClientException as error:
            status = str(error).partition(" (")[0]
            detail = str(session.said.get("error", "no detail"))[:_SHOWN]
            raise PrometheusApiClientException(f"Prometheus refused: {status}, {detail}") from error
        return _Answer(
            tuple(_Row(dict(row["metric"]), float(row["value"][1])) for row in rows),
            tuple(str(warning)[:_SHOWN] for warning in session.said.get("warnings") or ()),
        )


def _reading(query: Query, at_s: float, answer: _Answer, absent: _Answer) -> Reading:
    """What the two answers mean together."""
    gaps = [missed(row.labels for row in absent.rows)] if absent.rows else []
    reasons = [*gaps, *dict.fromkeys((*answer.warnings, *absent.warnings))]
    tail = "".join(f"; {reason}" for reason in reasons)
    if not answer.rows:
        return NoData(reason=f"{query.metric}: nothing fresh matches{tail}")
    if not all(math.isfinite(row.value) for row in answer.rows):
        return NoData(reason=f"{query.metric}: the answer is not a finite number{tail}")
    series = (
        Series(labels=tuple((name, row.labels.get(name, "")) for name in query.by), value=row.value)
        for row in answer.rows
    )
    sample = Sample(at_s=at_s, series=tuple(sorted(series, key=lambda one: one.labels)))
    return Partial(reason="; ".join(reasons), sample=sample) if reasons else sample
