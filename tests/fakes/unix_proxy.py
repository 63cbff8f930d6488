"""A proxy on HAProxy's control socket that takes changes of the weight and makes none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from canary.gateways.haproxy_config import CONTROL_SOCKET

ACCEPT_S = 0.1


@contextmanager
def unmoved_weight(directory: Path) -> Iterator[None]:
    """While it lasts, HAProxy in ``directory`` answers all and keeps its weight as it is."""
    path, real = directory / CONTROL_SOCKET, directory / f"{CONTROL_SOCKET}.real"
    path.rename(real)
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(ACCEPT_S)

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    client, _ = listener.accept()
                    with client, suppress(OSError):
                        client.settimeout(None)
                        _answer(client, real)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield
        finally:
            over.set()
            serving.join()
            real.rename(path)


def _answer(client: socket.socket, real: Path) -> None:
    asked = b""
    while not asked.endswith(b"\n"):
        if not (read := client.recv(4096)):
            return
        asked += read
    if asked.startswith(b"set map"):
        client.sendall(b"\n")
        return
    with socket.socket(socket.AF_UNIX) as haproxy:
        haproxy.connect(str(real))
        haproxy.sendall(asked)
        while read := haproxy.recv(65536):
            client.sendall(read)
