from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import cells

PLAIN = Style()
COLUMNS = [
    Column("ID"),
    Column("NAME", least=8),
    Column("TIME", right=True),
    Column("WHY", least=6),
]

words = st.text(st.characters(), max_size=60)


def test_columns_line_up_with_wide_letters() -> None:
    text = table([Column("NAME"), Column("X")], [["日本", "1"], ["abcdef", "2"]], PLAIN)
    assert text == "NAME    X\n日本    1\nabcdef  2\n"


def test_numbers_stand_right_and_missing_is_a_dash() -> None:
    text = table([Column("N", right=True), Column("X")], [["1", ""], ["100", "y"]], PLAIN)
    assert text == "  N  X\n  1  —\n100  y\n"


def test_notes_stand_below_their_row_and_wrap() -> None:
    text = table(
        [Column("ID")], [["1"], ["2"]], Style(width=30), ["", "one two three four five six seven"]
    )
    assert text.splitlines() == ["ID", "1", "2", "    └ one two three four five", "      six seven"]


@pytest.mark.spec("CLI-1")
@given(st.lists(st.tuples(words, words, words, words), max_size=5), st.integers(40, 120))
def test_whatever_stands_in_it_a_table_fits_and_can_not_drive_the_terminal(
    rows: list[tuple[str, str, str, str]], width: int
) -> None:
    text = table(COLUMNS, rows, Style(width=width))
    lines = text.splitlines()
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert line.isprintable()
        assert cells(line) <= width


def test_colour_never_changes_where_things_stand() -> None:
    rows: list[list[Cell]] = [
        [("12", "green"), "a", "3", ("x", "")],
        ["1", ("12", "bold"), "1", "y"],
    ]
    plain = table(COLUMNS, rows, Style(width=60))
    coloured = table(COLUMNS, rows, Style(width=60, colour=True))
    assert "\x1b[32m12\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_fields_leave_out_the_empty_and_wrap_the_long() -> None:
    text = fields(
        [("A", "x"), ("Long", ("one two three four five six", "")), ("B", "")], Style(width=31)
    )
    assert text == "  A     x\n  Long  one two three four five\n        six\n"
