"""Text from outside (names, titles, log lines, labels), made fit to stand beside our own words.

A language model, a terminal and a page read it as data: no mark that ends the data can be in it.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Final

OUTSIDE_CHARACTERS: Final = 300
"""Most characters of one text from outside."""


def as_data(text: str, limit: int = OUTSIDE_CHARACTERS) -> str:
    """``text`` from outside as a quoted line between marks that it cannot contain itself."""
    return f"<data>{json.dumps(cleaned(text, limit), ensure_ascii=False)}</data>"


def cleaned(text: str, limit: int = OUTSIDE_CHARACTERS) -> str:
    """One line without control, format or private characters and angle brackets, cut to length."""
    printable = "".join(
        " " if character.isspace() else character
        for character in text[: 4 * limit]
        if character.isspace() or unicodedata.category(character)[0] != "C"
    )
    line = " ".join(printable.replace("<", "‹").replace(">", "›").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
