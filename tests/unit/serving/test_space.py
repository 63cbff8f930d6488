"""Which knobs a model gets, from its config.json."""

import json
from pathlib import Path

import pytest

from domain.engine import EngineConfig, SearchSpace, Value
from domain.errors import BadInput
from serving import hardware, model_card
from serving.flags import catalogue
from serving.hardware import Hardware, HardwareClass
from serving.model_card import ModelFacts
from serving.space import search_space

STATION = hardware.gpu(234.0, 1)
HOST = Hardware(kind=HardwareClass.CPU, gpus=0, cores=tuple(range(8)))
STATE_KNOBS = {
    "mamba_backend",
    "mamba_ssm_cache_dtype",
    "enable_mamba_cache_stochastic_rounding",
}
PARALLEL_KNOBS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
}


def names(space: SearchSpace) -> set[str]:
    return {knob.name for knob in space.knobs}


def domain(space: SearchSpace, name: str) -> tuple[Value, ...]:
    knob = space.knob(name)
    return () if knob is None else knob.domain


def test_everything_is_there_for_a_model_and_a_host_that_have_everything() -> None:
    space = search_space(
        catalogue(),
        ModelFacts(hybrid=True, mtp_head=True, moe=True, max_model_len=8192, heads=32),
        hardware.gpu(234.0, 4),
        drafters={"eagle3": "org/eagle", "draft_model": "org/small"},
    )
    assert {k.name for k in catalogue().knobs} - names(space) == {"VLLM_CPU_OMP_THREADS_BIND"}
    assert domain(space, "speculative_model") == ("", "org/eagle", "org/small")


def test_a_plain_model_on_one_gpu_gets_neither_state_knobs_nor_mtp_nor_parallel_ones() -> None:
    space = search_space(catalogue(), ModelFacts(), STATION)
    assert not names(space) & (STATE_KNOBS | PARALLEL_KNOBS | {"speculative_model"})
    assert domain(space, "speculative_method") == ("none", "ngram", "suffix")
    assert space.fault(EngineConfig.of({"speculative_method": "mtp"})) is not None


def test_a_cpu_gets_its_own_knobs_values_and_cores() -> None:
    facts = ModelFacts(hybrid=True)
    space = search_space(catalogue(hardware=HardwareClass.CPU), facts, HOST)
    assert domain(space, "VLLM_CPU_OMP_THREADS_BIND") == ("auto", "0-7")
    assert domain(space, "mamba_backend") == ("triton", "cpu")
    assert not names(space) & {"async_scheduling", "kv_cache_dtype", "gpu_memory_utilization"}
    one_core = search_space(
        catalogue(hardware=HardwareClass.CPU), facts, Hardware(kind=HardwareClass.CPU)
    )
    assert "VLLM_CPU_OMP_THREADS_BIND" not in names(one_core)


def test_what_is_settled_elsewhere_is_in_force_and_not_searched() -> None:
    settled: dict[str, Value] = {"tensor_parallel_size": 4, "performance_mode": "throughput"}
    gpus = hardware.gpu(80.0, 4)
    space = search_space(catalogue(), ModelFacts(heads=8), gpus, settled=settled)
    assert not settled.keys() & {knob.name for knob in space.searched}
    assert space.effective(EngineConfig(), "tensor_parallel_size") == 4
    fault = space.fault(EngineConfig.of({"data_parallel_size": 2}))
    assert fault is not None and "must be at most 4" in fault
    assert "max_num_seqs" not in names(
        search_space(catalogue(), ModelFacts(), STATION, without={"max_num_seqs"})
    )


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"max_num_seqs": 1024}, {}),
        (
            {"max_num_seqs": 1024, "performance_mode": "throughput"},
            {"max_num_seqs": 1024, "performance_mode": "throughput"},
        ),
        (
            {"max_num_batched_tokens": 16384, "enable_chunked_prefill": False},
            {"max_num_batched_tokens": 16384, "enable_chunked_prefill": False},
        ),
        (
            {"api_server_count": 1, "data_parallel_size": 4},
            {"api_server_count": 1, "data_parallel_size": 4},
        ),
    ],
)
def test_a_default_is_left_out_only_where_vllm_would_take_it(
    values: dict[str, Value], kept: dict[str, Value]
) -> None:
    space = search_space(catalogue(), ModelFacts(), hardware.gpu(234.0, 4))
    config = EngineConfig.of(values)
    assert space.normalised(config).as_dict() == kept
    for name in values.keys() - kept.keys():
        assert space.effective(space.normalised(config), name) == values[name]
    for name in kept.keys() & {"max_num_seqs", "max_num_batched_tokens", "api_server_count"}:
        assert space.effective(config.having({name: None}), name) is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_num_seqs", 300, True),
        ("max_num_batched_tokens", 32768, True),
        ("gpu_memory_utilization", 0.88, True),
        ("num_speculative_tokens", 5, False),
        ("kv_cache_dtype", "fp8_e4m3", True),
        ("kv_cache_dtype", "fp9", False),
        ("max_num_seqs", "many", False),
        ("max_num_seqs", -1, False),
        ("enable_prefix_caching", 3, False),
    ],
)
def test_what_a_person_wrote_may_be_a_value_that_nothing_searches(
    name: str, value: Value, allowed: bool
) -> None:
    space = search_space(catalogue(), ModelFacts(), STATION, written={name: value})
    assert (space.fault(EngineConfig.of({name: value})) is None) is allowed
    others = search_space(catalogue(), ModelFacts(), STATION).knobs
    assert [k for k in others if k.name != name] == [k for k in space.knobs if k.name != name]


def test_without_chunked_prefill_only_a_written_step_must_hold_a_whole_prompt() -> None:
    space = search_space(catalogue(), ModelFacts(max_model_len=131_072), STATION)
    assert space.fault(EngineConfig.of({"enable_chunked_prefill": False})) is None


@pytest.mark.parametrize(
    ("cores", "written"),
    [((4, 5, 6, 7), "4-7"), ((4, 6), "4,6"), ((0, 1, 2, 8), "0-2,8"), ((3,), "3")],
)
def test_cores_are_those_that_the_process_may_use(cores: tuple[int, ...], written: str) -> None:
    host = Hardware(kind=HardwareClass.CPU, gpus=0, cores=cores)
    assert host.all_cores == written


@pytest.mark.parametrize(
    ("gib", "name", "kind"),
    [
        (80.0, "NVIDIA H100 80GB HBM3", HardwareClass.GPU_70_GIB),
        (80.0, "NVIDIA A100-SXM4-80GB", HardwareClass.GPU),
        (180.0, "NVIDIA B200", HardwareClass.GPU_160_GIB),
        (24.0, "NVIDIA L4", HardwareClass.GPU),
    ],
)
def test_a_gpu_has_the_class_by_which_vllm_chooses(
    gib: float, name: str, kind: HardwareClass
) -> None:
    assert hardware.gpu(gib, 1, name).kind is kind


def test_knobs_that_clients_would_notice_are_known_and_not_searched() -> None:
    space = search_space(catalogue(), ModelFacts(), STATION)
    assert names(space) - {knob.name for knob in space.searched} == {
        "stream_interval",
        "scheduling_policy",
    }
    assert space.fault(EngineConfig.of({"stream_interval": 4})) is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"speculative_method": "ngram", "async_scheduling": True},
            "speculative_method=ngram does not go with async_scheduling=True: vLLM refuses "
            "asynchronous scheduling with drafts that are looked up.",
        ),
        (
            {"max_num_seqs": 512, "max_num_batched_tokens": 256},
            "max_num_batched_tokens=256 is outside its domain (2048, 4096, 8192, 16384).",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            "max_num_batched_tokens=4096 must be at least 8192 with enable_chunked_prefill=False: "
            "without chunked prefill a whole prompt must fit into one step.",
        ),
        (
            {"tensor_parallel_size": 4, "data_parallel_size": 2},
            "tensor_parallel_size=4 × pipeline_parallel_size=1 × data_parallel_size=2 must be at "
            "most 4: each part needs a GPU of its own, and heads are shared out evenly.",
        ),
        (
            {"tensor_parallel_size": 4},
            "tensor_parallel_size=4 must divide 6: each part needs a GPU of its own, and heads "
            "are shared out evenly.",
        ),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, None),
        (
            {"enable_expert_parallel": True},
            "tensor_parallel_size=1 × data_parallel_size=1 must be at least 2 with "
            "enable_expert_parallel=True: there is nothing to spread experts over.",
        ),
        (
            {"speculative_method": "eagle3", "speculative_model": "org/small"},
            "speculative_model=org/small does not go with speculative_method=eagle3: each "
            "drafting method has the model that was named for it.",
        ),
        ({"speculative_method": "eagle3", "speculative_model": "org/eagle"}, None),
        (
            {"speculative_model": "org/eagle"},
            "speculative_model=org/eagle needs speculative_method=eagle3 or draft_model.",
        ),
    ],
)
def test_rules_between_knobs(values: dict[str, Value], sentence: str | None) -> None:
    space = search_space(
        catalogue(),
        ModelFacts(moe=True, max_model_len=8192, heads=6),
        hardware.gpu(234.0, 4),
        drafters={"eagle3": "org/eagle", "draft_model": "org/small"},
    )
    assert space.fault(EngineConfig.of(values)) == sentence


def test_a_bound_by_a_fact_that_nobody_knows_is_left_to_vllm() -> None:
    space = search_space(catalogue(), ModelFacts(), hardware.gpu(234.0, 8))
    small = {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_num_seqs": 16}
    assert space.fault(EngineConfig.of({**small, "tensor_parallel_size": 8})) is None


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (
            {
                "architectures": ["NemotronHForCausalLM"],
                "num_nextn_predict_layers": 1,
                "n_routed_experts": 128,
                "max_position_embeddings": 262144,
            },
            ModelFacts(hybrid=True, mtp_head=True, moe=True, max_model_len=262144),
        ),
        (
            {
                "architectures": ["Qwen3_5ForConditionalGeneration"],
                "text_config": {"mtp_num_hidden_layers": 1, "max_position_embeddings": 4096},
            },
            ModelFacts(hybrid=True, mtp_head=True, max_model_len=4096),
        ),
        (
            {"architectures": ["NemotronHForCausalLM"], "num_nextn_predict_layers": None},
            ModelFacts(hybrid=True),
        ),
        (
            {
                "architectures": ["LlamaForCausalLM"],
                "max_position_embeddings": 8192,
                "num_attention_heads": 32,
            },
            ModelFacts(max_model_len=8192, heads=32),
        ),
        ({"architectures": ["NobodyKnowsIt"], "num_nextn_predict_layers": 1}, ModelFacts()),
        ({"architectures": "odd"}, ModelFacts()),
        ({"architectures": [None, 3, {}], "text_config": [1]}, ModelFacts()),
        ({"max_position_embeddings": "many", "num_attention_heads": -4}, ModelFacts()),
        ({"num_experts": True, "num_attention_heads": 2.5}, ModelFacts()),
        ({}, ModelFacts()),
    ],
)
def test_facts_from_a_config(tmp_path: Path, config: dict[str, object], facts: ModelFacts) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_card.read(tmp_path) == facts
    assert model_card.read(tmp_path / "config.json") == facts


def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config\.json cannot be read: no such file or directory\."):
        model_card.read(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"config\.json is not a JSON object\."):
        model_card.read(tmp_path)


def test_a_model_of_the_hub_is_read_once_it_is_on_this_machine(tmp_path: Path) -> None:
    assert model_card.downloaded("org/name", tmp_path) is None
    revision = tmp_path / "models--org--name" / "snapshots" / "abc"
    revision.mkdir(parents=True)
    assert model_card.downloaded("org/name", tmp_path) is None
    (revision / "config.json").write_text('{"architectures": ["FalconH1ForCausalLM"]}')
    found = model_card.downloaded("org/name", tmp_path)
    assert found is not None
    assert model_card.read(found).hybrid


def test_a_config_of_endless_depth_is_refused_like_any_other_nonsense(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match=r"config\.json is not a JSON object\."):
        model_card.read(tmp_path)
