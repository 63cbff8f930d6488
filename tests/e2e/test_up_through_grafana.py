"""`serinus up` where only a Grafana reaches Prometheus: the rest is real, the engine simulated."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.fakes.grafana import FakeGrafana
from tests.fakes.prometheus import PrometheusServer
from tests.fakes.running_serinus import RunningSerinus, until

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
  - job_name: engines
    static_configs:
      - targets: ["127.0.0.1:{port}"]
        labels: {{arm: production, replica: production-0}}
"""


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    grafana = FakeGrafana()
    yield grafana
    grafana.close()


@pytest.fixture
def serinus(tmp_path: Path, grafana: FakeGrafana) -> Iterator[RunningSerinus]:
    running = RunningSerinus(
        tmp_path,
        autonomy="observe",
        scrape_interval_s=2.0,
        metrics="grafana",
        grafana_url=grafana.url,
        grafana_token=grafana.token,
    )
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def server(tmp_path: Path, serinus: RunningSerinus) -> Iterator[PrometheusServer]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus executable")
    (home := tmp_path / "prometheus").mkdir()
    port = serinus.settings["production_port"]
    server = PrometheusServer(binary, home, CONFIG.format(port=port))
    yield server
    server.stop()


def shape(serinus: RunningSerinus) -> Any:
    url = f"http://127.0.0.1:{serinus.settings['api_port']}/api/status"
    with urlopen(url, timeout=20) as page:
        return json.load(page)["shape"]


def test_a_grafana_that_refuses_is_said_and_one_that_answers_gives_the_shape(
    serinus: RunningSerinus, grafana: FakeGrafana, server: PrometheusServer
) -> None:
    grafana.denied = {"/"}
    serinus.up()
    denied = "There are no metrics yet, and Serinus holds until there are: Grafana denies the token"
    until(lambda: denied in serinus.said(), "the refusal is said", 60, serinus.said)
    serinus.send_traffic()
    assert shape(serinus) is None

    grafana.add_source("fleet", "Fleet", server.url)
    grafana.denied = set()
    until(
        lambda: (seen := shape(serinus)) and seen["running"] > 0 and seen["isl"]["mean"],
        "there is the shape of the traffic",
        60,
        serinus.said,
    )

    told = serinus.command("doctor")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Grafana's data source 'Fleet' (UID fleet), which Serinus reads" in told.stdout
    assert "/metrics, which Serinus does not read: " in told.stdout
    assert serinus.end_traffic().records
    assert grafana.token not in serinus.said() + told.stdout
