"""A database that cannot be used is named in one clear sentence, without its password."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.store import migrate, open_store
from domain.errors import BadInput, Temporary

FILL = """
import resource, sys
from agent.store import open_store
from domain.errors import BadInput

with open_store(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    try:
        with store.work() as uow:
            uow.state.set("big", "x" * 10_000_000)
            uow.commit()
    except BadInput as error:
        print(error)
with open_store(sys.argv[1]) as store, store.view() as uow:
    print(uow.state.get("big"))
"""


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "cannot be read; write it like 'sqlite:"),
        ("mysql://host/name", "unknown kind; use 'sqlite:"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////no/such/directory/serinus.db", "its directory must exist"),
    ],
)
def test_a_bad_url_says_how_to_mend_it(url: str, sentence: str) -> None:
    for call in (open_store, migrate):
        with pytest.raises(BadInput, match=sentence):
            call(url)


def test_a_password_is_never_shown() -> None:
    with pytest.raises((BadInput, Temporary)) as caught:
        open_store("mysql://ada:secret@host/name")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are not the pages of a database. " * 100)
    with pytest.raises(BadInput, match="not a SQLite database"):
        migrate(f"sqlite:///{path}")


def test_a_database_that_may_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "serinus.db"
    migrate(f"sqlite:///{path}")
    read_only = f"sqlite:///file:{path}?mode=ro&uri=true"
    with (
        open_store(read_only) as store,
        store.work() as uow,
        pytest.raises(BadInput, match="cannot be written to"),
    ):
        uow.state.set("key", 1)


def test_a_full_disk_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """A limit on file sizes stands in for the full disk."""
    url = f"sqlite:///{tmp_path}/serinus.db"
    migrate(url)
    done = subprocess.run(
        [sys.executable, "-c", FILL, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    sentence, after = done.stdout.splitlines()
    assert "cannot be used: the disk" in sentence
    assert after == "None"


def test_an_empty_database_asks_for_the_upgrade(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty; upgrade it"):
        open_store(f"sqlite:///{tmp_path}/serinus.db")
