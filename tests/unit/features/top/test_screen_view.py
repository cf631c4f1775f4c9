"""What the live screen says, line by line, without a terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.measured import Shown
from lattice.features.top.command.screen_state import JobSize, TopScreenState
from lattice.features.top.command.screen_view import Line, ScreenView
from lattice.features.top.model import TopAnswer, TopMode
from lattice.features.top.render.spark import GPU, HOST
from tests.unit.features.top.screens import GIB, NOW, answer, later, row

SIZE = JobSize(cpus=24, memory_bytes=int(96 * GIB), node_count=3)


def state_of(given: TopAnswer, size: JobSize = SIZE) -> TopScreenState:
    state = TopScreenState(given.mode, size)
    state.take(given, 100.0)
    return state


def lines(state: TopScreenState, width: int = 80, *, after_s: float = 0.0) -> list[Line]:
    now = NOW + timedelta(seconds=after_s)
    return ScreenView(state, Style(zone=NOW.tzinfo), width, now).lines(100.0 + after_s)


def texts(*given: object, **more: object) -> list[str]:
    found = lines(*given, **more)  # type: ignore[arg-type]
    return ["".join(text for text, _ in each) for each in found]


@pytest.mark.spec("SRC-2")
def test_a_node_that_is_silent_is_grey_and_says_why() -> None:
    mode = TopMode.PER_NODE
    silent = row(mode, "n2", age_s=None, reason="its agent does not answer since 14:01")
    state = state_of(answer(mode, [row(mode, "n1"), silent]))
    (line,) = [each for each in lines(state) if each and each[0][0].startswith("n2")]
    assert {look for _, look in line} == {"dim"}
    assert "—" in line[1][0]
    assert "since 14:01" in line[1][0]
    assert not any(digit in line[1][0].split("since")[0] for digit in "0123456789")


@pytest.mark.spec("SRC-2")
def test_a_sample_that_is_too_old_is_grey_with_its_age() -> None:
    mode = TopMode.PER_NODE
    state = state_of(answer(mode, [row(mode, "n1", age_s=95.0), row(mode, "n2", age_s=20.0)]))
    old, fresh = lines(state)[4:6]
    assert {look for _, look in old} == {"dim"}
    assert "1 min" in "".join(text for text, _ in old)
    assert {look for _, look in fresh} != {"dim"}


@pytest.mark.spec("SRC-2")
def test_what_was_not_measured_is_a_dash_and_its_past_no_data() -> None:
    given = answer(TopMode.SUMMARY)
    index = [each.metric for each in given.columns].index(Shown.GPU_UTILIZATION)
    bare = replace(
        given.rows[0].cells[index], value=None, reason="NVML does not answer", history=()
    )
    told = list(given.rows[0].cells)
    told[index] = bare
    state = state_of(replace(given, rows=(replace(given.rows[0], cells=tuple(told)),)))
    found = texts(state)
    (line,) = [each for each in found if each.startswith("gpu_utilization")]
    assert "—" in line
    assert "no data" in line
    assert any("NVML does not answer" in each for each in found)


@pytest.mark.spec("TOP-3")
def test_without_a_scale_there_is_no_line_of_the_past() -> None:
    found = texts(state_of(answer(past=True), JobSize()))
    (line,) = [each for each in found if each.startswith("cpu_utilization")]
    assert "no scale" in line
    assert not set(line) & set(HOST.glyphs)


@pytest.mark.spec("SRC-1")
def test_the_head_has_source_age_and_coverage() -> None:
    head = texts(state_of(answer()))[:2]
    assert "42  train" in head[0]
    assert "host_local_probe by store" in head[1]
    assert "age 4 s" in head[1]
    assert "3/3 nodes" in head[1]


@pytest.mark.spec("TOP-3")
def test_paused_says_how_old_it_is() -> None:
    state = state_of(answer())
    state.paused = True
    assert "paused, 12 s old" in texts(state, after_s=12.0)


@pytest.mark.spec("SRC-2")
def test_a_server_that_is_away_is_said_with_the_age_of_what_is_shown() -> None:
    state = state_of(answer())
    state.trouble = "The server does not answer."
    assert "The server does not answer. This is 40 s old." in texts(state, after_s=40.0)
    state.take(answer(), 140.0)
    assert not any("does not answer" in each for each in texts(state, after_s=40.0))


@pytest.mark.spec("TOP-3")
def test_ended_stays() -> None:
    ended = NOW - timedelta(seconds=62)
    state = state_of(answer(TopMode.PER_NODE, ended=ended))
    assert state.over
    assert "ended 14:01:09Z" in texts(state)[0]
    assert "ended 14:01:09Z" in texts(state, after_s=600.0)[0]
    assert not any(state.is_stale(each) for each in state.rows())


@pytest.mark.spec("TOP-3")
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("mode", list(TopMode))
def test_it_fits(mode: TopMode, width: int) -> None:
    state = state_of(answer(mode, past=True))
    found = texts(state, width)
    assert max(map(cells, found)) <= width
    body = "\n".join(found)
    assert set(body) & set(GPU.glyphs)
    if mode is TopMode.PER_NODE and width == 80:
        assert "more column" in body
        assert set(body) & set(HOST.glyphs)
    if width == 200 and mode is not TopMode.WIDE:
        assert "more column" not in body


def test_wide_names_stay_in_their_column() -> None:
    mode = TopMode.PER_GPU
    rows = [row(mode, "节点一二三四五六七八", "GPU-0123456789abcdef-0123-0123")]
    found = texts(state_of(answer(mode, rows)))
    assert max(map(cells, found)) <= 80


@pytest.mark.spec("TOP-3")
def test_the_number_beside_a_line_is_its_last_cell() -> None:
    state = state_of(answer(past=True))
    (line,) = [each for each in texts(state) if each.startswith("gpu_utilization")]
    assert line.split("mean")[0].rstrip()[-1] == GPU.glyphs[-1]
    assert "100%" in line


@pytest.mark.spec("TOP-3")
def test_sorting_goes_through_the_columns_and_back_to_names() -> None:
    mode = TopMode.PER_NODE
    rows = [row(mode, "n1", times=0.5), row(mode, "n2", times=1.1), row(mode, "n10", times=0.8)]
    state = state_of(answer(mode, rows))
    assert [each.node for each in state.rows()] == ["n1", "n2", "n10"]
    state.next_sort()
    assert [each.node for each in state.rows()] == ["n2", "n10", "n1"]
    assert any("GPU▾" in each for each in texts(state))
    seen = [state.sort]
    while state.sort >= 0:
        state.next_sort()
        seen.append(state.sort)
    assert seen == [*range(9), -1], "what nobody measured is not sorted by"


@pytest.mark.spec("SRC-2")
def test_what_was_not_measured_sorts_below_a_zero() -> None:
    mode = TopMode.PER_NODE
    silent = row(mode, "n1", age_s=None, reason="silent")
    state = state_of(answer(mode, [silent, row(mode, "n2", times=0.0), row(mode, "n10")]))
    state.next_sort()
    assert [each.node for each in state.rows()] == ["n10", "n2", "n1"]


@pytest.mark.spec("TOP-3")
def test_a_filter_is_said() -> None:
    state = state_of(answer(TopMode.PER_NODE))
    state.pattern = "N1"
    assert [each.node for each in state.rows()] == ["n1", "n10"]
    assert "filter: N1 (2 of 3 rows)" in texts(state)


def test_the_same_sample_looked_at_twice_is_one_point() -> None:
    given = answer(TopMode.PER_NODE)
    state = state_of(given)
    key = ("n1", "", Shown.CPU_UTILIZATION)
    assert len(state.past[key]) == 1
    again = later(given, 5.0)
    aged = [replace(each, age_s=9.0) for each in again.rows]
    state.take(replace(again, rows=tuple(aged)), 105.0)
    assert len(state.past[key]) == 1
    state.take(later(given, 30.0), 130.0)
    assert len(state.past[key]) == 2


def test_text_from_outside_can_do_nothing() -> None:
    mode = TopMode.PER_GPU
    bad = row(mode, "n1", "GPU\x1b[2J", age_s=None, reason="\x1b]0;owned\x07")
    given = replace(answer(mode, [bad]), name="\x1b[31m", notes=("\x1b[1m",))
    state = state_of(replace(given, nodes="\x1b[0m"))
    state.pattern = "\x1b"
    assert "\x1b" not in "".join(texts(state))


@pytest.mark.spec("TOP-3")
def test_the_keys_are_explained() -> None:
    state = state_of(answer())
    state.help = True
    shown = "\n".join(texts(state))
    for key in ("q", "?", "s", "/", "p", "g", "n"):
        assert f"{key}  " in shown
    assert "0 to 100 percent" in shown


def test_unequal_nodes_have_no_scale_of_their_own() -> None:
    size = JobSize(cpus=25, memory_bytes=int(96 * GIB), node_count=3)
    given = answer(TopMode.PER_NODE)
    cell = next(each for each in given.rows[1].cells if each.metric is Shown.CPU_UTILIZATION)
    assert size.share(given.rows[1], cell, 100.0) is None
    assert size.share(given.rows[0], cell, 100.0) == pytest.approx(4.0)
