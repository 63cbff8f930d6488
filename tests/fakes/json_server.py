"""An HTTP server on loopback, in a thread, whose answers a test changes while it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """``path`` with its query; ``headers`` in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "application/json"


@contextmanager
def served(answer: Callable[[Asked], Answer]) -> Iterator[str]:
    """Its URL; ``answer`` is called in a thread for each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(length)
            given = answer(Asked(self.command, self.path, headers, body))
            # Who asked may have gone away meanwhile.
            with suppress(ConnectionError):
                self.send_response(given.status)
                self.send_header("content-type", given.content_type)
                self.send_header("content-length", str(len(given.body)))
                self.end_headers()
                self.wfile.write(given.body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
