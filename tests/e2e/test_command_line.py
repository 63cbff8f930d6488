"""What a person gets who types something wrong: one clear sentence, and nothing half-started."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.cli import main
from agent.store import migrate, open_store
from domain.rollout import Phase
from tests.fakes import records
from tests.fakes.running_serinus import ROOT, RunningSerinus


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(tmp_path)
    try:
        yield running
    finally:
        running.close()


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def type_in(*words: object) -> Ran:
    """Run the command line in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "agent.cli", *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def type_here(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run the command line in this process, which saves seconds of imports."""

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["serinus", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(int(ended.value.code or 0), *capfd.readouterr())

    return run


def assert_refused(ran: Ran, *named: str) -> None:
    """One line on standard error that names all this, and nothing on standard output."""
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.endswith(".\n")
    assert [word for word in named if word not in ran.err] == [], ran.err


WRONG_SETTINGS = {
    "unknown setting": ({"sloo": "x"}, ("'sloo'", "not a setting", "remove it")),
    "unknown launcher": ({"launcher": "slurm"}, ("launcher", "'slurm'", "'process'")),
    "unknown planner": ({"planner": "oracle"}, ("planner", "'rulebook' or 'model'")),
    "malformed SLO": ({"slo": "fast"}, ("SLO", "'fast'", "write it like 'ttft<=500ms")),
    "bad schedule": ({"schedule": "at night"}, ("schedule", "'at night'", "'0 2 * * *'")),
    "bad time zone": ({"schedule": "0 2 * * *", "timezone": "Mars"}, ("Mars", "Europe/Berlin")),
    "steps that fall": ({"steps": [50, 25]}, ("steps", "end at 100")),
    "two parts on one port": ({"api_port": 8000, "gateway_port": 8000}, ("both port 8000",)),
    "unknown model": ({"model": "gpt"}, ("gpt", "known: demo-hybrid")),
    "missing executable": (
        {"executable": "/nowhere/vllm", "gpus": "none"},
        ("'/nowhere/vllm' does not exist", "set executable to"),
    ),
    "unreadable model": (
        {"executable": "/bin/true", "model": "/nowhere/model", "gpus": "none"},
        ("/nowhere/model", "set model to"),
    ),
    "a knob named twice": (
        {"engine_args": "--max-num-seqs,4", "baseline.max_num_seqs": 64},
        ("engine_args and baseline both name max_num_seqs", "leave it to one"),
    ),
    "a GPU of unknown size": (
        {
            "executable": "/bin/true",
            "model": "org/name",
            "production_gpu_ids": ["0"],
            "canary_gpu_ids": ["1"],
        },
        ("nvidia-smi", "set gpu_memory_gib"),
    ),
    "a database that is none": ({"database_url": "mongo://here"}, ("mongo", "sqlite://")),
}


@pytest.mark.parametrize("changes, named", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_a_wrong_setting_is_refused_before_anything_is_started(
    type_here: Callable[..., Ran],
    serinus: RunningSerinus,
    changes: Mapping[str, object],
    named: tuple[str, ...],
) -> None:
    assert_refused(type_here("up", "--config", serinus.write("wrong.toml", **changes)), *named)
    assert serinus.processes() == []


@pytest.mark.parametrize(
    "variable, value, named",
    [
        ("SERINUS_SLOO", "x", ("SERINUS_SLOO is not a setting", "unset it")),
        ("SERINUS_CYCLE_S", "soon", ("cycle_s", "'soon'", "valid number")),
        ("SERINUS_CONFIG", "/nowhere/serinus.toml", ("/nowhere/serinus.toml", "check its path")),
    ],
)
def test_a_wrong_variable_is_refused(
    type_here: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    named: tuple[str, ...],
) -> None:
    monkeypatch.setenv(variable, value)
    assert_refused(type_here("status"), *named)


def test_a_settings_file_that_cannot_be_read_is_refused(
    type_here: Callable[..., Ran], tmp_path: Path
) -> None:
    assert_refused(type_here("up", "-c", tmp_path / "none.toml"), "none.toml", "check its path")
    assert_refused(type_here("up", "-c", tmp_path), "Is a directory", "check its path")
    (tmp_path / "bad.toml").write_text("a = [")
    assert_refused(type_here("up", "-c", tmp_path / "bad.toml"), "bad.toml is not valid TOML")


@pytest.mark.parametrize(
    "name, beyond, mend",
    [
        ("api_port", 0, "(api_port) is in use; end what uses it or set api_port to another"),
        ("production_port", 0, "(production_port) is in use; end what uses it or set"),
        ("canary_port", 0, "(canary_port) is in use; end what uses it or set"),
        ("gateway_port", 0, "is in use by another program; free it or name another"),
        ("gateway_port", 1, "is in use by another program; free it or name another"),
    ],
)
def test_a_port_in_use_is_refused_and_no_process_is_left(
    serinus: RunningSerinus, name: str, beyond: int, mend: str
) -> None:
    port = serinus.settings[name] + beyond
    with closing(socket.create_server(("127.0.0.1", port))):
        ran = type_in("up", "--config", serinus.config)
    assert_refused(ran, f"Port {port} ", mend)
    assert serinus.processes() == []


def test_a_state_folder_that_cannot_be_written_is_refused(
    type_here: Callable[..., Ran], serinus: RunningSerinus
) -> None:
    (serinus.folder / "file").touch()
    wrong = serinus.write("wrong.toml", state_dir=str(serinus.folder / "file" / "state"))
    assert_refused(type_here("up", "-c", wrong), "file/state cannot be written", "set state_dir")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command to make a small disk with")
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be made here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("filled_bytes", [0, 256 * 1024], ids=["nearly full", "full"])
def test_a_full_disk_is_refused(
    type_here: Callable[..., Ran], serinus: RunningSerinus, small_disk: Path, filled_bytes: int
) -> None:
    (small_disk / "filling").write_bytes(bytes(filled_bytes))
    full = serinus.write("full.toml", state_dir=str(small_disk / "state"))
    assert_refused(type_here("up", "-c", full), "The disk of", "is full", "free some space")
    assert serinus.processes() == []


ROLLOUT_ORDERS = ("pause", "resume", "abort", "rollback")
OF_ROLLOUT = [f"rollout {word}" for word in ROLLOUT_ORDERS]


@pytest.mark.parametrize("words", ["status", "tune", "pause", "resume", *OF_ROLLOUT])
def test_without_a_store_there_is_nothing_to_order(
    type_here: Callable[..., Ran], serinus: RunningSerinus, words: str
) -> None:
    assert_refused(
        type_here(*words.split(), "-c", serinus.config),
        "There is no store at",
        "run `serinus up` first",
    )
    assert not (serinus.folder / "state").exists()


def test_without_a_gateway_there_is_no_log(
    type_here: Callable[..., Ran], serinus: RunningSerinus
) -> None:
    assert_refused(type_here("requests", "-c", serinus.config), "The gateway is not running")


def test_only_a_haproxy_can_be_ones_own(
    type_here: Callable[..., Ran], serinus: RunningSerinus
) -> None:
    wrong = serinus.write("wrong.toml", gateway="envoy")
    assert_refused(type_here("gateway", "config", "-c", wrong), "gateway is envoy", "set gateway")


@pytest.mark.parametrize("name", ["trace", "corpus"])
def test_a_load_that_cannot_be_read_is_refused(
    type_here: Callable[..., Ran], serinus: RunningSerinus, name: str
) -> None:
    wrong = serinus.write("wrong.toml", **{name: str(serinus.folder / "none.jsonl")})
    assert_refused(type_here("up", "-c", wrong), f"The {name}", "none.jsonl cannot be read")
    assert serinus.processes() == []


def test_the_same_order_twice_is_one(serinus: RunningSerinus) -> None:
    (serinus.folder / "state").mkdir()
    migrate(f"sqlite:///{serinus.folder / 'state' / 'serinus.db'}")
    assert serinus.command("tune").stdout == "tune ordered; the loop takes it next.\n"
    again = serinus.command("tune")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == "tune was ordered already; the loop takes it next.\n"
    assert serinus.command("status").stdout == "Nothing is under way.\n"


@pytest.fixture
def stored(serinus: RunningSerinus) -> RunningSerinus:
    """A state folder with one study and no controller."""
    (serinus.folder / "state").mkdir()
    url = f"sqlite:///{serinus.folder / 'state' / 'serinus.db'}"
    migrate(url)
    with open_store(url) as store, store.work() as uow:
        uow.studies.add(records.study())
        uow.trials.add(records.trial())
        uow.commit()
    return serinus


def test_a_report_is_written_without_a_controller(stored: RunningSerinus) -> None:
    shown = stored.command("report", "study-1", "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout)["study"]["id"] == "study-1"
    out = stored.folder / "of" / "report.html"
    written = stored.command("report", "study-1", "--out", str(out))
    assert written.stdout == f"The report is in {out}.\n"
    page = out.read_text(encoding="utf-8")
    assert page.lstrip().startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert "study-1" in page and "simulated engines" in page
    assert stored.processes() == []


@pytest.mark.parametrize("word", ROLLOUT_ORDERS)
def test_an_order_names_the_rollout_that_it_is_for(
    type_here: Callable[..., Ran], stored: RunningSerinus, word: str
) -> None:
    config = ("-c", stored.config)
    assert_refused(type_here("rollout", word, *config), "This store holds no rollout yet.")
    with stored.store.work() as uow:
        first = records.rollout(phase=Phase.PROMOTED, created_s=1.0)
        uow.rollouts.add(first)
        uow.rollouts.add(records.rollout(id="rollout-2", study_id="", phase=Phase.REJECTED))
        uow.commit()
    refused = type_here("rollout", word, "none", *config)
    assert_refused(refused, "no rollout 'none'; the latest are rollout-2, rollout-1.")
    digest = records.CANDIDATE.digest
    latest = type_here("rollout", word, *config)
    assert (latest.code, latest.out) == (
        0,
        f"rollout {word} of rollout-2 (config {digest}, rejected) ordered; the loop takes it "
        "next.\n",
    )
    with stored.store.work() as uow:
        uow.rollouts.save(replace(first, phase=Phase.ROLLING_BACK))
        uow.commit()
    for given in ((), ("rollout-1",)):
        under_way = type_here("rollout", word, *given, *config)
        assert under_way.out.startswith(f"rollout {word} of rollout-1 (config {digest}, rolling_b")
        assert ("was ordered already" in under_way.out) is bool(given)
    with stored.store.view() as uow:
        bound = [(command.kind.words, command.rollout_id) for command in uow.commands.pending()]
    assert sorted(bound) == [(f"rollout {word}", f"rollout-{n}") for n in (1, 2)]


def test_what_was_rejected_is_not_told_as_waiting(stored: RunningSerinus) -> None:
    with stored.store.work() as uow:
        uow.rollouts.add(records.rollout())
        uow.approvals.add(records.request())
        uow.commit()
    assert "Waiting for approval" in stored.command("status").stdout
    with stored.store.work() as uow:
        uow.rollouts.save(replace(records.rollout(), phase=Phase.REJECTED))
        uow.commit()
    assert "Waiting for approval" not in stored.command("status").stdout


def test_a_report_of_an_unknown_study_is_refused(
    type_here: Callable[..., Ran], stored: RunningSerinus
) -> None:
    refused = type_here("report", "none", "-c", stored.config)
    assert_refused(refused, "There is no study 'none'; the latest are study-1")


def test_a_report_that_cannot_be_written_is_refused(
    type_here: Callable[..., Ran], stored: RunningSerinus
) -> None:
    refused = type_here("report", "study-1", "--out", stored.folder, "-c", stored.config)
    assert_refused(refused, "cannot be written", "Is a directory", "--out")


def test_an_empty_store_has_no_study_to_report(
    type_here: Callable[..., Ran], serinus: RunningSerinus
) -> None:
    assert_refused(type_here("report", "none", "-c", serinus.config), "There is no store at")
    (serinus.folder / "state").mkdir()
    migrate(f"sqlite:///{serinus.folder / 'state' / 'serinus.db'}")
    assert_refused(type_here("report", "none", "-c", serinus.config), "this store holds none yet")


def test_help_lists_every_command() -> None:
    shown = type_in("--help")
    assert shown.code == 0
    orders = ("tune", "pause", "resume")
    told = ("status", "report", "rollout", "doctor", "requests", "gateway")
    for word in ("demo", "up", "down", *orders, *told):
        assert f" {word} " in shown.out
    assert " rollback " not in shown.out
    of_rollout = type_in("rollout", "--help")
    for word in ("show", *ROLLOUT_ORDERS):
        assert f" {word} " in of_rollout.out


def test_settings_are_shown_without_their_secrets(serinus: RunningSerinus) -> None:
    secret = serinus.write("secret.toml", model_api_key="sk-very-secret")
    told = type_in("settings", "-c", secret)
    assert "autonomy = autonomous" in told.out
    assert "sk-very-secret" not in told.out + told.err
