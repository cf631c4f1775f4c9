"""A terminal that follows: what stays, what is repainted, and how it is left."""

from __future__ import annotations

import json
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.fast_start.decode import decode
from lattice.base.style import Style
from lattice.features.logs.model import LogBlock
from lattice.features.logs.render.labels import Labels
from lattice.features.logs.render.lines import LineText
from lattice.features.logs.render.live import LiveView
from tests.fakes import logs
from tests.fakes.shell import NOW


class Seat:
    """Someone before a terminal of 60 columns."""

    def __init__(self, *, colour: bool = True, sample: bool = True, rows: int = 12) -> None:
        self.style = Style(width=60, height=rows, colour=colour)
        lines = LineText(self.style, Labels("auto", self.style), now=NOW)
        self.view = LiveView(self.style, lines, now=0.0, sample=sample)
        self.screen = pyte.HistoryScreen(60, rows, history=10_000)
        self.screen.set_mode(pyte.modes.LNM)
        self.stream = pyte.Stream(self.screen)

    def see(self, text: str) -> list[str]:
        self.stream.feed(text)
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def comes(self, text: str, seq: int = 0, now: float = 0.0, **changes: Any) -> list[str]:
        told = logs.block(text, seq, **changes)
        return self.see(self.view.block(decode(json.dumps(told).encode(), LogBlock), now))


@pytest.mark.spec("LOG-7")
def test_a_line_that_has_not_ended_is_repainted_in_its_place() -> None:
    seat = Seat()
    seat.comes("start\n")
    for step in (10, 50, 90):
        text = f"{step}%|{'#' * (step // 10)}"
        assert seat.comes(text, 1, count=0, unfinished=True) == ["start", text]
    assert seat.comes("10%\r100%|##########\n", 1) == ["start", "100%|##########"]


def test_one_that_never_ends_stays_at_the_end() -> None:
    seat = Seat()
    seat.comes("Password: ", 0, count=0, unfinished=True)
    assert seat.see(seat.view.end()) == ["Password:"]
    assert seat.screen.cursor.x == 0


def test_a_long_one_takes_one_row() -> None:
    seat = Seat()
    seat.comes("x" * 500, 0, count=0, unfinished=True)
    seat.comes("\x1b[31m" + "日" * 500, 0, count=0, unfinished=True)
    assert len(seat.comes("\ty" * 200, 0, count=0, unfinished=True)) == 1
    assert seat.comes("done\n") == ["done"]


def test_equal_lines_are_counted_in_place() -> None:
    seat = Seat(colour=False)
    assert seat.comes("a\n" + "same\n" * 3) == ["a", "same", "  × 3"]
    assert seat.comes("same\n" * 60, 4) == ["a", "same", "  × 63"]
    assert seat.comes("b\n", 64) == ["a", "same", "  × 63", "b"]


@pytest.mark.spec("LOG-7")
def test_quiet_is_not_dead() -> None:
    seat = Seat()
    seat.comes("a\n")
    assert seat.see(seat.view.alive(5.0, "link ok")) == ["a"]
    assert seat.see(seat.view.alive(20.0, "link ok")) == ["a", "… quiet 20 s, link ok"]
    assert seat.see(seat.view.alive(130.0, "link ok")) == ["a", "… quiet 2 m, link ok"]
    assert seat.see(seat.view.alive(7300.0, "n2 not answering")) == [
        "a",
        "… quiet 2 h 1 m, n2 not answering",
    ]
    assert seat.comes("b\n", 1, 7301.0) == ["a", "b"]


@pytest.mark.spec("LOG-7")
def test_quiet_in_the_middle_of_a_line() -> None:
    seat = Seat()
    seat.comes("epoch 3: ", 0, count=0, unfinished=True)
    assert seat.see(seat.view.alive(60.0, "link ok")) == ["epoch 3:   … quiet 1 m, link ok"]
    assert seat.comes("epoch 3: ok\n", 0, 61.0) == ["epoch 3: ok"]


@pytest.mark.spec("LOG-7")
def test_trouble_shows_until_it_is_over() -> None:
    seat = Seat()
    seat.comes("a\n")
    assert seat.see(seat.view.trouble("--- disconnected; trying again ---")) == [
        "a",
        "--- disconnected; trying again ---",
    ]
    over = seat.see(seat.view.mark("--- reconnected after 3.2 s, 0 lines missed ---"))
    assert over == ["a", "--- reconnected after 3.2 s, 0 lines missed ---"]


@pytest.mark.spec("LOG-3")
def test_a_flood_is_sampled_and_says_so() -> None:
    seat = Seat(colour=False, rows=40)
    lines, now = 0, 0.0
    for _ in range(20):
        text = "".join(f"line {lines + n}\n" for n in range(5000))
        now += 0.1
        rows = seat.comes(text, lines, now)
        lines += 5000
    assert rows[-1] == "… 50,000 lines/s: showing 1 in 50; --no-sample shows all"
    shown = [row for row in history(seat) if row.startswith("line")]
    assert len(shown) < 5000
    rows = seat.see(seat.view.alive(now + 1, "link ok"))
    assert rows[-1] == f"line {lines - 1}", "the last lines are all there"
    left_out = next(row for row in reversed(history(seat)) if "not shown" in row)
    total = lines - len([row for row in history(seat) if row.startswith("line")])
    assert left_out == f"--- {total:,} lines were not shown; --no-sample shows all ---"


@pytest.mark.spec("LOG-7")
def test_what_a_flood_left_out_keeps_its_writer() -> None:
    seat = Seat(colour=False, rows=40)
    for number in range(10):
        for node in ("n1", "n2"):
            text = "".join(f"{n} of {node}\n" for n in range(3000))
            seat.comes(text, number * 3000, number / 10, node=node)
    seat.comes("of n3\n", 0, 5.0, node="n3")
    labelled = [row for row in history(seat) if "│" in row]
    assert len(labelled) > 20
    assert all(row[:2] == row[-2:] for row in labelled)


def history(seat: Seat) -> list[str]:
    above = [
        "".join(row[column].data for column in range(60)).rstrip()
        for row in seat.screen.history.top
    ]
    return above + [row.rstrip() for row in seat.screen.display]


def test_no_sample_shows_all() -> None:
    seat = Seat(sample=False)
    seat.comes("".join(f"{n}\n" for n in range(6000)))
    assert [row for row in history(seat) if row] == [str(n) for n in range(6000)]


def test_less_than_a_flood_is_shown_whole() -> None:
    seat = Seat()
    for second in range(5):
        text = "".join(f"{second * 2000 + n}\n" for n in range(2000))
        seat.comes(text, second * 2000, float(second + 1))
    assert [row for row in history(seat) if row] == [str(n) for n in range(10_000)]


@pytest.mark.spec("LOG-7")
def test_lines_of_many_wait_for_each_other_and_not_for_long() -> None:
    seat = Seat(colour=False)
    for number in range(40):
        seat.comes("hello\n", 0, number * 0.02, node=f"n{number:02}", rank=None)
    assert seat.view.due == pytest.approx(0.78 + 0.3), "each that joins is worth a moment more"
    assert seat.see("") == ["hello"], "the first was alone"
    assert seat.see(seat.view.settle()) == ["hello", "×39 │ hello  (all but n00)"]
    assert seat.view.due is None
    seat.comes("alone\n", 1, 5.0, node="n07")
    assert seat.see("")[-1] != "n07 │ alone"
    assert seat.comes("other\n", 1, 5.31, node="n08")[-2:] == ["n07 │ alone", "n08 │ other"]


def test_what_is_held_comes_before_a_mark_and_before_the_end() -> None:
    seat = Seat(colour=False)
    seat.comes("a\n")
    seat.comes("b\n", 0, 0.1, node="n2")
    assert seat.see(seat.view.mark("--- m ---")) == ["a", "n2 │ b", "--- m ---"]
    seat.comes("c\n", 1, 0.2, node="n2")
    assert seat.see(seat.view.end())[-1] == "n2 │ c"


def test_a_key_shows_all_of_a_flood() -> None:
    seat = Seat(colour=False, rows=40)
    seat.view = LiveView(seat.style, LineText(seat.style, Labels("auto", seat.style), now=NOW),
                         now=0.0, keys=True)  # fmt: skip
    for number in range(10):
        text = "".join(f"line {number * 5000 + n}\n" for n in range(5000))
        rows = seat.comes(text, number * 5000, number / 10)
    assert "lines/s: showing 1 in " in rows[-1]
    assert "press f for" in rows[-1]
    assert seat.view.samples
    seat.see(seat.view.show_all())
    assert not seat.view.samples
    seat.comes("".join(f"more {n}\n" for n in range(6000)), 50_000, 1.0)
    rows = [row for row in history(seat) if row]
    assert rows[-39:] == [f"more {n}" for n in range(6000 - 39, 6000)]


acts = st.lists(
    st.one_of(
        st.tuples(st.just("lines"), st.lists(st.sampled_from(["a", "b", "x" * 90, "\x1b[31mr"]))),
        st.tuples(st.just("open"), st.sampled_from(["10%", "\x1b[32m" + "y" * 99, "日" * 40])),
        st.tuples(st.just("alive"), st.floats(0, 500)),
        st.tuples(st.just("mark"), st.just("--- m ---")),
        st.tuples(st.just("trouble"), st.just("--- t ---")),
    ),
    max_size=10,
)


@pytest.mark.spec("LOG-7")
@given(acts)
def test_whatever_comes_the_terminal_is_left_as_it_was(told: list[tuple[str, Any]]) -> None:
    seat = Seat(rows=60)
    fresh = pyte.HistoryScreen(60, 60)
    fresh.set_mode(pyte.modes.LNM)
    seq, now, whole = 0, 0.0, 0
    for kind, what in told:
        if kind == "lines":
            seat.comes("".join(f"{line}\n" for line in what), seq, now)
            seq += len(what)
            whole += len(what)
        elif kind == "open":
            seat.comes(what, seq, now, count=0, unfinished=True)
        elif kind == "alive":
            now += what
            seat.see(seat.view.alive(now, "link ok"))
        else:
            seat.see(getattr(seat.view, kind)(what))
    seat.see(seat.view.end())
    assert seat.screen.cursor.x == 0
    assert seat.screen.cursor.attrs == fresh.cursor.attrs
    assert seat.screen.mode == fresh.mode
    assert seat.screen.margins == fresh.margins
    assert not any("quiet" in row or "--- t ---" in row for row in history(seat))
