"""A server with a certificate of a company's own authority is read where the machine trusts it."""

import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.metrics import Failed, Sample
from tools import queries
from tools.grafana_api import Grafana
from tools.grafana_source import GrafanaSource

QUERY = queries.now(queries.RUNNING)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return tmp_path / "cert.pem"


@pytest.fixture
def server(certificate: Path) -> Iterator[HTTPServer]:
    """A Grafana with one data source."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server = HTTPServer(host="127.0.0.1", ssl_context=context)
    server.start()
    server.expect_request("/api/datasources").respond_with_json(
        [{"uid": "p", "name": "P", "type": "prometheus"}]
    )

    def answer(request: Request) -> Response:
        rows = [] if request.form["query"].startswith("(up") else [{"metric": {}, "value": [1, 3]}]
        data = {"resultType": "vector", "result": rows}
        return Response(json.dumps({"status": "success", "data": data}))

    proxied = "/api/datasources/proxy/uid/p/api/v1/query"
    server.expect_request(proxied).respond_with_handler(answer)
    yield server
    server.clear()
    server.stop()


@pytest.mark.parametrize("kind", ["file", "folder", "none"])
async def test_who_is_trusted_is_the_machines_matter(
    server: HTTPServer, certificate: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Both clients are asked: one lists the data sources, the other reads through one."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    if kind == "file":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    elif kind == "folder":
        (folder := certificate.parent / "trusted").mkdir()
        shutil.copy(certificate, folder)
        subprocess.run(["openssl", "rehash", str(folder)], check=True, capture_output=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "none"))
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    source = GrafanaSource(Grafana(server.url_for("/"), "token"), lookback_s=15.0)
    reading = await source.read(QUERY, 1.0)
    source.close()
    if kind == "none":
        assert isinstance(reading, Failed)
        assert "Error)" in reading.reason
    else:
        assert isinstance(reading, Sample), reading
        assert reading.total() == 3
