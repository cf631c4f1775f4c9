"""The live screen under Textual's own pilot: keys, looks, and an end without a mess."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from textual.worker import WorkerCancelled

from lattice.base.errors import LatticeError, NotFound, Unavailable
from lattice.base.style import Style
from lattice.features.top.command import screen
from lattice.features.top.command.screen import job_size
from lattice.features.top.command.screen_app import LiveTop
from lattice.features.top.command.screen_state import JobSize, TopScreenState
from lattice.features.top.model import TopAnswer, TopMode
from lattice.features.top.operations import TopRequest
from tests.fakes.shell import FakeShell, StillClock
from tests.unit.features.top.screens import GIB, NOW, answer, row

SIZE = JobSize(cpus=24, memory_bytes=int(96 * GIB), node_count=3)
PATH = "/v1/allocations/42/metrics"


class Desk:
    """Answers looks, and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopMode, bool]] = []
        self.next: Callable[[TopMode], TopAnswer] = lambda mode: answer(mode, past=True)

    def __call__(self, mode: TopMode, with_past: bool) -> TopAnswer:
        self.asked.append((mode, with_past))
        return self.next(mode)


def live(
    desk: Desk, mode: TopMode = TopMode.PER_NODE, *, first: TopAnswer | None = None, **look: Any
) -> LiveTop:
    state = TopScreenState(mode, SIZE)
    state.take(first or answer(mode, past=True), 0.0)
    style = Style(zone=NOW.tzinfo, **{"colour": True} | look)
    return LiveTop(desk, state, style, StillClock(), interval_s=3600.0)


def shown(app: LiveTop) -> str:
    """The text of the whole screen, as a terminal would have it."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def settled(app: LiveTop, pilot: Any) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


@pytest.mark.spec("TOP-3")
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_a_screen(size: tuple[int, int]) -> None:
    app = live(Desk())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = shown(app)
    lines = text.splitlines()
    assert lines[0].startswith("42  train  running")
    assert "3/3 nodes" in lines[1]
    assert lines[3].startswith("NODE")
    assert [line.split()[0] for line in lines[4:8]] == ["n1", "n2", "n10", "all"]
    assert lines[-1].startswith("q quit  ? keys")
    assert len(lines) == size[1]
    assert max(map(len, lines)) <= size[0]


@pytest.mark.spec("TOP-3")
async def test_keys_change_the_rows_and_bring_the_past_along() -> None:
    desk = Desk()
    app = live(desk)
    async with app.run_test() as pilot:
        await pilot.press("g")
        await settled(app, pilot)
        assert "n1 GPU-n1-0" in shown(app)
        await pilot.press("g")
        await settled(app, pilot)
        assert "gpu_utilization" in shown(app)
        await pilot.press("n")
        await settled(app, pilot)
        assert shown(app).splitlines()[3].startswith("NODE")
    assert desk.asked == [
        (TopMode.PER_GPU, True),
        (TopMode.SUMMARY, True),
        (TopMode.PER_NODE, True),
    ]


@pytest.mark.spec("TOP-3")
async def test_sort_and_help() -> None:
    mode = TopMode.PER_NODE
    first = answer(mode, [row(mode, "n1", times=0.2), row(mode, "n2", times=1.0)])
    app = live(Desk(), first=first)
    async with app.run_test() as pilot:
        await pilot.press("s")
        await pilot.pause()
        assert [line.split()[0] for line in shown(app).splitlines()[4:6]] == ["n2", "n1"]
        await pilot.press("question_mark")
        await pilot.pause()
        assert "the job goes on" in shown(app)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "the job goes on" not in shown(app)


@pytest.mark.spec("TOP-3")
async def test_a_tick_while_the_screen_is_taken_down_is_no_fault() -> None:
    app = live(Desk())
    async with app.run_test():
        await app.query_one("#lines").remove()
        app.paint()


@pytest.mark.spec("TOP-3")
async def test_a_filter_takes_letters_that_are_keys_elsewhere() -> None:
    app = live(Desk())
    async with app.run_test() as pilot:
        await pilot.press("slash", "n", "1", "0")
        await pilot.pause()
        text = shown(app)
        assert "filter: n10 (1 of 3 rows)" in text
        assert [line.split()[0] for line in text.splitlines()[5:7]] == ["n10", "all"]
        await pilot.press("enter", "s")
        await pilot.pause()
        assert "filter: n10 (" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "filter:" not in shown(app)
    assert app.failure is None


@pytest.mark.spec("TOP-3")
async def test_pause_holds_the_time() -> None:
    desk = Desk()
    app = live(desk)
    async with app.run_test() as pilot:
        await pilot.press("p")
        app._clock.passed_s = 12.0  # type: ignore[attr-defined]
        app.poll()
        app.paint()
        await pilot.pause()
        assert "paused, 12 s old" in shown(app)
        assert desk.asked == []
        await pilot.press("p")
        await settled(app, pilot)
        assert "paused" not in shown(app)
    assert desk.asked == [(TopMode.PER_NODE, False)]


@pytest.mark.spec("TOP-3")
async def test_a_server_that_is_away_is_waited_for() -> None:
    desk = Desk()

    def away(mode: TopMode) -> TopAnswer:
        raise Unavailable("The server does not answer.")

    desk.next = away
    app = live(desk)
    async with app.run_test() as pilot:
        app._clock.passed_s = 30.0  # type: ignore[attr-defined]
        app.poll()
        await settled(app, pilot)
        text = shown(app)
        assert "The server does not answer. This is 30 s old." in text
        assert "n10" in text, "what was known stays"
        desk.next = answer
        app.poll()
        await settled(app, pilot)
        assert "does not answer" not in shown(app)


async def test_a_right_that_has_ended_ends_the_screen() -> None:
    desk = Desk()

    def gone(mode: TopMode) -> TopAnswer:
        raise NotFound("There is no allocation 42.")

    desk.next = gone
    app = live(desk)
    async with app.run_test() as pilot:
        app.poll()
        with suppress(WorkerCancelled):
            await settled(app, pilot)
    assert isinstance(app.failure, NotFound)


@pytest.mark.spec("TOP-3")
async def test_a_job_that_is_over_is_asked_about_no_more_and_stays() -> None:
    desk = Desk()
    desk.next = lambda mode: answer(mode, ended=NOW - timedelta(seconds=62))
    app = live(desk)
    async with app.run_test() as pilot:
        app.poll()
        await settled(app, pilot)
        assert "ended 14:01:09" in shown(app)
        app.poll()
        app.poll()
        await settled(app, pilot)
        assert len(desk.asked) == 1
        await pilot.press("g")
        await settled(app, pilot)
        assert desk.asked[-1] == (TopMode.PER_GPU, True)


@pytest.mark.spec("TOP-3")
async def test_one_look_at_a_time_and_keys_meanwhile() -> None:
    desk = Desk()
    held, begun = threading.Event(), threading.Event()

    def slow(mode: TopMode) -> TopAnswer:
        begun.set()
        held.wait(10)
        return answer(mode)

    desk.next = slow
    app = live(desk)
    async with app.run_test() as pilot:
        app.poll()
        while not begun.is_set():
            await pilot.pause()
        app.poll()
        app.poll()
        await pilot.press("g", "question_mark")
        await pilot.pause()
        assert "the job goes on" in shown(app)
        assert len(desk.asked) == 1
        held.set()
        await settled(app, pilot)
        await settled(app, pilot)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "n1 GPU-n1-0" in shown(app)
    assert [mode for mode, _ in desk.asked] == [TopMode.PER_NODE, TopMode.PER_GPU]


@pytest.mark.spec("CLI-1")
async def test_without_colour_nothing_is_coloured_and_nothing_lost() -> None:
    app = live(Desk(), colour=False, glyphs=False)
    async with app.run_test() as pilot:
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        lines = [segment for strip in strips[3:8] for segment in strip]
        assert not any(segment.style and segment.style.color for segment in lines if
                       segment.text.strip() and segment.style and segment.style.color
                       and segment.style.color.name != "default")  # fmt: skip
        text = shown(app)
    table = "\n".join(text.splitlines()[3:8])
    assert table.isascii()
    assert "83%" in text


@pytest.mark.spec("TOP-3")
@pytest.mark.parametrize("keys", [["q"], ["ctrl+c"], ["slash", "q", "ctrl+c"]])
async def test_leaving(keys: list[str]) -> None:
    app = live(Desk())
    async with app.run_test() as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert not app.is_running
    assert app.failure is None
    assert app.return_code == 0


def plain_shell(told: Any, **more: Any) -> FakeShell:
    shell = FakeShell({PATH: told}, live=True, width=80, **more)
    shell.style = Style(width=80, height=24, zone=NOW.tzinfo)
    return shell


def encoded(given: TopAnswer) -> dict[str, Any]:
    found = msgspec.json.decode(msgspec.json.encode(given))
    assert isinstance(found, dict)
    return found


@pytest.mark.spec("TOP-3", "OPS-9")
def test_without_textual_a_table_is_repainted_until_the_job_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "find_spec", lambda _: None)
    looks: list[dict[str, Any] | LatticeError] = [
        encoded(answer()),
        Unavailable("The server does not answer."),
        encoded(answer(ended=NOW)),
    ]
    shell = plain_shell(lambda: looks.pop(0))
    shell.interactive = True
    assert screen.run_screen(shell, TopRequest(id="42"), 5.0) == 0
    assert "lattice-hpc[tui]" in shell.notes[0]
    assert shell.out.count("\x1b[J") == 2
    assert "The server does not answer.; trying again." in shell.out
    assert "ended" in shell.out
    assert looks == []


def test_without_textual_what_is_refused_at_first_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "find_spec", lambda _: None)
    with pytest.raises(Unavailable):
        screen.run_screen(plain_shell(Unavailable("away")), TopRequest(id="42"), 5.0)


def test_what_is_refused_at_first_never_opens_the_screen() -> None:
    shell = plain_shell(NotFound("not there"))
    shell.interactive = True
    with pytest.raises(NotFound):
        screen.run_screen(shell, TopRequest(id="42"), 5.0)


def test_a_low_window_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "find_spec", lambda _: None)
    shell = plain_shell(encoded(answer(ended=NOW)))
    shell.style = Style(width=80, height=6, zone=NOW.tzinfo)
    screen.run_screen(shell, TopRequest(id="42"), 5.0)
    assert len(shell.out.splitlines()) <= 6
    assert "the window is too low" in shell.out


def test_what_a_job_asked_for_is_read_from_its_card() -> None:
    card = {"allocation": {"id": "42", "cpus": 8, "memory_bytes": 9, "node_count": 2}, "more": 1}
    assert job_size(FakeShell({"/v1/allocations/42": card}), "42") == JobSize(
        cpus=8, memory_bytes=9, node_count=2
    )
    assert job_size(FakeShell({}), "42") == JobSize()
