"""What settings mean for the space that is searched: the model's facts, the hardware, the knobs."""

import json
from pathlib import Path

import pytest

from agent import facts, interpretation
from agent.settings import Settings
from domain.engine import EngineConfig, Place, SearchSpace
from domain.errors import BadInput
from domain.slo import SLO
from serving import flags
from serving.hardware import HardwareClass
from serving.model_card import ModelFacts
from serving.simulator.setup import SIMULATED


def real(**changes: object) -> Settings:
    """Settings of a vLLM on two GPUs of known size."""
    whole = {
        "executable": "/opt/vllm/bin/vllm",
        "model": "org/name",
        "production_gpu_ids": ("0",),
        "canary_gpu_ids": ("1", "2"),
        "gpu_memory_gib": 80.0,
        **changes,
    }
    return Settings(**whole)


def space(settings: Settings, facts: ModelFacts | None = None) -> SearchSpace:
    lane = interpretation.lane(settings)
    catalogue = flags.catalogue(hardware=lane.kind)
    return interpretation.space(settings, catalogue, facts or ModelFacts(), lane)


def test_a_simulated_engine_is_searched_over_what_is_simulated() -> None:
    settings = Settings()
    found = space(settings, facts.known(settings))
    assert {knob.name for knob in found.knobs} == SIMULATED


@pytest.mark.parametrize(
    ("changes", "kind", "gpus"),
    [
        ({"gpus": "none"}, HardwareClass.CPU, 0),
        ({"gpu_memory_gib": 24.0}, HardwareClass.GPU, 2),
        ({"gpu_memory_gib": 80.0}, HardwareClass.GPU_70_GIB, 2),
        ({"gpu_memory_gib": 252.0}, HardwareClass.GPU_160_GIB, 2),
    ],
)
def test_the_lane_is_what_the_settings_name(
    changes: dict[str, object], kind: HardwareClass, gpus: int
) -> None:
    lane = interpretation.lane(real(**changes))
    assert (lane.kind, lane.gpus) == (kind, gpus)


@pytest.mark.parametrize(
    ("arguments", "settled"),
    [
        (("--max-num-seqs", "64"), {"max_num_seqs": 64}),
        (("--max-num-seqs=64",), {"max_num_seqs": 64}),
        (("--max_num_seqs", "64"), {"max_num_seqs": 64}),
        (("-tp", "2", "--seed", "-1"), {"tensor_parallel_size": 2}),
        (("-O3",), {"optimization_level": 3}),
        (("--no-enable-prefix-caching",), {"enable_prefix_caching": False}),
        (("--enforce-eager", "--trust-remote-code"), {"enforce_eager": True}),
        (("--spec-method", "ngram"), {"speculative_method": "ngram"}),
        (
            ("-sc", '{"method":"ngram","num_speculative_tokens":4}'),
            {"speculative_method": "ngram", "num_speculative_tokens": 4},
        ),
    ],
)
def test_a_knob_among_the_arguments_is_settled(
    arguments: tuple[str, ...], settled: dict[str, object]
) -> None:
    found = space(real(engine_args=arguments))
    assert not settled.keys() & {knob.name for knob in found.searched}
    assert {name: found.effective(EngineConfig(), name) for name in settled} == settled
    assert settled.keys() <= {knob.name for knob in space(real()).searched}


def test_a_speculative_config_that_cannot_be_read_settles_all_of_drafting() -> None:
    found = space(real(engine_args=("--speculative-config", '{"method":"mtp","strange":1}')))
    assert not [knob for knob in found.knobs if knob.place is Place.SPECULATIVE]


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ((), 131_072),
        (("--max-model-len", "32768"), 32_768),
        (("--max_model_len=32k",), 32_000),
        (("--max-model-len", "32K"), 32_768),
        (("--max-model-len", "auto"), 131_072),
    ],
)
def test_the_longest_request_is_the_one_that_the_engine_takes(
    tmp_path: Path, arguments: tuple[str, ...], tokens: int
) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131_072}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = facts.known(real(model=str(tmp_path), engine_args=arguments))
    assert found.max_model_len == tokens


def test_what_production_runs_may_be_a_number_that_no_study_would_try() -> None:
    settings = real(baseline={"max_num_seqs": 300})
    assert interpretation.baseline(settings, space(settings)).get("max_num_seqs") == 300


def test_a_knob_is_named_once() -> None:
    settings = real(engine_args=("--max-num-seqs", "64"), baseline={"max_num_seqs": 32})
    with pytest.raises(BadInput, match="engine_args and baseline both name max_num_seqs"):
        space(settings)


def test_drafting_models_are_offered_where_they_are_named() -> None:
    method = space(real(drafters={"eagle3": "org/eagle"})).knob("speculative_method")
    assert method is not None
    assert "eagle3" in method.domain
    assert "draft_model" not in method.domain


def test_a_model_that_is_a_folder_is_read_and_one_from_the_hub_once_it_is_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"architectures": ["FalconH1ForCausalLM"], "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert facts.known(real(model=str(tmp_path))).hybrid
    assert facts.known(real(model="org/never-downloaded")) == ModelFacts()
    assert "Nothing is known of org/never-downloaded until it has been downloaded" in caplog.text


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="set model to the model's folder or to its name on the hub"):
        facts.known(real(model=str(tmp_path)))


def test_the_terms_of_a_study_are_those_of_the_settings() -> None:
    settings = Settings(engine_start_s=100.0, trial_warm_up_s=10.0, trial_s=30.0)
    found = interpretation.terms(settings)
    assert (found.run_s, found.searches, found.rounds) == (200.0, 12, 3)
    assert found.evaluation_s == 800 / 32 * 60.0


def test_each_load_of_a_trial_takes_its_time() -> None:
    length = {"engine_start_s": 100.0, "trial_warm_up_s": 10.0, "trial_s": 30.0}
    many = {**length, "load_levels": (1.0, 2.0, 4.0)}
    found = interpretation.terms(Settings(**many))
    assert (found.run_s, found.fresh_s) == (400.0, 200.0)
    assert interpretation.terms(Settings(**many, objective="cost")).fresh_s == 400.0
    with pytest.raises(BadInput, match="lower engine_start_s or trial_s, or have fewer"):
        interpretation.terms(
            Settings(**length, load_levels=(1.0, 2.0), canary_minutes_a_study=20.0)
        )


@pytest.mark.parametrize("name", ["canary_minutes_a_study", "canary_minutes_a_day"])
def test_minutes_that_could_prove_nothing_are_refused(name: str) -> None:
    """Six runs of 200 s are the least that a study is begun for."""
    length = {"engine_start_s": 100.0, "trial_warm_up_s": 10.0, "trial_s": 30.0}
    with pytest.raises(BadInput, match=f"{name} is 19, .* may take 20 min .* lower engine_start_s"):
        interpretation.terms(Settings(**length, **{name: 19.0}))
    for minutes in (20.0, 0.0):
        settings = Settings(**length, **{name: minutes})
        limits = interpretation.policy(settings, SLO.parse(settings.slo), "", 1).limits
        bounds_s = {
            "canary_minutes_a_study": limits.lane_s_a_study,
            "canary_minutes_a_day": limits.lane_s_a_day,
        }
        assert bounds_s[name] == (1200.0 if minutes else None)


@pytest.mark.parametrize(
    ("replicas", "weights"), [(1, [5, 25, 50, 100]), (2, [5, 25, 50]), (4, [5, 25])]
)
def test_a_rollout_is_planned_up_to_what_the_lane_can_carry(
    replicas: int, weights: list[int]
) -> None:
    settings = Settings(bake_s=7.0)
    plan = interpretation.policy(settings, SLO.parse(settings.slo), "", replicas).rollout
    assert [step.weight for step in plan.steps] == weights
    assert {step.bake_s for step in plan.steps} == {7.0}
    assert plan.replicas == replicas
    alone = Settings(in_place=True)
    plan = interpretation.policy(alone, SLO.parse(alone.slo), "", replicas).rollout
    assert (plan.steps, plan.in_place, plan.replicas) == ((), True, replicas)


def test_what_configs_run_on_is_named_by_version_model_and_hardware() -> None:
    def named(settings: Settings) -> str:
        lane = interpretation.lane(settings)
        return interpretation.engine(settings, flags.catalogue(hardware=lane.kind), lane)

    assert named(real()) == "vLLM 0.32 of org/name, 2 x gpu_70_gib"
    assert named(Settings()).startswith("simulated engine of ")
    assert named(real(gpus="none")).startswith("vLLM 0.32 of org/name, CPU cores ")
    assert named(real()) != named(real(model="org/other"))
    assert named(real()) != named(real(canary_gpu_ids=("1",)))


def test_every_engine_that_is_named_gets_a_slot_of_its_own() -> None:
    settings = real(
        further_replicas=({"port": 8102, "gpu_ids": ("3",)}, {"port": 8103, "gpu_ids": ("4",)}),
        search_lanes=({"port": 8202, "gpu_ids": ("5", "6")},),
    )
    slots = [*interpretation.production(settings), *interpretation.lanes(settings)]
    assert [(slot.name, slot.role.value, slot.port, slot.gpu_ids) for slot in slots] == [
        ("production-0", "production", 8101, ("0",)),
        ("production-1", "production", 8102, ("3",)),
        ("production-2", "production", 8103, ("4",)),
        ("canary-0", "canary", 8201, ("1", "2")),
        ("canary-1", "canary", 8202, ("5", "6")),
    ]
