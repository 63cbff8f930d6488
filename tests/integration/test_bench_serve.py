"""What keeps `vllm bench serve` loaded, on a stand-in for vLLM that shows what it was asked for."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.rivals import VLLM_SIDE

# Only the names that are used, with the fields that they have in vLLM 0.32.
STAND_IN = {
    "benchmarks/datasets/datasets.py": """
import json
from dataclasses import dataclass

@dataclass
class SampleRequest:
    prompt: list
    prompt_len: int
    expected_output_len: int = 0
    request_overrides: dict | None = None

class TimedTrace:
    def __init__(self, dataset_path, **labels):
        print("a line that is no answer")
        with open(dataset_path) as lines:
            self.rows = [json.loads(line) for line in lines]

    def sample(self, tokenizer, num_requests, request_id_prefix=""):
        return [
            SampleRequest(row["hash_ids"] * row["input_length"], 1, row["output_length"])
            for row in self.rows[:num_requests]
        ]
""",
    "benchmarks/serve.py": """
import json
from vllm.benchmarks.datasets.datasets import TimedTrace

def add_cli_args(parser):
    parser.add_argument("--dataset-path")
    parser.add_argument("--result")

def main(args):
    print("=== Serving Benchmark Result ===")
    asked = TimedTrace(args.dataset_path).sample(num_requests=10, tokenizer=None)
    with open(args.result, "w") as result:
        json.dump([request.request_overrides for request in asked], result)
""",
    "tokenizers.py": "def get_tokenizer(name): return name",
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
}


def test_each_run_asks_for_the_length_as_our_client_does_and_ends_with_one_line(tmp_path: Path):
    for name, text in STAND_IN.items():
        (tmp_path / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vllm" / name).write_text(text, encoding="utf-8")
    rows = [{"hash_ids": [n], "input_length": 2, "output_length": 12 + n} for n in range(3)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    results = [tmp_path / "first.json", tmp_path / "second.json"]
    lines = [["--dataset-path", str(trace), "--result", str(result)] for result in results]
    done = subprocess.run(
        [sys.executable, "-c", VLLM_SIDE, str(trace), "tokenizer", "2"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    prompts, *ends = done.stdout.splitlines()
    assert json.loads(prompts) == [[0, 0], [1, 1], [2, 2]]
    assert ends == ["", ""], "an empty line after each run"
    for result in results:
        asked = json.loads(result.read_text(encoding="utf-8"))
        assert asked == [{"min_tokens": 12}, {"min_tokens": 13}, {"min_tokens": 14}]
