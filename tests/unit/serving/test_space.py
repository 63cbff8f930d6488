"""Which knobs a model gets, from its config.json."""

import json
from pathlib import Path

import pytest

from domain.engine import EngineConfig
from domain.errors import BadInput
from serving import model_card
from serving.flags import catalogue
from serving.model_card import ModelFacts
from serving.space import search_space

STATE_KNOBS = {
    "mamba_backend",
    "mamba_ssm_cache_dtype",
    "enable_mamba_cache_stochastic_rounding",
}


def test_a_hybrid_model_with_a_head_gets_every_knob() -> None:
    space = search_space(catalogue(), ModelFacts(hybrid=True, mtp_head=True))
    assert space.knobs == catalogue()


def test_a_plain_model_gets_neither_state_knobs_nor_mtp() -> None:
    space = search_space(catalogue(), ModelFacts())
    assert {k.name for k in catalogue()} - {k.name for k in space.knobs} == STATE_KNOBS
    method = space.knob("speculative_method")
    assert method is not None
    assert method.domain == ("none", "ngram")
    assert space.fault(EngineConfig.of({"speculative_method": "mtp"})) is not None


def test_ngram_drafts_and_async_scheduling_exclude_each_other() -> None:
    space = search_space(catalogue(), ModelFacts())
    both = EngineConfig.of({"speculative_method": "ngram", "async_scheduling": True})
    assert space.fault(both) == "async_scheduling=True needs speculative_method=none or mtp."


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
            {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192},
            ModelFacts(max_model_len=8192),
        ),
        ({"architectures": ["NobodyKnowsIt"], "num_nextn_predict_layers": 1}, ModelFacts()),
        ({"architectures": "odd"}, ModelFacts()),
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
