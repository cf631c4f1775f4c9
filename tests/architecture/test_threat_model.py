"""The threat model is what tests show: each row that says what is prevented has a test."""

from __future__ import annotations

import re

from scripts.spec import ROOT, marked_tests

PAGE = (ROOT / "docs" / "threat-model.md").read_text()
_CLAIMS = ("can't", "finds")
"""The last column of the tables whose rows need tests."""
_MARK = re.compile(r"`([a-z]+(?:-[a-z]+)*)`")
_NUMBERED = (13, 29, *range(31, 43))


def _tables() -> list[list[list[str]]]:
    """Every table of the page: its rows, each a list of cells, the header first."""
    found: list[list[list[str]]] = []
    before = ""
    for line in PAGE.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
        before = line
    return found


def _rows() -> list[str]:
    """The marks of the rows that need tests, in the order of the page."""
    claims = [table for table in _tables() if table[0][-1].strip() in _CLAIMS]
    cells = [row[0] for table in claims for row in table[2:]]
    marks = [match[1] for cell in cells if (match := _MARK.fullmatch(cell))]
    assert len(marks) == len(cells), "each row begins with its mark"
    return marks


def _attacks() -> dict[int, list[str]]:
    (table,) = (each for each in _tables() if each[0] == ["attack", "rows"])
    return {int(attack.split()[0]): _MARK.findall(rows) for attack, rows in table[2:]}


def test_every_row_has_a_mark_of_its_own() -> None:
    rows = _rows()
    assert len(rows) > 60
    assert len(rows) == len(set(rows))


def test_every_row_has_a_test() -> None:
    proven = {row for test in marked_tests() for row in test.threats}
    assert [row for row in _rows() if row not in proven] == []


def test_every_test_names_rows_that_exist() -> None:
    rows = set(_rows())
    strays = {test.name: set(test.threats) - rows for test in marked_tests()}
    assert {name: stray for name, stray in strays.items() if stray} == {}


def test_every_numbered_attack_names_its_rows() -> None:
    attacks = _attacks()
    assert list(attacks) == list(_NUMBERED)
    for attack, rows in attacks.items():
        assert rows, attack
        assert set(rows) <= set(_rows()), attack
