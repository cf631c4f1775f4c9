"""Attack 15: whatever a job writes, a terminal that shows it is as it was before."""

from __future__ import annotations

import re
import time
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.base.escapes import RESET, folded, plain, safe
from tests.examples import examples

# What ends in an m here is a look; the rest would move, erase, ask, name, lock or redefine.
PIECES = [
    "\x1b[31m",
    "\x1b[1;38;5;12m",
    "\x1b[0m",
    "\x1b[8m",
    "\x1b[5;31m",
    "\x1b[2J",
    "\x1b[H",
    "\x1b[6n",
    "\x1b[c",
    "\x1b[?1049h",
    "\x1b[?25l",
    "\x1b[3;4r",
    "\x1b[4h",
    "\x1b[20h",
    "\x1b[1A",
    "\x1b[999C",
    "\x1bM",
    "\x1bc",
    "\x1b(0",
    "\x1b)0",
    "\x1b#8",
    "\x1b7",
    "\x1b8",
    "\x1b]0;owned\x07",
    "\x1b]52;c;ZXZpbA==\x1b\\",
    "\x1b]8;;http://evil\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b_x\x1b\\",
    "\x1b^x\x1b\\",
    "\x1bX",
    "\x9b2J",
    "\x9d0;owned\x9c",
    "\x90",
    "\x84",
    "\x8d",
    "\x0e",
    "\x0f",
    "\x05",
    "\x07",
    "\x08",
    "\x0b",
    "\x0c",
    "\x00",
    "\x7f",
    "\x18",
    "\x1a",
    "\r",
    "\t",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\U000e0041",
    "\ud800",
    "[",
    "31",
    ";",
    ":",
    "m",
    "\x1b",
    "\x1b[",
    "\x1b[38;5",
    "abc",
    "日本",
    "é",
    " ",
    "100%",
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=3), max_size=12).map(
    "".join
)


class Witness(pyte.Screen):
    """A terminal that also notices what is asked of it, and what it would answer."""

    said = ""

    def write_process_input(self, data: str) -> None:
        self.said += data

    def bell(self, *_: Any) -> None:
        self.said += "bell"


def state(screen: Witness) -> dict[str, Any]:
    return {
        "modes": set(screen.mode),
        "margins": screen.margins,
        "title": screen.title,
        "icon": screen.icon_name,
        "charset": (screen.charset, screen.g0_charset, screen.g1_charset),
        "stops": set(screen.tabstops),
        "saved": list(screen.savepoints),
        "look": screen.cursor.attrs,
        "hidden": screen.cursor.hidden,
        "said": screen.said,
        "column": screen.cursor.x,
    }


def after(shown: str) -> Witness:
    screen = Witness(600, 6)
    stream = pyte.Stream(screen)
    stream.feed("one\r\ntwo\r\n")
    stream.feed(shown + "\r\n")
    return screen


def above(screen: Witness, row: int) -> str:
    return "".join(screen.buffer[row][column].data for column in range(5))


@pytest.mark.spec("LOG-7")
@settings(max_examples=examples(8))
@given(hostile, st.booleans())
def test_a_terminal_is_as_it_was(line: str, colour: bool) -> None:
    line = line.replace("\n", "")
    shown = safe(line, colour=colour)
    screen = after(shown)
    assert state(screen) == state(after(""))
    assert screen.cursor.y == 3, "it took one row and no other"
    assert [above(screen, row) for row in (0, 1)] == ["one  ", "two  "]
    assert "\r" not in shown
    assert "\x1b" not in re.sub(r"\x1b\[[\d;:]*m", "", shown)
    assert colour or "\x1b" not in shown


@pytest.mark.spec("LOG-7")
@settings(max_examples=examples(8))
@given(st.text(st.characters(), max_size=60).filter(lambda text: "\n" not in text))
def test_any_text_ends_as_visible_text(line: str) -> None:
    shown = safe(line, colour=False)
    assert shown.replace("\t", "").isprintable()
    assert safe(shown, colour=False) == shown


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m.", "\x1b[31mred\x1b[0m." + RESET),
        ("\x1b[1;4;38;2;1;2;3mx", "\x1b[1;4;38;2;1;2;3mx" + RESET),
        ("\x1b[mx", "\x1b[mx" + RESET),
        ("\x1b[8mhidden", "␛[8mhidden"),
        ("\x1b[31;8mhidden", "␛[31;8mhidden"),
        ("\x1b[5mblink", "␛[5mblink"),
        ("\x1b[2J\x1b]0;t\x07", "␛[2J␛]0;t␇"),
        ("\x9b2J\x00\u202e", "\\x9b2J␀\\u202e"),
        ("a\tb\x0b", "a\tb␋"),
    ],
)
def test_what_is_let_through_and_what_is_shown(line: str, shown: str) -> None:
    assert safe(line) == shown


@pytest.mark.spec("LOG-7")
def test_without_colour_its_own_are_left_out() -> None:
    assert safe("\x1b[31mred\x1b[0m \x1b[5mx\x1b[2J", colour=False) == "red x␛[2J"


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (" 10%|#\r 55%|##\r100%|###", "100%|###"),
        ("done\r", "done"),
        ("abcdef\rxy", "xycdef"),
        ("abcdef\r\x1b[Kxy", "xy"),
        ("abcdef\rxy\x1b[K", "xy"),
        ("\x1b[2K\r 10%\r\x1b[2K\r 20%", " 20%"),
        ("\r\r", ""),
        ("日本語\rab", "ab本語"),
        ("a long beginning\rlonger than\rit", "itnger thannning"),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_in_the_end(line: str, shown: str) -> None:
    assert folded(line) == shown


@pytest.mark.spec("LOG-7")
@settings(max_examples=examples(5))
@given(st.lists(st.text("abc 日é", max_size=8), min_size=1, max_size=6))
def test_folding_agrees_with_a_terminal(parts: list[str]) -> None:
    screen = pyte.Screen(80, 2)
    pyte.Stream(screen).feed("\r".join(parts))
    if any("日" in part for part in parts):
        # Half of a wide letter that is overwritten is drawn in as many ways as there are terminals.
        return
    assert folded("\r".join(parts)).rstrip() == screen.display[0].rstrip()


def test_plain_text_is_told_at_once() -> None:
    assert plain("a\tb\n日本 é\n")
    for odd in ("\r", "\x1b", "\x00", "\x7f", "\x85", "\u202e", "\ud800", "\ue000"):
        assert not plain(f"a{odd}b\n"), repr(odd)


HOSTILE = ("\x1b[", "\x1b[0;", "\r", "a\r", "\x1b[38;2;", "\x1b[31m", "\x1b[31mab\r")


def _made_safe(piece: str) -> float:
    worst = piece * (65536 // len(piece))
    begun = time.perf_counter()
    text = safe(worst)
    took_s = time.perf_counter() - begun
    assert plain(re.sub(r"\x1b\[[\d;]*m", "", text)), "nothing but colours is left"
    return took_s


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_long_hostile_lines_are_made_safe(piece: str) -> None:
    _made_safe(piece)


@pytest.mark.timing
@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_a_long_hostile_line_is_made_safe_within_two_seconds(piece: str) -> None:
    """Not quadratic in what is written: 64 KB of the worst, each in well under a second."""
    assert _made_safe(piece) < 2.0
