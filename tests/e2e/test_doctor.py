"""`serinus doctor` as a person types it: a real Prometheus, behind a Grafana or not, or nothing."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner, Result

from agent.cli import app
from agent.store import migrate, open_store
from domain.errors import BadInput
from domain.fleet import Role, Slot
from domain.language import Tokens
from tests.fakes.fleet_history import OURS, write_history
from tests.fakes.grafana import TOKEN, FakeGrafana
from tests.fakes.language import ChatServer, completion
from tests.fakes.loopback import free_port
from tests.fakes.metrics import FakeEngineMetrics
from tests.fakes.prometheus import PrometheusServer
from tests.fakes.running_serinus import RunningSerinus
from tests.fakes.stuck import stuck_server
from tests.fakes.users_haproxy import UsersHAProxy
from tools.queries import FINISHED, PREFIX_HITS, RUNNING, TPOT, TTFT

CALM = {
    "served_model_name": "m",
    "window_s": 60.0,
    "scrape_interval_s": 20.0,  # samples are written once, and must be fresh until they are read
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrometheusServer]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus executable")
    (home := tmp_path / "prometheus").mkdir()
    server = PrometheusServer(binary, home)
    yield server
    server.stop()


@pytest.fixture
def grafana(server: PrometheusServer) -> Iterator[FakeGrafana]:
    grafana = FakeGrafana()
    grafana.add_source("logs", "Loki", type="loki")
    grafana.add_source("metrics", "Fleet metrics", server.url)
    yield grafana
    grafana.close()


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., Result]:
    """Run it in this process, which saves seconds of imports; its errors are raised."""
    serinus = RunningSerinus(tmp_path, **CALM)

    def run(*words: str, **changes: Any) -> Result:
        config = serinus.write("changed.toml", **changes)
        return CliRunner().invoke(app, ["doctor", "--config", str(config), *words])

    return run


def through(grafana: FakeGrafana) -> dict[str, str]:
    return {"metrics": "grafana", "grafana_url": grafana.url, "grafana_token": grafana.token}


def directly(server: PrometheusServer) -> dict[str, str]:
    return {"metrics": "prometheus", "prometheus_url": server.url}


def used(document: Mapping[str, Any]) -> Mapping[str, Any]:
    [place] = [place for place in document["places"] if place["used"]]
    return place


def states(document: Mapping[str, Any]) -> dict[str, str]:
    return {row["signal"]: row["state"] for row in used(document)["signals"]}


def line(result: Result, signal: str) -> int:
    """The number of the line that tells of the signal."""
    [at] = [n for n, text in enumerate(result.output.splitlines()) if text[13:44].strip() == signal]
    return at


def test_all_signals_are_found_through_grafana_with_their_panels(
    tmp_path: Path, server: PrometheusServer, grafana: FakeGrafana
):
    write_history(server, end_s=time.time())
    grafana.add_dashboard(
        "vllm",
        "vLLM",
        {"title": "TTFT", "targets": [{"expr": f'rate({TTFT.bucket}{{job="vllm-prod"}}[5m])'}]},
        {"title": "Load", "targets": [{"expr": f'{RUNNING}{{job="vllm-prod",gpu="$gpu"}}'}]},
    )
    serinus = RunningSerinus(tmp_path, **CALM, **through(grafana))
    told, written = serinus.command("doctor"), serinus.command("doctor", "--json")
    assert (told.returncode, told.stderr) == (0, ""), told.stdout
    assert "Grafana's data source 'Fleet metrics' (UID metrics), which Serinus reads" in told.stdout
    assert "panel 'TTFT' of 'vLLM'" in told.stdout
    assert "2 queries of panels on 1 dashboards ask" in told.stdout
    assert "with job='vllm-prod'" in told.stdout
    assert told.stdout.endswith("All that is required was found.\n")

    document = json.loads(written.stdout)
    assert (written.returncode, document["complete"]) == (0, True)
    assert used(document)["kind"] == "grafana"
    assert set(states(document).values()) == {"found"}
    panels = {row["signal"]: row["panels"] for row in used(document)["signals"]}
    assert panels["ttft"] == ["'TTFT' of 'vLLM'"]
    assert panels["running"] == panels["running now"] == ["'Load' of 'vLLM'"]
    assert document["panels"]["fleet_labels"] == {"job": "vllm-prod"}
    assert TOKEN not in told.stdout + written.stdout
    assert not (serinus.folder / "state").exists(), "it only reads"


def test_what_is_missing_is_told_with_its_price(
    server: PrometheusServer, doctor: Callable[..., Result]
):
    """An older vLLM shows no TPOT; without prefix caching there are no hits."""
    gone = {TPOT.bucket, TPOT.sum, f"{TPOT.family}_count", PREFIX_HITS}
    write_history(server, end_s=time.time(), without=gone)
    result = doctor(**directly(server))
    assert result.exit_code == 1
    lines = result.output.splitlines()
    at = line(result, "tpot")
    assert lines[at].startswith("  missing")
    assert "required" in lines[at]
    assert "rollouts hold" in lines[at + 1]
    at = line(result, "prefix hits")
    assert "optional" in lines[at]
    assert "share no prefixes" in lines[at + 1]
    assert lines[-1].startswith("Required, and not found: tpot, tpot total.")


def test_an_engine_that_two_jobs_scrape_is_told_until_one_is_named(
    server: PrometheusServer, doctor: Callable[..., Result]
):
    end_s = time.time()
    for job in ("vllm-pods", OURS["job"]):
        write_history(server, end_s=end_s, labels={**OURS, "job": job})
    result = doctor(**directly(server))
    assert result.exit_code == 1
    assert result.output.splitlines()[line(result, "finished")].startswith("  doubled")
    assert (
        "Counted more than once: replica 'production-0' is scraped by the jobs 'vllm-pods' and "
        "'vllm-prod': name one of them in metric_labels, such as {job = 'vllm-pods'}."
    ) in result.output
    assert result.output.endswith("Until then nothing is tuned, and rollouts hold.\n")
    named = doctor(**directly(server), **{"metric_labels.job": "vllm-prod"})
    assert named.exit_code == 0, named.output


def test_what_has_gone_silent_is_stale(server: PrometheusServer, doctor: Callable[..., Result]):
    write_history(server, end_s=time.time() - 120)
    result = doctor("--json", **directly(server))
    assert result.exit_code == 1
    document = json.loads(result.output)
    told = states(document)
    assert told["finished"] == told["ttft"] == "stale"
    assert all(row["reason"] for row in used(document)["signals"] if row["state"] == "stale")
    assert "set scrape_interval_s to how often" in doctor(**directly(server)).output


def test_a_short_past_is_told_apart_from_a_missing_signal(
    server: PrometheusServer, doctor: Callable[..., Result]
):
    write_history(server, end_s=time.time(), length_s=30.0)
    result = doctor(**directly(server))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith(
        "Required, and not found: running at the window's start, waiting at the window's start."
    )


def test_a_replica_that_is_down_makes_signals_partial(
    server: PrometheusServer, doctor: Callable[..., Result]
):
    now_ms = round(time.time() * 1000)
    write_history(server, end_s=now_ms / 1000)
    lost = (("__name__", "up"), ("arm", "production"), ("replica", "gone"))
    server.write({lost: [(now_ms, 0.0)]})
    document = json.loads(doctor("--json", **directly(server)).output)
    assert states(document)["finished"] == "partial"
    assert "replica=gone" in used(document)["signals"][0]["reason"]


def test_a_fleet_without_serinus_labels_is_found_by_its_panels(
    server: PrometheusServer, grafana: FakeGrafana, doctor: Callable[..., Result]
):
    theirs = {"job": "vllm-prod", "instance": "gpu7:8000"}
    write_history(server, end_s=time.time(), labels=theirs, model="qwen")
    grafana.add_dashboard(
        "vllm", "vLLM", {"title": "Done", "targets": [{"expr": f'{FINISHED}{{job="vllm-prod"}}'}]}
    )
    result = doctor(**through(grafana))
    assert result.exit_code == 1
    assert f"{FINISHED} is there, but not under the labels asked for" in result.output
    assert "the engines there have arm='' model_name='qwen'" in result.output
    grafana.add_dashboard(
        "ks", "K", {"title": "X", "targets": [{"expr": "sum(kserve_vllm:num_requests_running)"}]}
    )
    grafana.add_dashboard(
        "other", "Other", {"title": "X", "targets": [{"expr": f'{FINISHED}{{job="other"}}'}] * 1}
    )
    told = doctor(**through(grafana)).output
    assert "The panels differ on job: " in told
    assert "Panels ask for kserve_vllm:num_requests_running: something renames" in told


def test_of_two_fleets_in_one_server_only_ours_counts(
    server: PrometheusServer, doctor: Callable[..., Result]
):
    """They have the same arm and model, and an engine of theirs is down."""
    now_s = time.time()
    write_history(server, end_s=now_s, labels={**OURS, "cluster": "eu"})
    lost = (("__name__", "up"), ("arm", "production"), ("cluster", "us"))
    server.write({lost: [(round(now_s * 1000), 0.0)]})
    assert "  partial    finished" in doctor(**directly(server)).output
    ours = doctor(**directly(server), **{"metric_labels.cluster": "eu"})
    assert ours.exit_code == 0, ours.output
    none = doctor(**directly(server), **{"metric_labels.cluster": "asia"})
    assert "  missing    finished" in none.output


def test_the_engine_itself_is_looked_at(doctor: Callable[..., Result], httpserver: HTTPServer):
    engine = FakeEngineMetrics("m")
    engine.finish(5)
    httpserver.expect_request("/metrics").respond_with_data(engine.text())
    result = doctor("--json", metrics="scrape", production_port=httpserver.port)
    document = json.loads(result.output)
    assert result.exit_code == 0, result.output
    assert used(document)["kind"] == "scrape"
    assert states(document)["draft tokens"] == "missing"
    [taken] = [check for check in document["checks"] if not check["good"]]
    assert f"{httpserver.port} (production_port)" in taken["sentence"]


def test_of_several_replicas_the_one_that_is_not_there_is_told(
    doctor: Callable[..., Result], httpserver: HTTPServer
):
    engine, lost = FakeEngineMetrics("m"), free_port()
    engine.finish(5)
    httpserver.expect_request("/metrics").respond_with_data(engine.text())
    replicas = {"production_port": lost, "further_replicas": [{"port": httpserver.port}]}
    document = json.loads(doctor("--json", metrics="scrape", **replicas).output)
    assert f"127.0.0.1:{lost}/metrics, http://127.0.0.1:{httpserver.port}" in used(document)["name"]
    assert states(document)["finished"] == "partial"
    [row] = [row for row in used(document)["signals"] if row["signal"] == "finished"]
    assert "replica=production-0" in row["reason"]
    assert "production-1" not in row["reason"]
    assert not document["complete"]


@pytest.mark.parametrize("silent", [False, True], ids=["nothing there", "silent"])
def test_with_everything_down_it_ends_and_says_so(tmp_path: Path, silent: bool):
    """The silent servers never answer, so that an end at all proves the deadline."""
    with ExitStack() as stack:
        urls = ["http://127.0.0.1:9", "http://127.0.0.1:9"]
        if silent:
            urls = [stack.enter_context(stuck_server(dribbling=False)) for _ in urls]
        changes = {"metrics": "grafana", "prometheus_url": urls[0], "grafana_url": urls[1]}
        serinus = RunningSerinus(tmp_path, **changes, grafana_token=TOKEN)
        told = serinus.command("doctor")
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout.count("did not answer within 5 s" if silent else "cannot be reached") == 3
    assert "no engine answers there" in told.stdout
    assert "Required, and not found: all metrics." in told.stdout
    assert TOKEN not in told.stdout


def test_what_an_engine_starts_from_is_looked_at(doctor: Callable[..., Result]):
    result = doctor(executable="/nowhere/vllm", model="/nowhere/model", gpus="none")
    assert result.exit_code == 1
    assert "'/nowhere/vllm' does not exist; set executable" in result.output
    assert "set model to" in result.output
    assert "what an engine starts from" in result.output.splitlines()[-1]


def test_a_haproxy_of_ones_own_is_looked_at(tmp_path: Path, doctor: Callable[..., Result]):
    (tmp_path / "theirs").mkdir()
    slots = tuple(Slot(name=f"{role.value}-0", role=role, port=free_port()) for role in Role)
    theirs = UsersHAProxy(tmp_path / "theirs", port=free_port(), slots=slots)
    theirs.write(lambda config: config.replace("serinus_production", "other"))
    own = {
        "haproxy_socket": str(theirs.socket),
        "production_port": slots[0].port,
        "canary_port": slots[1].port,
    }
    assert "admin.sock is closed." in doctor(**own).output
    try:
        theirs.launch()
        lacking = doctor(**own).output
        theirs.write()
        theirs.reload()
        complete = doctor(**own).output
    finally:
        theirs.kill()
    assert "Your HAProxy has no backend serinus_production with a server; `serinus" in lacking
    assert "the gateway" in lacking.splitlines()[-1]
    assert f"Your HAProxy at {theirs.socket} has all that Serinus drives it by." in complete
    assert "the gateway" not in complete.splitlines()[-1]
    assert not (tmp_path / "state").exists(), "it only reads"


def test_the_language_model_is_asked_how_it_gives_json(
    doctor: Callable[..., Result], tmp_path: Path, httpserver: HTTPServer
):
    ChatServer(httpserver, [completion('{"canary": "sings"}')])
    (key := tmp_path / "key").write_text("sk-never-to-be-seen", encoding="utf-8")
    asked = {"planner": "model", "model_name": "small", "model_api_key_file": str(key)}
    host = f"{httpserver.host}:{httpserver.port}"
    told = doctor(**asked, model_base_url=f"http://me:secret@{host}/v1").output
    found = f"The language model 'small' at http://{host}/v1 holds its answers to a JSON schema."
    assert found in told.splitlines()
    assert "secret" not in told and "sk-never" not in told

    migrate(f"sqlite:///{tmp_path / 'serinus.db'}")
    with open_store(f"sqlite:///{tmp_path / 'serinus.db'}") as store, store.work() as uow:
        tokens = Tokens(read=1_000_000, written=500_000)
        uow.language_spending.begin(time.time(), subject="", purpose="test", most=tokens)
        uow.commit()
    url = f"sqlite:///{tmp_path / 'serinus.db'}"
    told = doctor(
        **asked, model_base_url="http://127.0.0.1:9", database_url=url, model_price_in=2.0
    )
    assert "does not answer (It could not be asked (APIConnectionError))" in told.output
    assert "cost 1,500,000 tokens (2.0000 by your prices), of at most 1,000,000." in told.output


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, grafana: FakeGrafana):
    wrong = {**through(grafana), "grafana_token": "glsa_hush-wrong"}
    told = RunningSerinus(tmp_path, **wrong).command("doctor")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        "Grafana refuses the token (HTTP 401); set grafana_token to a valid token of a service "
        "account.\n"
    )


def test_a_grafana_for_annotations_alone_is_no_reason_to_stop(
    server: PrometheusServer, grafana: FakeGrafana, doctor: Callable[..., Result]
):
    write_history(server, end_s=time.time(), labels=OURS)
    grafana.denied = {"/"}
    result = doctor(**{**through(grafana), **directly(server)})
    assert result.exit_code == 0, result.output
    assert "which Serinus does not read: Grafana denies the token" in result.output
    assert "Dashboards were not read: Grafana denies the token" in result.output


def test_the_data_source_must_be_of_prometheus(grafana: FakeGrafana, doctor: Callable[..., Result]):
    result = doctor(**through(grafana), grafana_datasource="Loki")
    assert isinstance(result.exception, BadInput)
    assert "'Loki' (UID logs) is of type loki" in str(result.exception)
