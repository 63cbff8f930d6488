"""Who asks, and from where: host names, origins and tokens. It decides no question of the domain.

A web page that a person has open elsewhere must not be able to read from here or act through them:
the Host header stops DNS rebinding, the Origin header stops forged requests.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api.errors import Forbidden, Unauthenticated, answer

COOKIE = "serinus_token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Access:
    """Names the Actor of a request, by ``tokens`` (token → actor).

    Without tokens everybody on this machine is the actor ``local``, and nobody else gets in.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = {token.encode(): actor for token, actor in tokens.items()}

    def actor(self, request: Request) -> str:
        """Unauthenticated without a known token; Forbidden from afar where there are none."""
        if not self._tokens:
            if not _is_loopback(request):
                raise Forbidden("Serinus has no API tokens set, so it answers this machine only.")
            return "local"
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        token = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        return self.actor_of(token)

    def actor_of(self, token: str) -> str:
        """Every token is compared in full, so that timing tells nothing."""
        given = token.strip().encode()
        found = [a for known, a in self._tokens.items() if hmac.compare_digest(known, given)]
        if not found:
            raise Unauthenticated("This needs a known API token.")
        return found[0]


class Gatekeeper:
    """Middleware that lets in requests to known hosts, and changes only from its own pages."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        app = self._app if refusal is None else answer(refusal)
        await app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> Forbidden | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts:
            return Forbidden("This host name is not one of Serinus' own; add it to its hosts.")
        if method in _SAFE:
            return None
        # Programs send neither header; browsers send at least one with every change.
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and urlsplit(origin).netloc.lower() != host) or (
            site not in ("same-origin", "none")
        ):
            return Forbidden("A change must come from Serinus' own page or from a program.")
        return None


def _is_loopback(request: Request) -> bool:
    if request.client is None:
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
