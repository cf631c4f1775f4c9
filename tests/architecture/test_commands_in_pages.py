"""Every command of ours that a page shows exists, with its options, in the golden of the help."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELP = ROOT / "tests" / "golden" / "help.txt"
ABOUT_TIMES_TO_COME = {"promises.md", "renames.md", "cli.md"}
PAGES = [
    ROOT / "README.md",
    *(each for each in (ROOT / "docs").rglob("*.md") if each.parent.name != "adr"),
    *(ROOT / "infra").rglob("*.md"),
]
_CODE = re.compile(r"^```[^\n]*\n(.*?)^```$|^ {4}(.*)$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"^(?:[$>#] |\w+@\w+:~\$ )?lattice ([a-z].*)$")
_BEHIND = re.compile(r"\s{2,}.*| [#|>&;].*|\).*| -- .*|\\$|…|'[^']*'|\"[^\"]*\"")
_PASSED_ON = re.compile(r"(?<=--sbatch) --\S+|(?<=\.sh) .*")
"""To sbatch, or to the person's own script."""


@cache
def options() -> dict[str, set[str]]:
    """Every command with its options."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in HELP.read_text().splitlines():
        if begun := re.fullmatch(r"\$ lattice ?(.*) --help", line):
            name = begun[1]
            found[name] = set()
        elif line.startswith("  -"):
            declared = line.split("   ")[0]
            found[name] |= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", declared, re.IGNORECASE))
    return found


def faults(call: str) -> list[str]:
    """What of a command line does not exist."""
    words = _PASSED_ON.sub("", _BEHIND.sub("", call)).split()
    known = options()
    name = next((" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in known), "")
    if not name or (name == "admin" and len(words) > 1 and not words[1].startswith("-")):
        return [f"lattice {' '.join(words[:2])}"]
    given = [
        word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)
    ]
    single = {each for each in given if not each.startswith("--") and len(each) > 2}
    return [f"lattice {name} {each}" for each in given if each not in known[name] | single]


def calls(page: Path) -> list[str]:
    lines = ("".join(each).splitlines() for each in _CODE.findall(page.read_text()))
    matches = (_CALL.match(line.strip()) for line in chain.from_iterable(lines))
    return [shown[1] for shown in matches if shown]


@pytest.mark.parametrize(
    "page",
    [each for each in PAGES if each.name not in ABOUT_TIMES_TO_COME],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_and_options_exist(page: Path) -> None:
    assert [fault for call in calls(page) for fault in faults(call)] == []


def test_the_check_finds_what_is_wrong() -> None:
    assert faults("logs -f 42 --tail 3") == []
    assert faults("logs 42 --tale 3") == ["lattice logs --tale"]
    assert faults("admin healing") == ["lattice admin healing"]
    assert len(calls(ROOT / "README.md")) >= 10
