"""Causes read from exit codes and logs of real engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.study import FailureKind
from serving.failures import MAX_CHARS, MAX_LINES, classify, cleaned, decisive

CORE_FAILED = (
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}"
)
NOISE = "\n".join(f"INFO 11-30 10:00:{i % 60:02} [loader.py:458] shard {i}" for i in range(200))


@pytest.mark.parametrize(
    ("line", "kind", "cause"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            FailureKind.OUT_OF_MEMORY,
            "ran out of memory",
        ),
        (
            "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 3.6 GiB).",
            FailureKind.OUT_OF_MEMORY,
            "ran out of memory",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine.",
            FailureKind.OUT_OF_MEMORY,
            "ran out of memory",
        ),
        (
            "OSError: [Errno 98] Address already in use",
            FailureKind.START,
            "could not open its port",
        ),
        (
            "vllm: error: unrecognized arguments: --mamba-backend flashinfer",
            FailureKind.START,
            "refused its command line",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
            FailureKind.START,
            "refused its configuration",
        ),
        (
            "ModuleNotFoundError: No module named 'flashinfer'",
            FailureKind.START,
            "installation is incomplete",
        ),
    ],
)
def test_the_root_cause_is_found_above_the_last_traceback(
    line: str, kind: FailureKind, cause: str
) -> None:
    log = f"{NOISE}\n(EngineCore pid=9) {line}\n{NOISE}\n{CORE_FAILED}\n"
    failure = classify(exit_code=1, warm=False, log=log)
    assert failure.kind is kind
    assert cause in failure.sentence
    assert line in failure.sentence
    assert line in failure.log_tail
    assert CORE_FAILED in failure.log_tail


def test_out_of_memory_after_serving_is_still_out_of_memory() -> None:
    """A config that starts can still run out of memory under load (vllm#21410)."""
    failure = classify(exit_code=1, warm=True, log="torch.OutOfMemoryError: CUDA out of memory.")
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "after it had served" in failure.sentence


@pytest.mark.parametrize(
    ("exit_code", "warm", "kind", "words"),
    [
        (3, False, FailureKind.START, "exit code 3 before it was ready"),
        (0, True, FailureKind.DIED, "exit code 0 after it had served"),
        (-9, True, FailureKind.DIED, "SIGKILL (often the system's own answer to too little"),
        (-11, False, FailureKind.START, "SIGSEGV before it was ready"),
        (-99, True, FailureKind.DIED, "signal 99"),
        (None, True, FailureKind.DIED, "process is gone, with no cause in its log"),
    ],
)
def test_without_a_cause_in_the_log_the_exit_code_speaks(
    exit_code: int | None, warm: bool, kind: FailureKind, words: str
) -> None:
    failure = classify(exit_code=exit_code, warm=warm, log="INFO ready\n")
    assert failure.kind is kind
    assert words in failure.sentence


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key QUIETPLEASE --port 1",
        "['serve', '--api-key', 'QUIETPLEASE']",
        "non-default args: {'api_key': ['QUIETPLEASE'], 'port': 1}",
        "Authorization: Bearer QUIETPLEASE",
        "key sk-QUIETPLEASE123 and hf_QUIETPLEASE123",
        "HF_TOKEN=QUIETPLEASE",
        '"client_secret": "QUIETPLEASE"',
        "GET http://me:QUIETPLEASE@mirror.example/model",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert "QUIETPLEASE" not in cleaned(text)
    assert "***" in cleaned(text)


def test_figures_about_tokens_are_no_secrets() -> None:
    text = "max_num_batched_tokens=2048 num_speculative_tokens: 3, throughput 12000 tokens/s"
    assert cleaned(text) == text


def test_terminal_colours_and_control_characters_are_dropped() -> None:
    assert cleaned("\x1b[36m(EngineCore pid=9)\x1b[0m ready\x07\r\nnext") == (
        "(EngineCore pid=9) ready\nnext"
    )


@given(st.text(max_size=3000) | st.lists(st.text(max_size=500), max_size=80).map("\n".join))
def test_the_tail_of_any_log_is_bounded_and_printable(log: str) -> None:
    tail = decisive(log)
    assert len(tail) <= MAX_CHARS
    assert len(tail.splitlines()) <= MAX_LINES
    assert not set(tail) & {"\x00", "\x1b", "\r"}


def test_the_last_lines_are_kept_in_order() -> None:
    assert decisive("one\n\ntwo\nthree\n") == "one\ntwo\nthree"
    assert decisive(NOISE).endswith("shard 199")
    assert len(decisive(NOISE).splitlines()) == MAX_LINES
