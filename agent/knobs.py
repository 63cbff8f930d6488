"""What ``serinus knobs sync`` does: asks an installed vLLM whether the knob catalogue still holds.

It changes nothing: a catalogue is corrected by a person, who reads here where it is wrong.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from serving.drift import Finding, Installed, Unnamed, drift, unnamed
from serving.dry_run import introspect
from serving.flags import CatalogueKnob, catalogue
from serving.hardware import HardwareClass
from serving.vllm_process import python_of

_WIDTH = 90


class Report(NamedTuple):
    """What there is to say, and whether the catalogue is wrong anywhere."""

    text: str
    drifted: bool


def sync(vllm: Path, version: str, *, everything: bool, as_json: bool) -> Report:
    """Compare the catalogue of ``version`` with an installed vLLM; BadInput where either lacks.

    ``everything`` also lists what vLLM takes and the catalogue does not name.
    """
    knobs = [knob for kind in HardwareClass for knob in catalogue(version, kind).knobs]
    told = asyncio.run(introspect(python_of(vllm)))
    findings = drift(knobs, told)
    new = unnamed(knobs, told)
    if as_json:
        text = _document(version, knobs, told, findings, new if everything else ())
    else:
        text = "\n".join((*_sentences(version, knobs, told, findings), *_news(new, everything)))
    return Report(text, bool(findings))


def _document(
    version: str,
    knobs: list[CatalogueKnob],
    told: Installed,
    findings: tuple[Finding, ...],
    more: tuple[Unnamed, ...],
) -> str:
    document = {
        "catalogue": version,
        "vllm": told.version,
        "knobs": len({knob.name for knob in knobs}),
        "drift": [
            {**finding._asdict(), "difference": finding.difference.value} for finding in findings
        ],
        "unnamed": [row._asdict() for row in more],
    }
    return json.dumps(document, indent=2)


def _sentences(
    version: str,
    knobs: list[CatalogueKnob],
    told: Installed,
    findings: tuple[Finding, ...],
) -> list[str]:
    count = len({knob.name for knob in knobs})
    lines = [f"vLLM {told.version} against the {count} knobs of the catalogue for {version}."]
    if not told.version.startswith(f"{version}."):
        lines.append("The catalogue is for another version: what follows is what changed since.")
    return lines + ([finding.sentence for finding in findings] or ["No drift: all of them hold."])


def _news(new: tuple[Unnamed, ...], everything: bool) -> list[str]:
    """What is new to the catalogue: how much of it, or all."""
    lines = []
    if new and not everything:
        flags, values = sum(not row.values for row in new), sum(len(row.values) for row in new)
        lines.append(
            f"New to the catalogue: {flags} flags, and {values} values of knobs that it has; "
            "--all lists them."
        )
    for group in dict.fromkeys(row.group for row in new if everything):
        rows = (row for row in new if row.group == group)
        lines += ["", f"Not in the catalogue, {group}:", *map(_shown, rows)]
    return lines


def _shown(row: Unnamed) -> str:
    if row.values:
        return f"  {row.flag} also takes {', '.join(map(str, row.values))}"
    return f"  {row.flag}  {shorten(row.about, _WIDTH)}".rstrip()
