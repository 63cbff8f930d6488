"""What the model card knows by heart, against the sources of the vLLM that it was read from."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from serving.model_card import HYBRID
from tests.fakes.real_vllm import HOME, needs_real_vllm

pytestmark = needs_real_vllm


def sources() -> Path:
    packages = sysconfig.get_path("purelib", vars={"base": str(HOME), "platbase": str(HOME)})
    return Path(packages) / "vllm"


def parsed() -> Iterator[ast.Module]:
    for file in sorted(sources().rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "class " in text:
            yield ast.parse(text)


def registered() -> dict[str, str]:
    """The class of each architecture in vLLM's registry."""
    text = (sources() / "model_executor/models/registry.py").read_text(encoding="utf-8")
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                match key, value:
                    case ast.Constant(str(name)), ast.Tuple([_, ast.Constant(str(cls))]):
                        found[name] = cls
    return found


def test_the_hybrids_are_those_of_the_registry() -> None:
    bases: dict[str, set[str]] = {}
    for module in parsed():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                bases.setdefault(node.name, set()).update(names)

    def ancestors(name: str, seen: frozenset[str]) -> frozenset[str]:
        for base in bases.get(name, set()) - seen:
            seen = ancestors(base, seen | {base})
        return seen

    hybrids = {n for n, cls in registered().items() if "IsHybrid" in ancestors(cls, frozenset())}
    assert len(hybrids) > 10
    assert hybrids == HYBRID
