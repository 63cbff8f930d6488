"""Settings: file, environment, and one sentence for whatever is wrong."""

import pytest

from agent.settings import load
from domain.errors import BadInput
from domain.load import Arrival
from domain.study import Objective

TWO_GPUS = "production_gpu_ids = ['0']\ncanary_gpu_ids = ['1']"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The environment is an input here, so it is set; nothing of our own is patched."""
    monkeypatch.chdir(tmp_path)


def written(tmp_path, text):
    path = tmp_path / "serinus.toml"
    path.write_text(text)
    return path


def test_in_front_of_ones_own_haproxy_the_gateway_listens_nowhere(tmp_path):
    """So an engine may listen where Serinus' gateway would, as vLLM does by default."""
    text = "production_port = 8000\ncanary_port = 8001\nhaproxy_socket = '{}'"
    found = load(written(tmp_path, text.format("/run/haproxy/admin.sock")))
    assert [port for _, port in found.ports] == [8400, 8000, 8001]
    with pytest.raises(BadInput, match="both port 8000"):
        load(written(tmp_path, text.format("")))


def test_environment_outranks_the_file(tmp_path, monkeypatch):
    path = written(
        tmp_path, "gateway_port = 9000\nsteps = [10, 100]\n[baseline]\nmax_num_seqs = 64"
    )
    assert load(path).gateway_port == 9000
    assert load(path).baseline == {"max_num_seqs": 64}
    monkeypatch.setenv("SERINUS_GATEWAY_PORT", "9100")
    monkeypatch.setenv("SERINUS_STEPS", "20, 100")
    assert load(path).gateway_port == 9100
    assert load(path).steps == (20, 100)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gatway_port = 1", "'gatway_port' is not a setting"),
        ("gateway_port = 'x'", "gateway_port is wrong"),
        ("gateway_port = 8400", "are both port 8400"),
        ("slo = 'fast please'", "SLO's term 'fast please' cannot be read"),
        ("launcher = 'podman'", "launcher is wrong"),
        ("gateway = 'nginx'", "'haproxy' or 'envoy'"),
        ("gateway = 'envoy'\ngateway_log = true", "only haproxy keeps such a log"),
        ("haproxy_socket = '127.0.0.1:9999'", "the absolute path of a Unix socket"),
        ("haproxy_socket = '/run/a.sock'\ngateway = 'envoy'", "set gateway to haproxy"),
        ("haproxy_socket = '/run/a.sock'\ngateway_log = true", "turn gateway_log off"),
        ("metrics = 'influx'", "'scrape', 'prometheus' or 'grafana'"),
        ("metrics = 'prometheus'", "prometheus_url is empty"),
        ("metrics = 'grafana'", "grafana_url is empty"),
        ("window_s = 20\nscrape_interval_s = 15", "no window would hold two scrapes"),
        ("metric_labels = {cluster = 'eu'}", "metrics is scrape; remove it"),
        ("metric_labels = {'a-b' = 'eu'}", "a-b is no label's name"),
        ("metric_labels = {arm = 'eu'}", "asks for arm itself"),
        ("planner = 'model'", "model_base_url or model_name is empty"),
        ("steps = [5, 50]", "end at 100"),
        ("steps = [50, 5, 100]", "rise"),
        ("production_gpu_ids = ['0']\ncanary_gpu_ids = ['0']", "GPU 0 is given to production and"),
        ("grafana_url = 'http://g'", "grafana_token"),
        ("trial_budget = 1", "trial_budget is wrong"),
        ("canary_minutes_a_day = -1", "canary_minutes_a_day is wrong (got '-1')"),
        ("canary_minutes_a_study = nan", "canary_minutes_a_study is wrong"),
        ("trial_requests = 20", "trial_requests is 20, fewer than the 50 of min_requests"),
        ("trial_tokens = -1", "trial_tokens is wrong (got '-1')"),
        ("request_timeout_s = 0", "request_timeout_s is wrong (got '0')"),
        ("shards = -1", "shards is wrong (got '-1')"),
        ("shards = 'many'", "shards is wrong (got 'many')"),
        ("requests_log = ''", "requests_log is wrong (got '')"),
        ("arrivals = 'bursty'", "arrivals is wrong"),
        (
            "arrivals = 'open'\nobjective = 'throughput'",
            "arrivals is open, and of a load that comes",
        ),
        ("trace = 't.jsonl'\nobjective = 'throughput'", "a trace is given, and of a load"),
        ("load_levels = [2, 4]", "load_levels is wrong"),
        ("load_levels = []", "must begin at 1, the live load"),
        ("load_levels = [1, 4, 2]", "and rise"),
        ("load_levels = [1, 2, 2]", "and rise"),
        ("load_levels = [1, nan]", "rise to 100 at most"),
        ("load_levels = [1, 101]", "rise to 100 at most"),
        ("load_levels = [1, inf]", "rise to 100 at most"),
        ("search_lanes = [{port = 8201}]", "search_lanes and canary_port are both port 8201"),
        ("search_lanes = [{port = 8202}, {port = 8202}]", "both port 8202"),
        ("search_lanes = [{gpu_ids = ['1']}]", "search_lanes.0.port is wrong"),
        ("search_lanes = [{port = 8202, gpu = '1'}]", "search_lanes.0.gpu"),
        (
            f"{TWO_GPUS}\nsearch_lanes = [{{port = 8202}}]",
            "Lane 1 of search_lanes has 0 GPUs and canary_gpu_ids 1",
        ),
        (
            f"{TWO_GPUS}\nsearch_lanes = [{{port = 8202, gpu_ids = ['0']}}]",
            "GPU 0 of lane 1 of search_lanes is given away",
        ),
        (
            f"{TWO_GPUS}\nsearch_lanes = [{{port = 8202, gpu_ids = ['2']}}, "
            "{port = 8203, gpu_ids = ['2']}]",
            "GPU 2 of lane 2 of search_lanes is given away",
        ),
        (
            "executable = 'vllm'\ngpus = 'none'\nsearch_lanes = [{port = 8202}]",
            "would share the CPU's cores",
        ),
        ("further_replicas = [{port = 8201}]", "canary_port and further_replicas are both port"),
        (
            "further_replicas = [{port = 8102}]\nsearch_lanes = [{port = 8102}]",
            "search_lanes and further_replicas are both port 8102",
        ),
        ("further_replicas = [{port = 8102, gpu = '1'}]", "further_replicas.0.gpu"),
        (
            f"{TWO_GPUS}\nfurther_replicas = [{{port = 8102}}]",
            "Replica 1 of further_replicas has 0 GPUs and production_gpu_ids 1",
        ),
        (
            f"{TWO_GPUS}\nfurther_replicas = [{{port = 8102, gpu_ids = ['1']}}]",
            "GPU 1 of replica 1 of further_replicas is given away",
        ),
        (
            f"{TWO_GPUS}\nfurther_replicas = [{{port = 8102, gpu_ids = ['2']}}]\n"
            "search_lanes = [{port = 8202, gpu_ids = ['2']}]",
            "GPU 2 of lane 1 of search_lanes is given away",
        ),
        (
            "executable = 'vllm'\ngpus = 'none'\nfurther_replicas = [{port = 8102}]",
            "further_replicas has engines and gpus is 'none'",
        ),
        ("in_place = true\nautonomy = 'autonomous'", "a person must approve it; set autonomy"),
        ("objective = 'cost'", "load_levels has the live load alone; set it to 1,2,4"),
        (
            "trace = 't.jsonl'\nload_levels = [1, 2]",
            "A trace is given, which is repeated",
        ),
        ("executable = 'vllm'", "production_gpu_ids is empty"),
        ("executable = 'vllm'\nproduction_gpu_ids = ['0']", "canary_gpu_ids is empty"),
        ("engine_args = ['--host', '0.0.0.0']", "--host is given by Serinus itself"),
        ("engine_args = '--port=1'", "--port is given by Serinus itself"),
        ("engine_args = ['--hos', '0.0.0.0']", "--hos is given by Serinus itself"),
        ("api_tokens = {alice = ''}", "no name and no token may be empty"),
        ("api_tokens = {alice = 'x', bob = 'x'}", "a token of their own"),
        ("prometheus_url = 'nonsense'", "begins with http"),
        ("timezone = 'Mars'", "like Europe/Berlin"),
        ("state_dir = ''", "a folder of its own"),
        ("cycle_s = inf", "cycle_s is wrong"),
        ("bake_s = 1e300", "bake_s is wrong"),
        ("= nonsense", "not valid TOML"),
    ],
)
def test_each_wrong_setting_is_named(tmp_path, text, sentence):
    with pytest.raises(BadInput) as caught:
        load(written(tmp_path, text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_variable_and_missing_file_are_named(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"nowhere\.toml cannot be read"):
        load(tmp_path / "nowhere.toml")
    monkeypatch.setenv("SERINUS_BASELINE", "{oops")
    with pytest.raises(BadInput, match=r'JSON.*"baseline"'):
        load()
    monkeypatch.delenv("SERINUS_BASELINE")
    monkeypatch.setenv("SERINUS_GATEWAI_PORT", "1")
    with pytest.raises(BadInput, match="SERINUS_GATEWAI_PORT is not a setting"):
        load()


def test_secrets_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SERINUS_MODEL_API_KEY", "sk-very-secret")
    monkeypatch.setenv("SERINUS_DATABASE_URL", "postgresql://me:sk-very-secret@db/serinus")
    assert "sk-very-secret" not in repr(load())
    assert "sk-very-secret" in load().store_url


@pytest.mark.parametrize("lines", ["", "arrivals = 'open'", "trace = 't.jsonl'"])
def test_latency_may_be_sought_however_requests_arrive(tmp_path, lines):
    found = load(written(tmp_path, f"objective = 'latency'\n{lines}"))
    assert found.objective is Objective.LATENCY


@pytest.mark.parametrize("lines", ["", "arrivals = 'open'"])
def test_cost_is_sought_over_several_loads(tmp_path, monkeypatch, lines):
    monkeypatch.setenv("SERINUS_LOAD_LEVELS", "1, 2, 4")
    found = load(written(tmp_path, f"objective = 'cost'\n{lines}"))
    assert (found.objective, found.load_levels) == (Objective.COST, (1.0, 2.0, 4.0))


def test_rehearsals_may_come_at_the_live_rate(tmp_path):
    assert load(written(tmp_path, "arrivals = 'open'")).arrivals is Arrival.OPEN
    assert load(written(tmp_path, "objective = 'throughput'")).arrivals is Arrival.CLOSED
