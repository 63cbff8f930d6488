"""The files for Docker, Prometheus and Grafana: well-formed, on loopback, of metrics that exist.

No container is started here: what an image does with these files is not covered.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from agent.settings import Settings
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.topology import Listening
from domain.fleet import Role, Slot
from tests.fakes.loopback import free_port
from tools.queries import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOOPBACK = re.compile(r"(http://)?127\.0\.0\.1(:\d+)?")
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


def read(path: Path):
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


@pytest.fixture
def compose():
    return read(ROOT / "docker-compose.yml")


@pytest.fixture
def expressions():
    """Every PromQL expression of the dashboard."""
    dashboard = read(DEPLOY / "grafana/dashboards/serinus.json")
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def named(expressions, prefix):
    return {name for text in expressions for name in re.findall(rf"{prefix}[a-z0-9_]+", text)}


def test_everything_listens_on_loopback_only(compose):
    services = compose["services"]
    assert all(service["network_mode"] == "host" for service in services.values())
    assert not any("ports" in service for service in services.values())
    [listens] = [
        word.partition("=")[2]
        for word in services["prometheus"]["command"]
        if word.startswith("--web.listen-address")
    ]
    addresses = [
        listens,
        services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"],
        services["serinus"]["environment"]["SERINUS_PROMETHEUS_URL"],
        read(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["url"],
    ]
    assert [address for address in addresses if not LOOPBACK.fullmatch(address)] == []


def test_no_password_is_written_down(compose):
    environments = [service.get("environment", {}) for service in compose["services"].values()]
    secrets = {
        name: value
        for variables in environments
        for name, value in variables.items()
        if re.search("PASSWORD|TOKEN|SECRET|KEY", name)
    }
    assert secrets
    assert all(value.startswith("${") and ":?" in value for value in secrets.values())


def test_the_variables_are_settings_and_the_files_exist(compose):
    serinus = compose["services"]["serinus"]
    variables = {name for name in serinus["environment"] if name.startswith("SERINUS_")}
    assert variables <= {f"SERINUS_{name.upper()}" for name in DEFAULTS}
    assert (ROOT / serinus["build"]["dockerfile"]).is_file()
    mounts = [m.split(":")[0] for s in compose["services"].values() for m in s["volumes"]]
    assert {mount for mount in mounts if not mount.startswith("./")} == set(compose["volumes"])
    assert all((ROOT / mount).is_dir() for mount in mounts if mount.startswith("./"))


def test_the_image_copies_what_exists():
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    packages = re.search(
        r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert packages is not None
    assert set(re.findall(r'"(\w+)"', packages[1])) <= set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_prometheus_scrapes_each_slot_under_its_arm():
    engines = read(DEPLOY / "prometheus/engines.json")
    assert {(group["labels"]["arm"], *group["targets"]) for group in engines} == {
        (Role.PRODUCTION.arm, f"127.0.0.1:{DEFAULTS['production_port']}"),
        (Role.CANARY.arm, f"127.0.0.1:{DEFAULTS['canary_port']}"),
    }
    jobs = {
        job["job_name"]: job for job in read(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    }
    assert jobs["engines"]["file_sd_configs"][0]["files"] == ["engines.json"]
    [gateway] = jobs["gateway"]["static_configs"]
    assert gateway["targets"] == [f"127.0.0.1:{DEFAULTS['gateway_port'] + 1}"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_configuration():
    told = subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_dashboard_as_rules(expressions, tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "1m")}
        for number, text in enumerate(expressions)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    told = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


def test_the_dashboard_asks_for_known_engine_metrics(expressions):
    asked = named(expressions, "vllm:")
    assert asked
    assert asked - METRICS == set()


async def test_the_dashboard_asks_for_metrics_of_the_gateway(expressions, tmp_path):
    topology = Listening(
        port=free_port(),
        slots=(Slot(name="production-0", role=Role.PRODUCTION, port=free_port()),),
        metrics_port=free_port(),
    )
    gateway = HAProxyGateway(directory=tmp_path / "gateway", topology=topology)
    await gateway.start()
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            shown = (await client.get(topology.metrics_url)).text
    finally:
        await gateway.stop()
    asked = named(expressions, "haproxy_")
    assert asked
    assert asked - named([shown], "haproxy_") == set()


def test_the_dashboard_reads_the_provisioned_data_source():
    source = read(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    dashboard = read(DEPLOY / "grafana/dashboards/serinus.json")
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    assert used == {source["uid"]}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
