"""The knob catalogue, and the way to vLLM's command line and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EngineConfig, SearchSpace, Value
from domain.errors import BadInput
from serving import flags
from serving.hardware import HardwareClass

KNOBS = flags.catalogue().knobs
SPACE = SearchSpace(knobs=KNOBS, rules=flags.catalogue().rules)
ABSENT = object()
FACTS = {"$gpus", "$max_model_len", "$heads"}


@st.composite
def feasible(draw: st.DrawFn) -> EngineConfig:
    """Any config inside the whole catalogue's space; each knob may be absent."""
    values: dict[str, Value] = {}
    for knob in KNOBS:
        choice = draw(st.sampled_from((ABSENT, *knob.domain)))
        if choice is not ABSENT:
            values[knob.name] = choice  # type: ignore[assignment]
    while SPACE.fault(EngineConfig.of(values)):
        values.popitem()
    return EngineConfig.of(values)


@given(feasible())
def test_a_command_line_means_the_config_it_was_made_of(config: EngineConfig) -> None:
    argv, env = flags.command_line(config)
    assert SPACE.normalised(flags.parse(argv, env)) == SPACE.normalised(config)


@given(feasible())
def test_a_parsed_config_gives_the_same_command_line_again(config: EngineConfig) -> None:
    argv, env = flags.command_line(config)
    assert flags.command_line(flags.parse(argv, env)) == (argv, env)


@pytest.mark.parametrize("hardware", HardwareClass)
def test_each_value_of_each_knob_survives_the_round_trip(hardware: HardwareClass) -> None:
    catalogue = flags.catalogue(hardware=hardware)
    space = SearchSpace(knobs=catalogue.knobs, rules=catalogue.rules)
    for knob in catalogue.knobs:
        needed = {condition.knob: condition.values[-1] for condition in knob.only_if}
        for value in knob.domain:
            argv, env = flags.command_line(EngineConfig.of({**needed, knob.name: value}))
            assert space.effective(flags.parse(argv, env), knob.name) == value


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
        assert set(knob.lossy_values) <= {*knob.domain, *knob.accepted}
        for condition in (*knob.only_if, *knob.default_where):
            assert set(condition.values) <= set(domains[condition.knob])
        for value, _ in knob.needs:
            assert value is None or value in knob.domain


@pytest.mark.parametrize("hardware", HardwareClass)
def test_every_rule_of_the_catalogue_names_what_exists(hardware: HardwareClass) -> None:
    catalogue = flags.catalogue(hardware=hardware)
    domains = {knob.name: knob.domain for knob in catalogue.knobs}
    for rule in catalogue.rules:
        assert rule.because
        assert rule.then or rule.bounds
        for condition in (*rule.when, *rule.then):
            assert set(condition.values) <= set(domains[condition.knob])
        for bound in rule.bounds:
            assert set(bound.knobs) <= domains.keys()
            assert not isinstance(bound.other, str) or bound.other in {*domains, *FACTS}


def test_defaults_are_those_of_the_hardware() -> None:
    def default(hardware: HardwareClass, name: str) -> Value:
        knobs = flags.catalogue(hardware=hardware).knobs
        return next(knob.default for knob in knobs if knob.name == name)

    tokens = [default(hardware, "max_num_batched_tokens") for hardware in HardwareClass]
    assert tokens == [2048, 2048, 8192, 16384]
    seats = [default(hardware, "max_num_seqs") for hardware in HardwareClass]
    assert seats == [128, 256, 1024, 1024]


def test_a_switch_that_vllm_decides_by_itself_may_be_left_to_it_or_forced() -> None:
    for value, argv in (("auto", ()), (True, ("--async-scheduling",))):
        config = EngineConfig.of({"async_scheduling": value})
        assert flags.command_line(config) == (argv, {})
    forced_off = EngineConfig.of({"async_scheduling": False})
    assert SPACE.normalised(forced_off) == forced_off


def test_a_drafter_is_written_into_the_speculative_config() -> None:
    config = EngineConfig.of(
        {
            "speculative_method": "eagle3",
            "speculative_model": "org/drafter",
            "num_speculative_tokens": 2,
        }
    )
    argv, env = flags.command_line(config)
    assert argv[1] == '{"method":"eagle3","model":"org/drafter","num_speculative_tokens":2}'
    assert flags.parse(argv, env) == config
