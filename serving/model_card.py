"""What a model's config.json tells about it: the facts that decide which knobs it can use.

It must not guess: of an architecture it does not know it claims nothing, so that the search space
is smaller rather than full of configs that cannot start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.errors import BadInput

# Architectures with recurrent-state layers beside attention that vLLM 0.32 serves.
_HYBRID = frozenset(
    {
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Zamba2ForCausalLM",
    }
)
# Architectures whose multi-token-prediction head vLLM 0.32 drafts with, and the fields counting it.
_DRAFTS_BY_MTP = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Glm4MoeForCausalLM",
        "MiMoForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_EXPERT_FIELDS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """``max_model_len`` is tokens of prompt and answer together; ``None`` where it is not said."""

    hybrid: bool = False
    mtp_head: bool = False
    moe: bool = False
    max_model_len: int | None = None


def read(path: str | Path) -> ModelFacts:
    """The facts from a ``config.json`` or from the directory that holds one; BadInput otherwise."""
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise BadInput(f"The model's config {file} cannot be read: {reason}.") from None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise BadInput(f"The model's config {file} is not a JSON object.")
    return facts_of(config)


def facts_of(config: dict[str, Any]) -> ModelFacts:
    """The facts from the content of a config.json; a multimodal model's text part counts."""
    names = config.get("architectures")
    architectures = {n for n in names if isinstance(n, str)} if isinstance(names, list) else set()
    text = config.get("text_config")
    fields = {**config, **text} if isinstance(text, dict) else config
    length = fields.get("max_position_embeddings")
    return ModelFacts(
        hybrid=bool(architectures & _HYBRID),
        mtp_head=bool(architectures & _DRAFTS_BY_MTP) and _most(fields, _MTP_FIELDS) > 0,
        moe=_most(fields, _EXPERT_FIELDS) > 1,
        max_model_len=length if type(length) is int and length > 0 else None,
    )


def _most(fields: dict[str, Any], names: tuple[str, ...]) -> int:
    counts = (fields.get(name) for name in names)
    return max((count for count in counts if type(count) is int), default=0)
