from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.text import cells, cut, inert, inert_json, pad, wrapped

CONTROLS = "\x00\x07\x08\t\n\r\x1b\x7f\x85\x90\x9b\x9d"
INVISIBLE = "\u061c\u200b\u200e\u202a\u202e\u2066\u2069\u2028\ufeff\U000e0041\ud800"

anything = st.text(st.characters())


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("letter", list(CONTROLS + INVISIBLE))
def test_no_letter_that_drives_a_terminal_is_left(letter: str) -> None:
    shown = inert(f"a{letter}b")
    assert shown.isprintable()
    assert shown.startswith("a")
    assert shown.endswith("b")
    assert len(shown) > 2, "what was there is still to be seen"


def test_escapes_read_as_what_they_were() -> None:
    assert inert("\x1b[31m\n\t\x07\x9b\u202e") == "␛[31m\\n\\t␇\\x9b\\u202e"


@given(anything)
def test_what_is_shown_is_always_printable_and_stable(text: str) -> None:
    assert inert(text).isprintable()
    assert inert(inert(text)) == inert(text)


@given(
    st.recursive(st.text() | st.integers() | st.none(), st.lists)
    | st.dictionaries(st.text(), st.text())
)
def test_inert_json_says_the_same(value: object) -> None:
    document = json.dumps(value, ensure_ascii=False)
    shown = inert_json(document)
    assert json.loads(shown) == value
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("日本", 4), ("é", 1), ("e\u0301", 1), ("ｆ", 2), ("✓", 1), ("a日b", 4)],
)
def test_cells(text: str, width: int) -> None:
    assert cells(text) == width


@given(anything.map(inert), st.integers(1, 30))
def test_cut_fits_and_says_so(text: str, width: int) -> None:
    shown = cut(text, width)
    assert cells(shown) <= width
    assert shown == text or shown.endswith("…")


@given(anything.map(inert), st.integers(0, 40), st.booleans())
def test_pad_fills_to_the_cell(text: str, extra: int, right: bool) -> None:
    assert cells(pad(text, cells(text) + extra, right=right)) == cells(text) + extra


@given(st.text(st.characters(categories=["L", "N", "Zs", "P"])), st.integers(3, 30))
def test_wrapped_keeps_every_letter_and_fits(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(unicodedata.category(line[0]) != "Zs" for line in lines)
