"""A real Prometheus server for tests: started, fed with exact samples, stopped.

Samples go in by the remote-write protocol, the only way to hand a server stale markers with exact
times. Its message is small enough to be written here.
"""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.fakes.loopback import free_port

STALE = 0x7FF0_0000_0000_0002
_READY_S = 20.0

Series = Mapping[tuple[tuple[str, str], ...], Sequence[tuple[int, float | None]]]


class PrometheusServer:
    """One server on a free loopback port, its data in ``home``."""

    def __init__(self, binary: str, home: Path, config: str = "") -> None:
        (home / "prometheus.yml").write_text(config or "global: {}\n")
        self._address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self._address}"
        self._binary = binary
        self._home = home
        self.start()

    def start(self) -> None:
        """Run it, at its address and with its data, also after a ``stop``."""
        self._log = (self._home / "log").open("ab")
        self._process = subprocess.Popen(
            [
                self._binary,
                f"--config.file={self._home / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._home / 'data'}",
                f"--web.listen-address={self._address}",
                "--web.enable-remote-write-receiver",
                "--web.enable-lifecycle",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def write(self, series: Series) -> None:
        """Store samples: times in milliseconds, values, ``None`` for a stale marker."""
        message = b"".join(_field(1, _timeseries(k, samples)) for k, samples in series.items())
        response = httpx.post(
            f"{self.url}/api/v1/write",
            content=_snappy(message),
            headers={
                "Content-Encoding": "snappy",
                "Content-Type": "application/x-protobuf",
                "X-Prometheus-Remote-Write-Version": "0.1.0",
            },
            trust_env=False,
        )
        assert response.status_code == 204, response.text

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._log.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/-/ready", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.stop()
        raise TimeoutError("Prometheus was not ready in time")


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _timeseries(
    labels: tuple[tuple[str, str], ...], samples: Sequence[tuple[int, float | None]]
) -> bytes:
    out = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels)
    )
    for at_ms, value in samples:
        bits = struct.pack("<Q", STALE) if value is None else struct.pack("<d", value)
        out += _field(2, b"\x09" + bits + b"\x10" + _varint(at_ms))
    return out


def _snappy(data: bytes) -> bytes:
    """The block format with literals only."""
    out = _varint(len(data))
    for start in range(0, len(data), 0x10000):
        chunk = data[start : start + 0x10000]
        out += b"\xf4" + struct.pack("<H", len(chunk) - 1) + chunk
    return out
