"""A small Grafana for tests: its public API over real HTTP, in front of real Prometheus servers.

It knows one token, and refuses as Grafana does: 401 for a token it does not know, 403 for what a
role may not, 404 for a UID that is none, 502 where the server behind a data source is down. Its
data-source proxy passes on only the paths that Grafana's own does, and never the token. Refusals
echo the token, which a real server would not, so that a test sees whether it is passed on.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

TOKEN = "glsa_hush-hush"
_PROXIED = {"GET": ("api/v1/",), "POST": ("api/v1/query", "api/v1/series", "api/v1/labels")}


@dataclass(frozen=True)
class Seen:
    """One request that came in, and the headers that its data source was sent, if any."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    passed_on: Mapping[str, str] = field(default_factory=dict)


class FakeGrafana:
    """Listens on a free loopback port until ``close``. ``denied`` holds paths below /api, by their
    beginning, that the token's role may not ask for."""

    def __init__(self, prefix: str = "", token: str = TOKEN) -> None:
        self.token = token
        self.denied: set[str] = set()
        self.seen: list[Seen] = []
        self.sources: list[dict[str, Any]] = []
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.alerts: Any = []
        self._prefix = prefix
        self._behind = httpx.Client(trust_env=False, verify=False)
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}{prefix}"

    def add_source(self, uid: str, name: str, url: str = "", type: str = "prometheus") -> None:
        self.sources.append(
            {"id": len(self.sources) + 1, "uid": uid, "name": name, "type": type, "url": url}
        )

    def add_dashboard(self, uid: str, title: str, *panels: Any, **more: Any) -> None:
        self.dashboards[uid] = {"uid": uid, "title": title, "panels": list(panels), **more}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._behind.close()

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, bytes]:
        if not path.startswith(f"{self._prefix}/api/"):
            return _said(404, "Not found")
        path = path.removeprefix(f"{self._prefix}/api")
        given = headers.get("Authorization", "")
        if path == "/health":
            return 200, json.dumps({"database": "ok", "version": "13.0.0"}).encode()
        if given != f"Bearer {self.token}":
            return _said(401, f"Invalid API key: {given}")
        if any(path.startswith(denied) for denied in self.denied):
            return _said(403, f"You'll need additional permissions to perform this action: {given}")
        if path.startswith("/datasources/proxy/uid/"):
            return self._proxied(method, path, query, headers, body)
        self.seen.append(Seen(method, path, query))
        match path.split("/")[1:]:
            case ["datasources"]:
                return _json(self.sources)
            case ["frontend", "settings"]:
                return _json({"datasources": {source["name"]: source for source in self.sources}})
            case ["prometheus", "grafana", "api", "v1", "alerts"]:
                return _json({"status": "success", "data": {"alerts": self.alerts}})
            case ["search"]:
                return _json(self._page(query))
            case ["dashboards", "uid", uid] if unquote(uid) in self.dashboards:
                return _json({"meta": {}, "dashboard": self.dashboards[unquote(uid)]})
        return _said(404, "Not found")

    def _page(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        limit, page = int(query["limit"][0]), int(query["page"][0])
        rows = [
            {"type": "dash-db", **{key: one.get(key) for key in ("uid", "title", "tags")}}
            for one in self.dashboards.values()
        ]
        return rows[limit * (page - 1) : limit * page]

    def _proxied(
        self, method: str, path: str, query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, bytes]:
        uid, _, rest = path.removeprefix("/datasources/proxy/uid/").partition("/")
        found = [source for source in self.sources if source["uid"] == unquote(uid)]
        if not found:
            return _said(404, "Data source not found")
        if not rest.startswith(_PROXIED[method]):
            return _said(403, f"non allow-listed {method}s not allowed on proxied data source")
        passed = {"Content-Type": headers.get("Content-Type", "")}
        self.seen.append(Seen(method, path, query, passed))
        try:
            answer = self._behind.request(
                method,
                f"{found[0]['url']}/{rest}",
                params=query,
                content=body,
                headers=passed,
            )
        except httpx.TransportError:
            return _said(502, "Bad Gateway")
        return answer.status_code, answer.content


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a client that was killed; all else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _json(value: object) -> tuple[int, bytes]:
    return 200, json.dumps(value).encode()


def _said(status: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"message": message, "traceID": ""}).encode()


def _handler(grafana: FakeGrafana) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = grafana.answer(
                self.command, asked.path, parse_qs(asked.query), self.headers, body
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            """Nothing: a test's output is not a server's log."""

    return Handler
