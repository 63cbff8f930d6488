"""Asking a Grafana server, within bounds: the one place that makes a client of it.

``grafana-client`` knows the paths. The session it is given takes away what cannot be had beside a
controller: it follows no redirect, which would carry the token elsewhere, reads no proxy and no
netrc from the environment, and ends at its deadline and at a size, however the server dribbles.
No text of the client or of the server leaves this module as an error, for it may hold the token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import niquests
from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaException, GrafanaTimeoutError
from niquests.exceptions import RequestException, Timeout, TooManyRedirects

from domain.errors import BadInput, SerinusError, Temporary
from tools.trust import authorities

TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 8_000_000
_AT_ONCE: Final = 6
Answer = TypeVar("Answer", list[Any], dict[str, Any])
Client: TypeAlias = Any  # the methods of the library's clients carry no types


class Denied(BadInput):
    """Grafana knows the token, and does not let it do what was asked."""


class _TooLarge(RequestException):
    pass


class _Session(niquests.Session):
    """Reads an answer whole before it hands it over: within ``timeout_s``, and within a size."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.trust_env = False
        self._timeout_s = timeout_s

    def request(self, method: Any, url: Any, **options: Any) -> niquests.Response:  # type: ignore[override]
        end_s = time.monotonic() + self._timeout_s
        options |= {"allow_redirects": False, "stream": True}
        response: niquests.Response = super().request(method, url, **options)
        if response.is_redirect:
            response.close()
            raise TooManyRedirects
        # An answer that is not read to its end would keep its connection open.
        with closing(response):
            body = _read(response, end_s)
        response._content = bytes(body)  # a streamed answer has no other way to keep what was read
        return response


def _read(response: niquests.Response, end_s: float) -> bytearray:
    body = bytearray()
    for chunk in response.iter_content(-1):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _TooLarge
        if time.monotonic() > end_s:
            raise Timeout
    return body


def connected(url: str, token: str, timeout_s: float = TIMEOUT_S) -> Client:
    """A client of the server at ``url`` with such a session, which the caller closes.

    Both are always given: the client alone would log in to a local server with its factory
    password.
    """
    api: Client = GrafanaApi.from_url(url.rstrip("/") + "/", credential=token, timeout=timeout_s)
    api.client.s.close()
    api.client.s = _Session(timeout_s)
    api.client.verify = authorities()
    return api


def checked(url: str, token: str) -> None:
    """Refuse an address or a token that cannot be one."""
    if not url.startswith(("http://", "https://")):
        raise BadInput("The Grafana URL must begin with http:// or https://.")
    if "@" in urlsplit(url).netloc:
        raise BadInput("The Grafana URL must hold no user and password; give a token instead.")
    if not token:
        raise BadInput("Grafana needs a service account's token.")


class Grafana:
    """Reads a Grafana server; it writes nothing. Safe to use at once from several tasks.

    An answer takes ``timeout_s`` at most, and nothing is retried. Raises Temporary where the server
    is down or late, Denied where the token may not, and BadInput where a setting must be mended.
    """

    def __init__(self, url: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        checked(url, token)
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @property
    def headers(self) -> dict[str, str]:
        """What authorises a request to this server; a secret."""
        return {"Authorization": f"Bearer {self._token}"}

    async def ask(
        self, what: str, call: Callable[[Client], Any], kind: type[Answer], needs: str
    ) -> Answer:
        """What ``call`` returns, which must be of this ``kind``.

        ``what`` tells people what was asked for, and ``needs`` which permission that takes.
        """
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await asyncio.to_thread(self._call, call)
            except Exception as error:  # whatever the client leaks
                raise self._fault(what, error, needs) from None
        if not isinstance(answer, kind):
            raise BadInput(
                f"What answers at grafana_url when asked for {what} is not Grafana's API; "
                "set grafana_url to the address of Grafana itself."
            )
        return answer

    def _call(self, call: Callable[[Client], Any]) -> Any:
        api = connected(self.url, self._token, self._timeout_s)
        with closing(api.client.s):
            return call(api)

    def _fault(self, what: str, error: Exception, needs: str) -> SerinusError:
        late = Temporary(f"Grafana did not answer within {self._timeout_s:g} s.")
        match error:
            case GrafanaTimeoutError() | TimeoutError() | Timeout():
                return late
            case TooManyRedirects():
                return BadInput(
                    "Grafana answers with a redirect; set grafana_url to where it leads."
                )
            case _TooLarge():
                return Temporary(f"Grafana's answer for {what} is too large to read.")
            case GrafanaException(status_code=401):
                return BadInput(
                    "Grafana refuses the token (HTTP 401); set grafana_token to a valid token of "
                    "a service account."
                )
            case GrafanaException(status_code=403):
                return Denied(
                    f"Grafana denies the token {what} (HTTP 403); give its service account the "
                    f"permission {needs}."
                )
            case GrafanaException(status_code=404):
                return BadInput(
                    f"Grafana does not know {what} (HTTP 404); check grafana_url, with its path "
                    "if it has one."
                )
            case GrafanaException(status_code=int(code)) if code:
                return Temporary(f"Grafana answered with HTTP {code} when asked for {what}.")
            case ValueError():
                return BadInput(
                    "What answers at grafana_url is not Grafana's API; set grafana_url to the "
                    "address of Grafana itself."
                )
        return Temporary(f"Grafana cannot be reached ({type(error).__name__}).")
