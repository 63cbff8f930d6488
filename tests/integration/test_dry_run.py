"""The dry run against a process that speaks its protocol, well and badly."""

import asyncio
import logging
import os
from pathlib import Path

import psutil
import pytest

from domain.engine import Change, EngineConfig, Refusal
from domain.errors import BadInput
from serving.dry_run import DryRun, introspect
from tests.fakes.vllm_python import Manner, VllmPython

DEFAULTS = EngineConfig()


def dry_run(python: VllmPython, **limits: float) -> DryRun:
    return DryRun(python=python.path, model="m", engine_args=("--max-model-len", "1024"), **limits)


async def gone(pid: int) -> bool:
    """Whether a process ends before long."""
    async with asyncio.timeout(10):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
    return True


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "serving.dry_run")
    return caplog


async def test_a_config_comes_back_in_the_catalogues_own_values(tmp_path: Path) -> None:
    python = VllmPython(
        tmp_path,
        Manner.RESOLVE,
        told={
            "scheduler_config.max_num_seqs": 64,
            "scheduler_config.async_scheduling": False,
            "model_config.dtype": "float32",
            "cache_config.kv_offloading_size": 8.0,
            "compilation_config.max_cudagraph_capture_size": None,
            "speculative_config.method": None,
        },
    )
    resolver = dry_run(python)
    config = EngineConfig.of(
        {
            "max_num_seqs": 64,
            "async_scheduling": True,
            "dtype": "auto",
            "speculative_method": "none",
            "max_num_batched_tokens": 4096,
        }
    )
    resolution = await resolver.resolve(config)
    await resolver.aclose()
    assert not isinstance(resolution, Refusal)
    assert resolution is not None
    assert resolution.overridden == (Change("async_scheduling", True, False),)
    told = resolution.config.as_dict()
    assert told["max_num_seqs"] == 64
    assert told["dtype"] == "float32"
    assert told["speculative_method"] == "none"
    assert told["max_cudagraph_capture_size"] == 0
    assert type(told["kv_offloading_size"]) is int
    # Of a path that this vLLM lacks nothing is told, so what was asked for stands.
    assert told["max_num_batched_tokens"] == 4096


async def test_one_process_is_asked_with_the_engines_own_command_line(tmp_path: Path) -> None:
    python = VllmPython(tmp_path, Manner.REFUSE)
    resolver = dry_run(python)
    config = EngineConfig.of({"max_num_seqs": 64, "VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    assert await resolver.resolve(DEFAULTS) == Refusal("m --max-model-len 1024")
    assert await resolver.resolve(config) == Refusal("m --max-model-len 1024 --max-num-seqs 64")
    await resolver.aclose()
    assert [request["env"] for request in python.noted("request")] == [
        {},
        {"VLLM_CPU_OMP_THREADS_BIND": "0-1"},
    ]
    [(mode, pid, _, _)] = python.noted("start")
    assert mode == "resolve"
    assert await gone(pid)


async def test_nothing_of_the_controller_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SERINUS_API_TOKEN", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    python = VllmPython(tmp_path, Manner.REFUSE)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    resolver = dry_run(python)
    await resolver.resolve(DEFAULTS)
    await resolver.aclose()
    os.close(reader)
    os.close(writer)
    [(_, _, variables, handles)] = python.noted("start")
    assert "HF_HUB_OFFLINE" in variables
    assert not {"SERINUS_API_TOKEN", "HF_TOKEN"} & set(variables)
    # The three standard ones and the folder that is being listed.
    assert len(handles) == 4


@pytest.mark.parametrize("manner", [Manner.DIE, Manner.GARBAGE, Manner.OTHER_JSON])
async def test_one_that_cannot_answer_is_started_once_more_and_then_left_alone(
    tmp_path: Path, manner: Manner, warnings: pytest.LogCaptureFixture
) -> None:
    python = VllmPython(tmp_path, manner)
    resolver = dry_run(python)
    assert [await resolver.resolve(DEFAULTS) for _ in range(4)] == [None] * 4
    await resolver.aclose()
    starts = python.noted("start")
    assert len(starts) == 2
    assert all([await gone(pid) for _, pid, _, _ in starts])
    assert [record.levelname for record in warnings.records] == ["WARNING"] * 2
    assert ("cannot import vllm" in warnings.text) is (manner is Manner.DIE)


async def test_one_that_dies_now_and_then_is_started_each_time(tmp_path: Path) -> None:
    python = VllmPython(tmp_path, Manner.DIE_EVERY_OTHER)
    resolver = dry_run(python)
    answers = [await resolver.resolve(DEFAULTS) for _ in range(8)]
    await resolver.aclose()
    assert [answer is not None for answer in answers] == [True, False] * 4


async def test_what_stood_in_the_way_beside_the_config_is_no_refusal(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    python = VllmPython(tmp_path, Manner.UNKNOWN)
    resolver = dry_run(python)
    assert [await resolver.resolve(DEFAULTS) for _ in range(3)] == [None] * 3
    await resolver.aclose()
    assert len(python.noted("start")) == 1
    assert "the hub is away" in warnings.text


async def test_after_a_death_the_next_question_is_answered(tmp_path: Path) -> None:
    resolver = dry_run(VllmPython(tmp_path, Manner.DIE_ONCE))
    first, second = [await resolver.resolve(DEFAULTS) for _ in range(2)]
    await resolver.aclose()
    assert first is None
    assert second is not None


async def test_one_that_is_silent_is_killed_with_its_children(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    python = VllmPython(tmp_path, Manner.SILENT_WITH_A_CHILD)
    resolver = dry_run(python, first_limit_s=2.0)
    assert await resolver.resolve(DEFAULTS) is None
    [child] = python.noted("child")
    assert await gone(child)
    assert "not answered within 2 s" in warnings.text


async def test_a_question_given_up_leaves_no_answer_for_the_next(tmp_path: Path) -> None:
    python = VllmPython(tmp_path, Manner.SILENT)
    resolver = dry_run(python)
    question = asyncio.create_task(resolver.resolve(DEFAULTS))
    async with asyncio.timeout(10):
        while not python.noted("request"):
            await asyncio.sleep(0.01)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    [(_, pid, _, _)] = python.noted("start")
    assert await gone(pid)


async def test_a_python_that_does_not_start_is_no_refusal(tmp_path: Path) -> None:
    resolver = DryRun(python=tmp_path / "none", model="m")
    assert await resolver.resolve(DEFAULTS) is None


@pytest.mark.parametrize("manner", [Manner.DIE, Manner.GARBAGE, Manner.OTHER_JSON])
async def test_introspection_that_fails_is_one_sentence(tmp_path: Path, manner: Manner) -> None:
    with pytest.raises(BadInput, match="does not tell its options"):
        await introspect(VllmPython(tmp_path, manner).path)
