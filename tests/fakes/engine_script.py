"""A tiny engine for tests of launchers: standard library only, misbehaving on demand.

Its command line is that of ``vllm serve`` as far as launchers use it, and flags for misbehaviour.
A flag that takes a path turns on or off with that file's existence.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--variant", help="does nothing: tells two configs apart")
    parser.add_argument("--say", help="a line for the log")
    parser.add_argument("--show-start", help="log arguments, environment, session and open files")
    parser.add_argument("--exit-at-start", type=int, help="the exit code")
    parser.add_argument("--never-ready", help="do not open the port")
    parser.add_argument("--no-tokens", help="answer completions without a token")
    parser.add_argument("--no-metrics", help="answer /metrics with 404")
    parser.add_argument("--hold-completions-while", type=Path)
    parser.add_argument("--hang-while", type=Path)
    parser.add_argument("--busy-while", type=Path)
    parser.add_argument("--ignore-terminate", help="go on after SIGTERM")
    parser.add_argument("--workers", type=int, default=0, help="children in sessions of their own")
    return parser.parse_args()


def _held(path: Path | None) -> bool:
    return path is not None and path.exists()


class _Handler(BaseHTTPRequestHandler):
    knobs: argparse.Namespace

    def do_GET(self) -> None:
        while _held(self.knobs.hang_while):
            time.sleep(0.02)
        if self.path == "/health":
            self._answer(200, "")
        elif self.path == "/metrics" and not self.knobs.no_metrics:
            running = 1 if _held(self.knobs.busy_while) else 0
            self._answer(
                200,
                f'vllm:num_requests_running{{engine="0"}} {running}.0\n'
                'vllm:num_requests_waiting{engine="0"} 0.0\n',
            )
        else:
            self._answer(404, "")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        while _held(self.knobs.hold_completions_while):
            time.sleep(0.02)
        tokens = 0 if self.knobs.no_tokens else asked["max_tokens"]
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        choices = [{"index": 0, "text": "a " * tokens}]
        self._answer(200, json.dumps({"choices": choices, "usage": usage}))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def _show_start() -> None:
    print("arguments:", *sys.argv[1:])
    print("environment:", *sorted(os.environ))
    print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"))
    print("leads its session:", os.getsid(0) == os.getpid())
    print("input:", repr(sys.stdin.read()))


def main() -> None:
    knobs = _arguments()
    if knobs.ignore_terminate:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if knobs.say:
        print(knobs.say)
    if knobs.show_start:
        _show_start()
    for _ in range(knobs.workers):
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        print("worker:", subprocess.Popen(sleeper, start_new_session=True).pid)
    if knobs.exit_at_start is not None:
        sys.exit(knobs.exit_at_start)
    if knobs.never_ready:
        time.sleep(600)
    _Handler.knobs = knobs
    ThreadingHTTPServer((knobs.host, knobs.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
