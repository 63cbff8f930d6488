"""Other load clients on the same server: how each is called, and what it says of each request.

They get the rate that keeps as many streams under way as our closed loop does, evenly spaced, since
neither can spread the first streams otherwise. For plans of ours, vLLM's client can also be kept
loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# vLLM's trace reader derives a prompt from Python's hash of its id.
SAME_HASHES = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
# First the prompts of a trace, then `vllm bench serve` once for each line of arguments. It asks for
# each answer's length by ``ignore_eos`` alone, under which a model may end its answer and say
# nothing more; our client also asks for ``min_tokens``. So the requests of both ask for it.
VLLM_SIDE = """
import contextlib, json, sys
from vllm.benchmarks.datasets.datasets import TimedTrace
from vllm.benchmarks.serve import add_cli_args, main
from vllm.tokenizers import get_tokenizer
from vllm.utils.argparse_utils import FlexibleArgumentParser
path, tokenizer, isl = sys.argv[1:]
with contextlib.redirect_stdout(sys.stderr):
    trace = TimedTrace(
        dataset_path=path,
        timed_trace_chunk_hash_size=isl,
        timed_trace_label_timestamp="timestamp",
        timed_trace_label_input_length="input_length",
        timed_trace_label_output_length="output_length",
        timed_trace_label_hash_ids="hash_ids",
    )
    sample = TimedTrace.sample
    def forced(self, **options):
        asked = sample(self, **options)
        for request in asked:
            request.request_overrides = {"min_tokens": request.expected_output_len}
        return asked
    TimedTrace.sample = forced
    asked = trace.sample(tokenizer=get_tokenizer(tokenizer), num_requests=10**6)
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
print(json.dumps([request.prompt for request in asked]), flush=True)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        main(parser.parse_args(json.loads(line)))
    print(flush=True)
"""


class Load(NamedTuple):
    """What a rival is asked to send; lengths are tokens."""

    url: str
    model: str
    tokenizer: Path
    requests: int
    streams: int
    rate_rps: float
    isl: int
    osl: int


class Seen(NamedTuple):
    """One completed request as a client saw it; the zero of ``sent_s`` is the client's own."""

    sent_s: float
    ttft_s: float
    tpot_s: float


class Rival(NamedTuple):
    """How a tool is called to leave its result in a directory, and how that is read."""

    command: Callable[[Path, Load, Path], list[str]]
    seen: Callable[[Path], list[Seen]]


def vllm_command(vllm: Path, load: Load, directory: Path) -> list[str]:
    """``vllm bench serve``; its result is read by ``vllm_seen``."""
    return [
        str(vllm),
        *("bench", "serve", "--backend", "openai", "--base-url", load.url),
        *("--model", load.model, "--tokenizer", str(load.tokenizer)),
        *("--dataset-name", "random", "--ignore-eos", "--disable-tqdm"),
        *("--random-input-len", str(load.isl), "--random-output-len", str(load.osl)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)),
        *("--request-rate", f"{load.rate_rps:.2f}", "--burstiness", "1000"),
        *("--save-result", "--save-detailed"),
        *("--result-dir", str(directory), "--result-filename", "vllm.json"),
    ]


def vllm_seen(directory: Path) -> list[Seen]:
    """What ``vllm bench serve`` kept of each request; TPOT by its own definition."""
    return vllm_requests(json.loads((directory / "vllm.json").read_text(encoding="utf-8")))


def vllm_requests(said: Mapping[str, Sequence[Any]]) -> list[Seen]:
    rows = zip(
        said["start_times"],
        said["ttfts"],
        said["latencies"],
        said["output_lens"],
        said["errors"],
        strict=True,
    )
    return [
        Seen(sent_s, ttft_s, (latency_s - ttft_s) / (osl - 1))
        for sent_s, ttft_s, latency_s, osl, error in rows
        if not error and osl > 1
    ]


def aiperf_command(aiperf: Path, load: Load, directory: Path) -> list[str]:
    """``aiperf profile``; its result is read by ``aiperf_seen``."""
    return [
        str(aiperf),
        *("profile", "--url", load.url, "--endpoint-type", "completions", "--streaming"),
        *("--model", load.model, "--tokenizer", str(load.tokenizer)),
        *("--use-server-token-count", "--extra-inputs", "ignore_eos:true"),
        *("--isl", str(load.isl), "--osl", str(load.osl)),
        *("--request-count", str(load.requests), "--concurrency", str(load.streams)),
        *("--request-rate", f"{load.rate_rps:.2f}", "--arrival-pattern", "constant"),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--export-level", "records", "--output-artifact-dir", str(directory)),
    ]


def aiperf_seen(directory: Path) -> list[Seen]:
    """What AIPerf kept of each request; its inter-token latency is what is called TPOT here."""
    lines = (directory / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    return aiperf_requests(map(json.loads, lines))


def aiperf_requests(rows: Iterable[Mapping[str, Any]]) -> list[Seen]:
    return [
        Seen(
            row["metadata"]["request_start_ns"] / 1e9,
            row["metrics"]["time_to_first_token"]["value"] / 1000,
            row["metrics"]["inter_token_latency"]["value"] / 1000,
        )
        for row in rows
        if not row.get("error") and not row["metadata"]["was_cancelled"]
    ]


VLLM = Rival(vllm_command, vllm_seen)
AIPERF = Rival(aiperf_command, aiperf_seen)
