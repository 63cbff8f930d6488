"""The text that natural prompts are cut from: a file of the user's, else Serinus's own sources.

Its own are what an installation always has, are nobody else's, and read like what coding agents
send. Reads files; turning text into token ids is an engine's part (``canary.tokenization``).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from canary.prompts.tokens import LEAST_CORPUS
from domain.errors import BadInput

# What a token of common vocabularies holds, and some more.
_LETTERS = 6
# Named, not imported: only where they lie is asked.
_PACKAGES = ("domain", "tools", "serving", "canary", "agent", "migrations")


def corpus_text(path: Path | None = None) -> str:
    """The text of the file ``path``, else of Serinus's own modules.

    BadInput where the file cannot be read as text, or is too short for prompts in any vocabulary:
    no token is less than a byte.
    """
    if path is None:
        return "\n\n".join(file.read_text(encoding="utf-8") for file in _own_files())
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The corpus {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"The corpus {path} is no text in UTF-8; give it as plain text.") from error
    if (size := len(text.encode())) < LEAST_CORPUS:
        raise BadInput(
            f"The corpus {path} has {size} bytes, and prompts are cut from {LEAST_CORPUS} tokens at"
            f" least; give a text of some {_LETTERS * LEAST_CORPUS} letters or more."
        )
    return text


def _own_files() -> list[Path]:
    found = []
    for package in _PACKAGES:
        spec = find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            found += sorted(Path(place).rglob("*.py"))
    return found
