"""Writes tiny models of the architectures that behave differently in vLLM: descriptions alone.

Served with ``--load-format dummy`` they get random weights: their answers mean nothing, but they
take the same paths through vLLM as their large relatives, in seconds and without a GPU. All share
SmolLM2's tokenizer. Run it with the Python of vLLM's own environment, after ``smollm2.py``.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import transformers

TOKENIZER_OF = "smollm2-135m"
TOKENIZER = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
COMMON = {
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
}


class Tiny(NamedTuple):
    """A model: its architecture's prefix in transformers, and what it has beyond ``COMMON``."""

    architecture: str
    fields: dict[str, Any]


MODELS = {
    "tiny-llama": Tiny("Llama", {"num_hidden_layers": 2, "head_dim": 64}),
    # A hybrid: Mamba beside attention in every layer.
    "tiny-falcon-h1": Tiny("FalconH1", {**MAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 512}),
    # A hybrid of experts with a head that drafts tokens (MTP).
    "tiny-qwen3-next": Tiny(
        "Qwen3Next",
        {
            "num_hidden_layers": 4,
            "head_dim": 64,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "decoder_sparse_step": 1,
            "num_nextn_predict_layers": 1,
        },
    ),
}


def write(models: Path) -> None:
    """Write each of ``MODELS`` into the directory ``models``, which holds ``TOKENIZER_OF``."""
    for name, tiny in MODELS.items():
        config = getattr(transformers, tiny.architecture + "Config")(**COMMON, **tiny.fields)
        described = {
            **config.to_dict(),
            "architectures": [tiny.architecture + "ForCausalLM"],
            "dtype": "float32",
        }
        (models / name).mkdir(exist_ok=True)
        text = json.dumps(described, indent=2) + "\n"
        (models / name / "config.json").write_text(text, encoding="utf-8")
        for part in TOKENIZER:
            shutil.copy(models / TOKENIZER_OF / part, models / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
