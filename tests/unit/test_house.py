"""What the documents say of the code is so: settings, commands, links, the index of decisions."""

import re
import tomllib
from enum import Enum
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent.cli import app, rollout
from agent.settings import Settings, load

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/guide.md")),
    ROOT / "docs/behaviours.md",
    *sorted(DECISIONS.glob("*.md")),
]
FAULTS = sorted((ROOT / "tests/faults").glob("test_*.py"))
NUMBERED = re.compile(r"def test_(\d\d)_")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| .+ \|$", re.MULTILINE)


def text(path):
    return path.read_text(encoding="utf-8")


def shown(default):
    """A default as the guide writes it."""
    match default:
        case SecretStr():
            return shown(default.get_secret_value())
        case Enum():
            return default.value
        case float():
            return f"{default:g}"
        case tuple() if default:
            return ", ".join(map(str, default))
        case "" | () | {} | None:
            return "empty"
        case _:
            return str(default)


def test_the_guide_has_each_setting_with_its_default():
    settings = text(ROOT / "docs/guide.md").partition("## Settings")[2].partition("## Commands")[0]
    assert dict(ROW.findall(settings)) == {
        name: shown(field.default) for name, field in Settings.model_fields.items()
    }


def test_the_settings_in_the_readme_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```toml\n(.*?)```", text(ROOT / "README.md"), re.DOTALL)
    path = tmp_path / "serinus.toml"
    path.write_text(example, encoding="utf-8")
    assert load(path).model_dump(include=set(tomllib.loads(example)))["canary_gpu_ids"] == ("1",)


def test_the_guide_has_each_command_and_no_other():
    commands = {each.name or each.callback.__name__ for each in app.registered_commands}
    table = text(ROOT / "docs/guide.md").partition("## Commands")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `serinus (\w+)` \|", table, re.MULTILINE)) == commands
    of_rollout = {each.name or each.callback.__name__ for each in rollout.registered_commands}
    assert set(re.findall(r"`serinus rollout (\w+)`", table)) == of_rollout


def test_each_behaviour_has_tests_of_its_number_unless_its_line_says_none():
    lines = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|", text(ROOT / "docs/behaviours.md"), re.M)
    named = {f"`test_{number}_…`" for path in FAULTS for number in NUMBERED.findall(text(path))}
    assert [number for number, _ in lines] == [str(n) for n in range(1, len(lines) + 1)]
    assert {tests for _, tests in lines if not tests.startswith("none: ")} == named


def test_the_tests_that_the_behaviours_name_are_there():
    listed = re.findall(r"`(\w+/[\w/]+\.py)`", text(ROOT / "docs/behaviours.md"))
    assert [name for name in listed if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_inside_the_project_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text(document))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_guide_lists_its_own_sections():
    guide = text(ROOT / "docs/guide.md")
    sections = re.findall(r"^## (.+)$", guide, re.MULTILINE)
    listed = re.findall(r"^- \[(.+)\]\(#(.+)\)$", guide, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in sections]
    assert listed == list(zip(sections, anchors, strict=True))


def test_the_index_names_every_decision_by_its_number():
    files = sorted(path.name for path in DECISIONS.glob("0*.md"))
    listed = re.findall(r"^\| \[(\d{4})\]\((\1-[^)]+\.md)\)", text(DECISIONS / "README.md"), re.M)
    assert [name for _, name in listed] == files
