"""What a model's config.json tells about it: the facts that decide which knobs it can use.

It must not guess: of an architecture it does not know it claims nothing, so that the search space
is smaller rather than full of configs that cannot start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.errors import BadInput

# Architectures with recurrent-state layers beside attention, by vLLM 0.32.0's registry of models.
HYBRID = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "ColBERTLfm2Model",
        "ColQwen3_5",
        "FalconH1ForCausalLM",
        "Glm5NextForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GraniteMoeHybridForCausalLM",
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "JambaForCausalLM",
        "JambaForSequenceClassification",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "OlmoHybridForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForCausalLM",
        "Qwen4ExpForConditionalGeneration",
        "Zamba2ForCausalLM",
    }
)
# Architectures whose multi-token-prediction head vLLM 0.32.0 drafts with (its speculative config),
# and the fields that count it.
_DRAFTS_BY_MTP = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "Ernie4_5_MoeForCausalLM",
        "Exaone4_5_ForConditionalGeneration",
        "ExaoneMoEForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm5NextForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "GlmOcrForConditionalGeneration",
        "HYV3ForCausalLM",
        "HYV4ForCausalLM",
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MiMoForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "PanguUltraMoEForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForCausalLM",
        "Qwen4ExpForConditionalGeneration",
    }
)
# Architectures of which vLLM 0.32.0 takes for granted that they have such a head.
_HAVE_MTP = frozenset(
    {
        "Dots3NoteForCausalLM",
        "LongcatFlashForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2OmniForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_EXPERT_FIELDS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """``max_model_len`` is tokens of prompt and answer together, ``heads`` of attention; ``None``
    where it is not said."""

    hybrid: bool = False
    mtp_head: bool = False
    moe: bool = False
    max_model_len: int | None = None
    heads: int | None = None


def read(path: str | Path) -> ModelFacts:
    """The facts from a ``config.json`` or from the directory that holds one; BadInput otherwise."""
    file = Path(path).expanduser()
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise BadInput(f"The model's config {file} cannot be read: {reason}.") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BadInput(f"The model's config {file} is not a JSON object.")
    return facts_of(config)


def downloaded(name: str, hub_cache: Path) -> Path | None:
    """The ``config.json`` of a hub model that is on this machine already; its newest revision."""
    folder = hub_cache / f"models--{name.replace('/', '--')}" / "snapshots"
    configs = [path for path in folder.glob("*/config.json") if path.is_file()]
    return max(configs, key=lambda path: path.stat().st_mtime, default=None)


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """The facts from the content of a config.json; a multimodal model's text part counts."""
    names = config.get("architectures")
    architectures = {n for n in names if isinstance(n, str)} if isinstance(names, list) else set()
    text = config.get("text_config")
    fields = {**config, **text} if isinstance(text, dict) else config
    return ModelFacts(
        hybrid=bool(architectures & HYBRID),
        mtp_head=bool(architectures & _HAVE_MTP)
        or (bool(architectures & _DRAFTS_BY_MTP) and _most(fields, _MTP_FIELDS) > 0),
        moe=_most(fields, _EXPERT_FIELDS) > 1,
        max_model_len=_count(fields, "max_position_embeddings"),
        heads=_count(fields, "num_attention_heads"),
    )


def _most(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return max((_count(fields, name) or 0 for name in names), default=0)


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    """A whole number above zero; ``None`` for whatever else stands there."""
    value = fields.get(name)
    return value if type(value) is int and value > 0 else None
