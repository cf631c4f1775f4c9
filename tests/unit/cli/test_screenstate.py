"""What output did to a terminal, and our own lines among it."""

from __future__ import annotations

from itertools import pairwise

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.cli.screenstate import ScreenState, TerminalNotices

VIM = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[>4;2m\x1b[?1h\x1b=\x1b[?2004h\x1b[?1004h\x1b[1;24r\x1b[?12h"
    b"\x1b[?25l\x1b[2 q\x1b[?1000;1006h~\x1b[1;1H"
)
VIM_ENDS = (
    b"\x1b[?1006;1000l\x1b[0 q\x1b[?25h\x1b[r\x1b[?1004l\x1b[?2004l\x1b>\x1b[?1l\x1b[>4;m"
    b"\x1b[?1049l"
)


def seen(*pieces: bytes) -> ScreenState:
    screen = ScreenState()
    for piece in pieces:
        screen.feed(piece)
    return screen


@pytest.mark.spec("ATTACH-3")
def test_a_program_that_leaves_in_order_leaves_nothing_to_undo() -> None:
    assert seen(VIM).full_screen
    assert seen(VIM, VIM_ENDS).undo() == b""
    assert not seen(VIM, VIM_ENDS).full_screen


@pytest.mark.spec("ATTACH-3")
def test_what_a_killed_program_left_is_taken_back() -> None:
    undo = seen(VIM).undo()
    assert undo.endswith(b"\x1b[?1049l")
    for mode in (1, 1000, 1004, 1006, 2004):
        assert b"\x1b[?%dl" % mode in undo
    assert b"\x1b[?25h" in undo
    assert seen(VIM, undo).undo() == b""


def test_a_reset_of_the_terminal_is_an_undo() -> None:
    assert seen(VIM, b"\x1bc").undo() == b""


@given(st.data())
def test_where_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    text = (
        b"prompt$ "
        + VIM
        + b"text\r\n\x1b]0;title\x07"
        + data.draw(st.sampled_from([b"", VIM_ENDS]))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    screen = seen(*(text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])))
    whole = seen(text)
    assert screen.undo() == whole.undo()
    assert screen.full_screen == whole.full_screen
    assert screen.at_line_start == whole.at_line_start
    assert not screen.amid


@given(st.binary(max_size=200))
def test_noise_is_only_noted(noise: bytes) -> None:
    screen = seen(noise)
    assert seen(noise, screen.undo()).undo() in {b"", screen.undo()} or screen.amid


class Shown:
    """A screen on which both the program and the notices write."""

    def __init__(self) -> None:
        self.state = ScreenState()
        self.screen = pyte.Screen(60, 10)
        self.titles: list[str] = []
        self._stream = pyte.ByteStream(self.screen)
        self.notices = TerminalNotices(self.state, self._stream.feed)

    def output(self, text: bytes) -> None:
        self._stream.feed(text)
        self.state.feed(text)
        self.notices.flush()

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display if row.strip()]


def test_a_notice_stands_on_its_own_line_and_the_prompt_below_it() -> None:
    shown = Shown()
    shown.output(b"done\r\n\x1b]0;here\x07\x1b[?2004h\x1b[32malice@n1\x1b[0m$ ls -l")
    shown.notices.show("--- reconnected after 3.2 s ---")
    prompt = "alice@n1$ ls -l"
    assert shown.rows() == ["done", prompt, "--- reconnected after 3.2 s ---", prompt]
    assert shown.screen.cursor.x == len("alice@n1$ ls -l")


def test_at_the_beginning_of_a_line_nothing_is_moved() -> None:
    shown = Shown()
    shown.output(b"done\r\n")
    shown.notices.show("a notice")
    shown.output(b"next")
    assert shown.rows() == ["done", "a notice", "next"]


@pytest.mark.spec("ATTACH-6")
def test_inside_a_full_screen_program_it_is_the_title_and_a_line_afterwards() -> None:
    shown = Shown()
    shown.output(b"$ vim\r\n" + VIM)
    before = list(shown.screen.display)
    shown.notices.show("preempted soon")
    assert shown.screen.title == "preempted soon"
    assert list(shown.screen.display) == before
    shown.output(VIM_ENDS + b"\r\n")
    assert "preempted soon" in shown.rows()


@pytest.mark.spec("ATTACH-6")
def test_a_prompt_that_comes_with_the_end_of_a_program_stands_below_the_notice() -> None:
    shown = Shown()
    shown.output(b"$ vim\r\n" + VIM)
    shown.notices.show("the job is suspended")
    shown.output(b"\x1b[9;1H" + VIM_ENDS + b"\x1b[23;0;0t\x1b[?25h$ ")
    assert shown.rows()[-2:] == ["the job is suspended", "$"]


def test_no_notice_cuts_a_sequence_in_two() -> None:
    shown = Shown()
    shown.output(b"\x1b[3")
    shown.notices.show("later")
    assert "later" not in shown.rows()
    shown.output(b"1mred\r\n")
    assert shown.rows() == ["red", "later"]


def test_a_notice_can_not_act_on_the_terminal() -> None:
    shown = Shown()
    shown.notices.show("\x1b]2;owned\x07\x1b[2J")
    assert shown.screen.title == ""
    assert "owned" in shown.rows()[0]


def test_what_was_never_shown_is_left_for_afterwards() -> None:
    shown = Shown()
    shown.output(VIM)
    shown.notices.show("job ended")
    assert shown.notices.left() == ["job ended"]
    assert shown.notices.left() == []
