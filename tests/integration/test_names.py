"""The packages have common names: they must be this project's, wherever Python is started."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "canary", "domain", "serving", "tools")

PLACES = """
import importlib, json
names = %r
print(json.dumps({name: list(importlib.import_module(name).__path__) for name in names}))
"""

IMPORT_ALL = """
import importlib, json, sys, threading
from pathlib import Path
import psutil

root, here = Path(sys.argv[1]), Path.cwd()
me = psutil.Process()
for package in %r:
    for file in sorted((root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        importlib.import_module(".".join(p for p in parts if p != "__init__"))
children = [child.name() for child in me.children(recursive=True)]
threads = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
sockets = [str(c.laddr) for c in me.net_connections()]
files = [path.name for path in here.iterdir()]
print(json.dumps({"children": children, "threads": threads, "sockets": sockets, "files": files}))
"""


@pytest.fixture
def run(tmp_path):
    """Run a program with this Python in a folder that is not the project's."""

    def python(program, *arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *arguments],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return python


def test_outside_the_project_the_names_are_still_ours(run):
    assert run(PLACES % (PACKAGES,)) == {name: [str(ROOT / name)] for name in PACKAGES}


def test_no_other_distribution_owns_one_of_the_names():
    owners = importlib.metadata.packages_distributions()
    assert "pytest" in owners
    assert {
        name: others
        for name in (*PACKAGES, "migrations")
        if (others := set(owners.get(name, ())) - {"serinus"})
    } == {}


def test_importing_every_module_does_nothing(run):
    assert run(IMPORT_ALL % (PACKAGES,), str(ROOT)) == {
        "children": [],
        "threads": [],
        "sockets": [],
        "files": [],
    }
