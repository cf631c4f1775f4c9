"""What people and programs see is what is checked in, and nothing of it is left out."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

import pytest

from lattice.cli.command_table import COMMANDS
from lattice.cli.shell import as_json
from scripts.golden import DOCUMENTS, FOLDER, ROOT
from scripts.golden_answers import LINES, WITHOUT, Maker, run, shape_of_value

_PRINTS = re.compile(r"\bshell\.(document|record)\(")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_golden_document_is_fresh(name: str) -> None:
    file = FOLDER / name
    before, now = file.read_text().splitlines(), DOCUMENTS[name]().splitlines()
    changes = difflib.unified_diff(before, now, file.name, "the code", n=1, lineterm="")
    hint = "if people are meant to see this change, `just generate` renews the file"
    assert before == now, "\n".join((hint, *changes))


def test_no_golden_document_is_left_behind() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(DOCUMENTS)


def test_every_command_is_run_or_prints_nothing_for_programs() -> None:
    names = {name for name, _, _ in COMMANDS}
    run_ones = {name for name in names if any(f"{line} ".startswith(f"{name} ") for line in LINES)}
    assert run_ones == names - WITHOUT


def test_every_line_that_prints_a_document_is_run() -> None:
    features = ROOT / "src/lattice/features"
    there = {
        (str(file), number)
        for file in features.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if _PRINTS.search(line)
    }
    reached = {at for line in LINES for at in run(line, Maker())[0].printed_at}
    assert there
    assert there <= reached


@pytest.mark.parametrize("line", LINES)
def test_the_fields_are_those_that_are_printed(line: str) -> None:
    answers = [answer for _, answer in run(line, Maker())[0].printed]
    for answer in answers:
        if not isinstance(answer, dict | str):
            shape = {each.partition(": ")[0] for each in shape_of_value(answer)}
            assert shape == set(_paths(json.loads(as_json(answer))))


def _paths(value: object, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}".lstrip(".")
            yield from _paths(inner, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{at}[]")


def test_the_command_page_names_every_exit_code() -> None:
    text = (FOLDER / "exits.txt").read_text()
    codes = {int(code) for code in re.findall(r"(?:^  |: |, )(\d+)(?:$|:)", text, re.MULTILINE)}
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert codes >= {0, 1, 2, 75, 100, 113, 141}
    assert codes <= {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
