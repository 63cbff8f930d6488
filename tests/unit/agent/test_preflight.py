"""What is checked before anything is started, and the one sentence where it does not hold."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import preflight
from domain.errors import BadInput


def test_the_state_folder_is_made_private_and_left_empty(tmp_path: Path) -> None:
    folder = preflight.state_folder(tmp_path / "deep" / "state")
    assert folder.is_absolute()
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as refused:
        preflight.state_folder(tmp_path / "file" / "state")
    assert str(refused.value) == (
        f"The state folder {tmp_path}/file/state cannot be written (Not a directory); "
        "set state_dir to another."
    )


def test_the_folder_of_the_requests_log_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = preflight.requests_folder(tmp_path / "deep" / "requests")
    assert folder.is_absolute()
    assert list(folder.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as refused:
        preflight.requests_folder(tmp_path / "file")
    assert str(refused.value) == (
        f"The folder {tmp_path}/file cannot be written (File exists); set requests_log to "
        "another, or leave it out."
    )


@pytest.mark.parametrize("check", [preflight.state_folder, preflight.requests_folder])
def test_a_folder_in_which_no_file_can_be_written_is_refused(
    check: Callable[[Path], Path], tmp_path: Path
) -> None:
    """That it is there proves nothing; here another thing stands where the file would."""
    (tmp_path / ".writable").mkdir()
    with pytest.raises(BadInput, match="cannot be written"):
        check(tmp_path)


def test_the_simulator_runs_in_this_python() -> None:
    assert preflight.executable("simulator") == (sys.executable, "-m", "serving.simulator")


def test_an_executable_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    vllm.touch(mode=0o755)
    assert preflight.executable(str(vllm)) == (str(vllm),)
    (found,) = preflight.executable("sh")
    assert Path(found).is_absolute()


def test_an_executable_that_is_missing_or_may_not_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'no-such-vllm' does not exist; set executable to"):
        preflight.executable("no-such-vllm")
    plain = tmp_path / "vllm"
    plain.touch(mode=0o644)
    with pytest.raises(BadInput, match="is not executable; set executable to"):
        preflight.executable(str(plain))


def test_a_state_folder_that_others_can_read_is_refused(tmp_path):
    """It holds the evidence, the orders and the engines' logs."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(BadInput, match="open to other users; close it"):
        preflight.state_folder(folder)
    folder.chmod(0o700)
    assert preflight.state_folder(folder) == folder
