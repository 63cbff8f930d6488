"""The real vLLM, asked without an engine: what it takes, makes of a config, and refuses."""

import asyncio
import json
from pathlib import Path

import pytest

from domain.engine import Change, EngineConfig, Refusal, Resolution
from serving.drift import drift
from serving.dry_run import DryRun, introspect
from serving.flags import catalogue
from serving.hardware import HardwareClass
from serving.vllm_process import python_of
from tests.fakes.real_vllm import HOME, needs_real_vllm

VLLM = HOME / "bin" / "vllm"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "dtype": "float32",
}
ASKED = {
    "defaults": {},
    "small": {"max_num_seqs": 8, "max_num_batched_tokens": 512, "block_size": 32},
    "float32": {"dtype": "float32"},
    "auto": {"dtype": "auto", "mamba_ssm_cache_dtype": "auto"},
    "no prefixes": {"enable_prefix_caching": False},
    "ngram": {"speculative_method": "ngram", "num_speculative_tokens": 3},
    "async": {"async_scheduling": True},
    "few tokens": {"max_num_seqs": 256, "max_num_batched_tokens": 128},
    "no parts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    "no head": {"speculative_method": "mtp"},
    "unknown value": {"kv_cache_dtype": "fp3"},
    "async ngram": {"speculative_method": "ngram", "async_scheduling": True},
    "again": {},
}

pytestmark = needs_real_vllm


async def answers(model: Path, *engine_args: str, asked: dict) -> dict:
    resolver = DryRun(python=python_of(VLLM), model=str(model), engine_args=engine_args)
    try:
        return {
            name: await resolver.resolve(EngineConfig.of(knobs)) for name, knobs in asked.items()
        }
    finally:
        await resolver.aclose()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def answered(model: Path) -> dict[str, Resolution | Refusal | None]:
    return asyncio.run(answers(model, "--max-model-len", "1024", asked=ASKED))


@pytest.mark.parametrize("name", ["small", "float32", "no prefixes", "ngram"])
def test_what_is_asked_for_is_in_force(answered, name: str) -> None:
    resolution = answered[name]
    assert isinstance(resolution, Resolution)
    assert resolution.overridden == ()
    assert resolution.config.as_dict().items() >= ASKED[name].items()


def test_the_defaults_are_vllms_own(answered) -> None:
    told = answered["defaults"].config.as_dict()
    assert told["enable_prefix_caching"] is told["enable_chunked_prefill"] is True
    assert told["speculative_method"] == "none"
    assert told["mamba_backend"] == "triton"
    assert told["optimization_level"] == 2


def test_an_answer_does_not_depend_on_the_questions_before(answered) -> None:
    assert answered["again"] == answered["defaults"]


def test_what_is_left_to_vllm_is_not_overridden(answered) -> None:
    assert answered["auto"].overridden == ()
    assert answered["auto"].config.get("dtype") == "bfloat16"


def test_the_cpu_turns_async_scheduling_off(answered) -> None:
    assert answered["async"].overridden == (Change("async_scheduling", True, False),)


@pytest.mark.parametrize(
    "name, words",
    [
        (
            "few tokens",
            "max_num_batched_tokens (128) must be greater than or equal to",
        ),
        ("no parts", "max_num_batched_tokens (512) is smaller than max_model_len (1024)"),
        ("no head", "mtp"),
        ("unknown value", "argument --kv-cache-dtype: invalid choice: 'fp3'"),
        ("async ngram", "async"),
    ],
)
def test_what_cannot_run_is_refused_in_vllms_words(answered, name: str, words: str) -> None:
    refusal = answered[name]
    assert isinstance(refusal, Refusal)
    assert words in refusal.sentence
    assert "\n" not in refusal.sentence


async def test_an_unknown_flag_of_the_settings_is_refused(model: Path) -> None:
    told = await answers(model, "--no-such-flag", asked={"defaults": {}})
    assert told == {"defaults": Refusal("unrecognized arguments: --no-such-flag")}


async def test_the_catalogue_holds_for_the_vllm_it_is_for() -> None:
    told = await introspect(python_of(VLLM))
    knobs = [knob for kind in HardwareClass for knob in catalogue("0.32", kind).knobs]
    assert told.version.startswith("0.32.")
    assert drift(knobs, told) == ()
    # Some options are in no group of the parser; a walk over the groups would miss them.
    option = told.option("--api-server-count")
    assert option is not None
    assert (option.kind, option.default) == ("int", None)
