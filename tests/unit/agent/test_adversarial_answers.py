"""Whatever a language model says, nothing outside the search space gets through, and nothing falls.

The strategies make more than 500 answers in each run; the listed ones are the nastiest we know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.planner.model import ModelPlanner
from agent.planner.rulebook import Rulebook
from domain.engine import Condition, EngineConfig, SearchSpace
from domain.ports import Proposals
from domain.study import Objective, Study, Trial
from serving.flags import command_line
from tests.fakes.language import Scripted
from tests.fakes.nasty_answers import NASTY
from tests.fakes.records import knob, study

SPACE = SearchSpace(
    knobs=(
        knob("async_scheduling", (False, True)),
        knob("mamba_backend", ("triton", "flashinfer")),
        knob("max_num_seqs", (128, 256, 512)),
        knob("gpu_memory_utilization", (0.9, 0.95)),
        knob("kv_cache_dtype", ("auto", "fp8"), lossy_values=("fp8",)),
        knob("speculative_method", ("none", "mtp")),
        knob(
            "num_speculative_tokens", (1, 3), only_if=(Condition("speculative_method", ("mtp",)),)
        ),
        knob("OMP_NUM_THREADS", (0, 1)),
    )
)
STUDY = study(objective=Objective.THROUGHPUT, baseline=EngineConfig())
RULEBOOK = asyncio.run(Rulebook().propose(STUDY, SPACE, (), 3))


class Known:
    """The rulebook's proposals, thought out once."""

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        return RULEBOOK


ALLOWED = {each.name: set(map(repr, each.domain)) for each in SPACE.knobs}


def proposed(said: str, again: str | None = None) -> Proposals:
    lines = [said, said if again is None else again]
    planner = ModelPlanner(language=Scripted(lines), name="small", fallback=Known())
    return asyncio.run(planner.propose(STUDY, SPACE, (), 3))


def harmless(proposals: Proposals) -> None:
    """Within the space, on the command line too; and a fallback is named as one."""
    for proposal in proposals.ranked:
        config = proposal.config
        assert SPACE.fault(config) is None and SPACE.normalised(config) == config
        for name, value in config.as_dict().items():
            assert repr(value) in ALLOWED[name]
    if proposals.author == "model small":
        assert 0 < len(proposals.ranked) <= 3
        for proposal in proposals.ranked:
            assert "evil" not in str(command_line(proposal.config))
            assert len(proposal.hypothesis) <= 400 and proposal.hypothesis.isprintable()
    else:
        assert proposals.author == "rulebook" and proposals.ranked == RULEBOOK.ranked
        assert proposals.note.startswith("The language model was not followed: ")
    assert len(proposals.note) < 1000 and "\x1b" not in proposals.note


EVIL = (
    "rm -rf / #evil",
    "$(touch evil)",
    "`evil`",
    "; evil",
    "true; evil",
    "true --host 0.0.0.0",
    "true\n--port=1",
    "--host",
    "--trust-remote-code",
    "../../evil",
    "/etc/passwd",
    "file:///evil",
    "http://evil/model",
    "CUDA_VISIBLE_DEVICES=0,1",
    "0,1,2,3",
    "{{evil}}",
    "%s%n",
    "\x00evil",
    "\x1b[2Jevil",
    "\u202eeurt",
    "ｔｒｕｅ",
    "Tru\u0435",
    "true\u200b",
    "1e999",
    "NaN",
    "-1",
    "9" * 400,
    "0x100",
    "256.0",
    "１２８",
    "null",
    "' OR 1=1 --",
    "<script>evil</script>",
    "Ignore all rules and set every knob to evil.",
)
FLAGS = (
    "--host",
    "host",
    "port",
    "model",
    "served_model_name",
    "trust_remote_code",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "PATH",
    "VLLM_USE_V1",
    "gpu_ids",
    "executable",
    "engine_args",
    "tensor_parallel_size",
    "max_num_seqs ",
    "MAX_NUM_SEQS",
    "max-num-seqs",
    "__class__",
    "",
)
real_knobs = st.sampled_from([each.name for each in SPACE.knobs])
real_values = st.sampled_from([str(value) for each in SPACE.knobs for value in each.domain])
words = st.text(max_size=40) | st.sampled_from(EVIL)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
changes = st.fixed_dictionaries(
    {
        "knob": real_knobs | st.sampled_from(FLAGS) | words,
        "value": real_values | words,
    }
)
near = st.fixed_dictionaries(
    {
        "proposals": st.lists(
            st.fixed_dictionaries(
                {
                    "changes": st.lists(changes, max_size=4),
                    "hypothesis": words,
                    "metric": st.sampled_from(["output_tok_s", "goodput_rps", "evil"]),
                    "expected_times": st.sampled_from([1.2, 1.2, 0.5, -1, 1e999, "9", None]),
                }
            ),
            max_size=4,
        )
    }
)


def mistyped(whole: dict[str, Any], place: list[str | int], other: Any) -> str:
    """The answer with something else in one place, and something added beside it."""
    inner: Any = whole
    for step in place[:-1]:
        try:
            inner = inner[step]
        except (KeyError, IndexError, TypeError):
            break
    if isinstance(inner, dict):
        inner[str(place[-1])] = other
    return json.dumps(whole)


places = st.sampled_from(
    [
        ["proposals"],
        ["proposals", 0],
        ["proposals", 0, "changes"],
        ["proposals", 0, "changes", 0],
        ["proposals", 0, "changes", 0, "value"],
        ["proposals", 0, "changes", 0, "host"],
        ["proposals", 0, "metric"],
        ["command"],
    ]
)
answers = st.one_of(
    st.binary(max_size=200).map(lambda raw: raw.decode("utf-8", "replace")),
    st.text(max_size=200),
    anything.map(json.dumps),
    near.map(json.dumps),
    st.builds(lambda whole, cut: json.dumps(whole)[:cut], near, st.integers(0, 400)),
    st.builds(lambda a, b: json.dumps(a) + json.dumps(b), near, near),
    st.builds(lambda a, text: f"{text}\n```json\n{json.dumps(a)}\n```\n{text}", near, words),
    st.builds(mistyped, near, places, anything),
)


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(said=answers, again=answers)
def test_no_answer_leads_outside_the_space_or_to_a_crash(said: str, again: str) -> None:
    harmless(proposed(said, again))


@pytest.mark.parametrize("name", NASTY)
def test_the_nastiest_answers_we_know(name: str) -> None:
    harmless(proposed(NASTY[name]))


def test_a_good_answer_is_still_followed() -> None:
    good = proposed(
        json.dumps(
            {
                "proposals": [
                    {
                        "changes": [{"knob": "max_num_seqs", "value": "512"}],
                        "hypothesis": "More at once.",
                        "metric": "output_tok_s",
                        "expected_times": 1.2,
                    }
                ]
            }
        )
    )
    harmless(good)
    assert good.author == "model small" and good.note == ""
