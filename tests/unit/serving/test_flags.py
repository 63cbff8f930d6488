"""The knob catalogue, and the way to vLLM's command line and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EngineConfig, SearchSpace, Value
from domain.errors import BadInput
from serving import flags

KNOBS = flags.catalogue()
SPACE = SearchSpace(knobs=KNOBS)
ABSENT = object()


@st.composite
def feasible(draw: st.DrawFn) -> EngineConfig:
    """Any config inside the whole catalogue's space; each knob may be absent."""
    values: dict[str, Value] = {}
    for knob in KNOBS:
        choice = draw(st.sampled_from((ABSENT, *knob.domain)))
        if choice is not ABSENT:
            values[knob.name] = choice  # type: ignore[assignment]
    config = EngineConfig.of(values)
    while SPACE.fault(config):
        name = SPACE.fault(config).split("=")[0]  # type: ignore[union-attr]
        config = config.having({name: None})
    return config


@given(feasible())
def test_a_command_line_means_the_config_it_was_made_of(config: EngineConfig) -> None:
    argv, env = flags.command_line(config)
    assert SPACE.normalised(flags.parse(argv, env)) == SPACE.normalised(config)


@given(feasible())
def test_a_parsed_config_gives_the_same_command_line_again(config: EngineConfig) -> None:
    argv, env = flags.command_line(config)
    assert flags.command_line(flags.parse(argv, env)) == (argv, env)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_each_value_of_each_knob_survives_the_round_trip(knob: flags.CatalogueKnob) -> None:
    needed = {condition.knob: condition.values[-1] for condition in knob.only_if}
    for value in knob.domain:
        config = EngineConfig.of({**needed, knob.name: value})
        assert SPACE.fault(config) is None
        argv, env = flags.command_line(config)
        assert SPACE.effective(flags.parse(argv, env), knob.name) == value


def test_the_flags_are_those_of_vllm() -> None:
    config = EngineConfig.of(
        {
            "OMP_NUM_THREADS": 1,
            "async_scheduling": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": 64,
            "num_speculative_tokens": 3,
            "speculative_method": "mtp",
        }
    )
    assert flags.command_line(config) == (
        (
            "--async-scheduling",
            "--no-enable-prefix-caching",
            "--gpu-memory-utilization",
            "0.9",
            "--max-num-seqs",
            "64",
            "--speculative-config",
            '{"method":"mtp","num_speculative_tokens":3}',
        ),
        {"OMP_NUM_THREADS": "1"},
    )


def test_a_method_without_a_count_gets_the_default_count() -> None:
    argv, _ = flags.command_line(EngineConfig.of({"speculative_method": "ngram"}))
    assert argv == ("--speculative-config", '{"method":"ngram","num_speculative_tokens":1}')


def test_values_that_stand_for_not_given_are_not_written() -> None:
    config = EngineConfig.of({"OMP_NUM_THREADS": 0, "speculative_method": "none"})
    assert flags.command_line(config) == ((), {})


def test_an_equals_sign_and_a_repeated_flag_are_read_as_vllm_reads_them() -> None:
    argv = ["--max-num-seqs=32", "--max-num-seqs", "48", "--async-scheduling"]
    argv += ["--no-async-scheduling"]
    parsed = flags.parse(argv, {"PATH": "/bin"})
    assert parsed == EngineConfig.of({"max_num_seqs": 48, "async_scheduling": False})


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--max-seqs", "3"], r"--max-seqs is not a flag .* \(known: .*--max-num-seqs"),
        (["--no-max-num-seqs"], "--no-max-num-seqs is not a flag"),
        (["--async-scheduling=true"], "--async-scheduling is not a flag"),
        (["--speculative-method", "mtp"], "--speculative-method is not a flag"),
        (["--max-num-seqs"], "--max-num-seqs needs a value"),
        (["--max-num-seqs", "many"], "max_num_seqs must be of kind int; got 'many'"),
        (["--speculative-config", "{"], "must be a JSON object with a method"),
        (["--speculative-config", '{"method":"mtp","x":1}'], "has the unknown field x"),
        (
            ["--speculative-config", '{"method":"mtp","num_speculative_tokens":0}'],
            "num_speculative_tokens must be a whole number above 0",
        ),
    ],
)
def test_what_cannot_be_understood_is_refused_in_a_sentence(argv: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        flags.parse(argv, {})


def test_unknown_knobs_and_versions_are_refused_by_naming_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"turbo is not a knob .* \(known: speculative_method, "):
        flags.command_line(EngineConfig.of({"turbo": True}))
    with pytest.raises(BadInput, match=r"no knob catalogue for vLLM 9 \(known: 0\.32\)"):
        flags.catalogue("9")


def test_every_rule_of_the_catalogue_names_values_that_exist() -> None:
    domains = {knob.name: knob.domain for knob in KNOBS}
    for knob in KNOBS:
        assert knob.default in knob.domain
        assert set(knob.lossy_values) <= set(knob.domain)
        for condition in knob.only_if:
            assert set(condition.values) <= set(domains[condition.knob])
        for value, _ in knob.needs:
            assert value is None or value in knob.domain
    assert min(domains["max_num_batched_tokens"]) >= max(domains["max_num_seqs"])
