"""Causes read from exit codes and logs of real engines.

The files in ``tests/data/logs`` are the last lines of real logs of vLLM 0.32.0 on a CPU. What a
CPU cannot say is quoted from public issues, which are named.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.study import FailureKind
from serving.failures import MAX_CHARS, MAX_LINES, classify, cleaned, decisive

LOGS = Path(__file__).parents[2] / "data" / "logs"
NOISE = "\n".join(f"INFO 11-30 10:00:{i % 60:02} [loader.py:458] shard {i}" for i in range(200))


def real(case: str) -> str:
    return (LOGS / f"vllm-0.32-cpu-{case}.txt").read_text()


@pytest.mark.parametrize(
    ("case", "exit_code", "kind", "line"),
    [
        (
            "unknown-mamba-backend",
            1,
            FailureKind.UNSUPPORTED,
            "ValueError: Unknown Mamba SSU backend: 'NONSENSE'",
        ),
        (
            "chunked-prefill-off",
            1,
            FailureKind.UNSUPPORTED,
            "Value error, max_num_batched_tokens (512) is smaller than max_model_len (1024)",
        ),
        (
            "batched-below-seqs",
            1,
            FailureKind.UNSUPPORTED,
            "Value error, max_num_batched_tokens (64) must be greater "
            "than or equal to max_num_seqs (128)",
        ),
        (
            "dtype-nonsense",
            2,
            FailureKind.UNSUPPORTED,
            "vllm serve: error: argument --dtype: invalid choice: 'nonsense'",
        ),
        (
            "mtp-no-head",
            1,
            FailureKind.UNSUPPORTED,
            "NotImplementedError: Unsupported speculative method: 'mtp'",
        ),
        (
            "mtp-hybrid-prefix-caching",
            0,
            FailureKind.MISSING_KERNEL,
            "TypeError: 'function' object is not subscriptable",
        ),
        (
            "model-path-absent",
            1,
            FailureKind.MODEL_NOT_FOUND,
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form",
        ),
        (
            "hub-offline",
            1,
            FailureKind.MODEL_NOT_FOUND,
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate "
            "cached snapshot",
        ),
        (
            "no-config-json",
            1,
            FailureKind.MODEL_NOT_FOUND,
            "Value error, Invalid repository ID or local directory specified: 'models/empty-dir'",
        ),
        (
            "port-in-use",
            1,
            FailureKind.PORT,
            "OSError: [Errno 98] Address already in use",
        ),
    ],
)
def test_real_engines_tell_why_they_did_not_start(
    case: str, exit_code: int, kind: FailureKind, line: str
) -> None:
    failure = classify(exit_code=exit_code, warm=False, log=real(case))
    assert failure.kind is kind
    assert "before it was ready: " in failure.sentence
    assert line in failure.sentence
    assert line in failure.log_tail


def test_an_engine_core_that_breaks_under_load_ends_its_server_with_code_0() -> None:
    """The root cause stands in the worker, three tracebacks before the end (vllm#48966)."""
    failure = classify(exit_code=0, warm=True, log=real("mtp-hybrid-prefix-caching"))
    assert failure.kind is FailureKind.MISSING_KERNEL
    assert failure.sentence.endswith(
        "after it had served: TypeError: 'function' object is not subscriptable"
    )


def test_an_engine_core_that_is_killed_under_load_leaves_no_traceback_and_code_0() -> None:
    failure = classify(exit_code=0, warm=True, log=real("engine-core-killed"))
    assert failure.kind is FailureKind.KILLED
    assert "engine core exited unexpectedly" in failure.sentence


@pytest.mark.parametrize("exit_code", [0, 1, None])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("case", ["healthy-stopped", "healthy-stopped-by-group"])
def test_a_healthy_log_is_no_cause(case: str, exit_code: int | None, warm: bool) -> None:
    failure = classify(exit_code=exit_code, warm=warm, log=real(case))
    assert failure.kind is (FailureKind.DIED if warm else FailureKind.START)
    ended = "process is gone" if exit_code is None else f"exit code {exit_code} "
    assert ended in failure.sentence


# Quoted from public issues, not produced here: what only a GPU says.

START_FAILED = (
    "(EngineCore pid=9) ERROR 07-28 15:07:22 [core.py:632] EngineCore failed to start.\n"
    "(EngineCore pid=9) ERROR 07-28 15:07:22 [core.py:632] Traceback (most recent call last):\n"
    "(EngineCore pid=9) ERROR 07-28 15:07:22 [core.py:632] {line}\n"
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {{}}\n"
)
BROKE_UNDER_LOAD = (
    "(EngineCore pid=9) ERROR 05-01 14:39:06 [core.py:1131] EngineCore encountered a fatal error.\n"
    "(EngineCore pid=9) ERROR 05-01 14:39:06 [core.py:1131] Traceback (most recent call last):\n"
    "(EngineCore pid=9) ERROR 05-01 14:39:06 [core.py:1131] {line}\n"
    "(APIServer pid=1) ERROR 05-01 14:39:06 [async_llm.py:699] vllm.v1.engine.exceptions."
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    '\nINFO:     127.0.0.1:52888 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
)


@pytest.mark.parametrize(
    ("issue", "line", "at_start", "under_load"),
    [
        (
            "noonghunna/club-3090#16",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a "
            "total capacity of 23.56 GiB of which 21.75 MiB is free.",
            FailureKind.OUT_OF_MEMORY,
            FailureKind.OUT_OF_MEMORY_UNDER_LOAD,
        ),
        (
            "vllm#17939",
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
            "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
            "initializing the engine.",
            FailureKind.OUT_OF_MEMORY,
            FailureKind.OUT_OF_MEMORY_UNDER_LOAD,
        ),
        (
            "vllm#25837",
            "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 3.6 GiB).",
            FailureKind.OUT_OF_MEMORY,
            FailureKind.OUT_OF_MEMORY_UNDER_LOAD,
        ),
        (
            "vllm-omni#946",
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine.",
            FailureKind.OUT_OF_MEMORY,
            FailureKind.OUT_OF_MEMORY_UNDER_LOAD,
        ),
        (
            "vllm#14452",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            FailureKind.MISSING_KERNEL,
            FailureKind.MISSING_KERNEL,
        ),
        (
            "vllm#25343",
            "ModuleNotFoundError: No module named 'flash_attn.flash_attn_interface'",
            FailureKind.MISSING_KERNEL,
            FailureKind.MISSING_KERNEL,
        ),
        (
            "vllm#36802",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
            "81920, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.",
            FailureKind.MISSING_KERNEL,
            FailureKind.MISSING_KERNEL,
        ),
        (
            "vllm#21661",
            "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            FailureKind.START,
            FailureKind.DIED,
        ),
        (
            "skypilot#2634",
            "OSError: You are trying to access a gated repo.",
            FailureKind.MODEL_NOT_FOUND,
            FailureKind.MODEL_NOT_FOUND,
        ),
    ],
)
def test_what_a_gpu_says_is_known_at_the_start_and_under_load(
    issue: str, line: str, at_start: FailureKind, under_load: FailureKind
) -> None:
    for template, warm, kind in (
        (START_FAILED, False, at_start),
        (BROKE_UNDER_LOAD, True, under_load),
    ):
        log = f"{NOISE}\n{template.format(line=line)}{NOISE}\n"
        failure = classify(exit_code=1, warm=warm, log=log)
        assert failure.kind is kind, issue
        assert failure.sentence.endswith(line)
        assert line in failure.log_tail
        assert len(failure.log_tail.splitlines()) == MAX_LINES


def test_a_worker_s_error_at_the_start_is_found_before_the_engine_core_s() -> None:
    """Lines of vllm#15105; the engine core's own are those of vllm#17939."""
    worker = "(VllmWorker rank=1 pid=2978) ERROR 03-19 07:27:53 [multiproc_executor.py:375] "
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.74 GiB."
    log = (
        f"{worker}WorkerProc hit an exception: %s\n{worker}{line}\n"
        "ERROR 03-19 07:27:53 [core.py:396] EngineCore failed to start.\n"
        "ERROR 03-19 07:27:53 [core.py:396] Exception: WorkerProc initialization failed due to an "
        "exception in a background process. See stack trace for root cause.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    failure = classify(exit_code=1, warm=False, log=log)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert failure.sentence.endswith(line)


def test_a_worker_that_was_killed_is_told_by_the_executor() -> None:
    line = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
    log = (
        f"(EngineCore pid=9) ERROR 12-01 06:00:00 [multiproc_executor.py:315] {line}\n"
        "(EngineCore pid=9) ERROR 12-01 06:00:00 [core.py:1512] EngineCore encountered a fatal "
        "error.\n(EngineCore pid=9) ERROR 12-01 06:00:00 [core.py:1512] RuntimeError: cancelled\n"
    )
    failure = classify(exit_code=0, warm=True, log=log)
    assert failure.kind is FailureKind.KILLED
    assert failure.sentence.endswith(line)


@pytest.mark.parametrize(
    "line",
    [
        "INFO 12-01 06:00:00 [x.py:1] ValueError: caught and handled",
        "WARNING 12-01 06:00:00 [x.py:1] ImportError: cannot import name 'gemm'; using another",
        "(APIServer pid=7) ERROR 12-01 06:00:00 [serving.py:1] ValueError: prompt too long",
        "Failed to import from vllm._C: ImportError('cannot open shared object file')",
        "see `torch.OutOfMemoryError: CUDA out of memory.` in the manual",
        'ValueError: prompt too long\nINFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 400',
    ],
)
def test_what_a_healthy_engine_says_of_errors_is_no_cause(line: str) -> None:
    failure = classify(exit_code=3, warm=True, log=f"{NOISE}\n{line}\n{NOISE}\n")
    assert failure.kind is FailureKind.DIED
    assert failure.sentence == "The engine ended with exit code 3 after it had served."


@pytest.mark.parametrize(
    ("exit_code", "warm", "kind", "words"),
    [
        (3, False, FailureKind.START, "exit code 3 before it was ready"),
        (0, True, FailureKind.DIED, "exit code 0 after it had served"),
        (-9, True, FailureKind.KILLED, "killed (often the system's own answer to too little"),
        (137, False, FailureKind.KILLED, "before it was ready"),
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
    ("error", "kind"),
    [
        (
            "ValueError: User-specified max_model_len (9000) is greater than the derived "
            "max_model_len (max_position_embeddings=8192.0 or model_max_length=None in model's "
            "config.json).",
            FailureKind.UNSUPPORTED,
        ),
        (
            "OSError: org/model does not appear to have a file named config.json.",
            FailureKind.MODEL_NOT_FOUND,
        ),
        (
            "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current "
            "free memory 71.3 GiB.",
            FailureKind.HOST,
        ),
        (
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests",
            FailureKind.HOST,
        ),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co')",
            FailureKind.HOST,
        ),
        ("OSError: [Errno 28] No space left on device", FailureKind.HOST),
    ],
)
def test_what_the_machine_or_the_network_did_is_not_the_configs_fault(
    error: str, kind: FailureKind
) -> None:
    log = f"(APIServer pid=9) Traceback (most recent call last):\n(APIServer pid=9) {error}\n"
    failure = classify(exit_code=1, warm=False, log=log)
    assert failure.kind is kind
    assert failure.kind.blames_config is (kind is FailureKind.UNSUPPORTED)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key QUIETPLEASE --port 1",
        "['serve', '--api-key', 'QUIETPLEASE']",
        "non-default args: {'api_key': ['QUIETPLEASE'], 'port': 1}",
        "Authorization: Bearer QUIETPLEASE",
        "key sk-QUIETPLEASE123 and hf_QUIETPLEASE0123456789",
        "HF_TOKEN=QUIETPLEASE",
        '"client_secret": "QUIETPLEASE"',
        "GET http://me:QUIETPLEASE@mirror.example/model",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert "QUIETPLEASE" not in cleaned(text)
    assert "***" in cleaned(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=2048 num_speculative_tokens: 3, throughput 12000 tokens/s",
        "the file hf_quant_config.json is missing",
        "hf_overrides={'rope_scaling': 2}",
        "special tokens: eos_token='</s>' pad_token='<pad>'",
    ],
)
def test_words_that_look_like_secrets_are_none(text: str) -> None:
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
