"""The live screen in Textual. Loaded only on use: its import takes half a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, RateLimited, Unavailable
from lattice.base.style import Style
from lattice.features.top.command.screen_state import TopScreenState
from lattice.features.top.command.screen_view import KEYS, Line, ScreenView
from lattice.features.top.model import TopAnswer, TopMode

Ask = Callable[[TopMode, bool], TopAnswer]
"""Requests an answer in a mode; True adds the history."""
_TICK_S = 1.0


class LiveTop(App[None]):
    """Requests run in a thread, one at a time; keys work meanwhile."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; }
    #body { height: 1fr; scrollbar-size-vertical: 1; background: ansi_default; }
    #lines, #keys { background: ansi_default; }
    #keys { height: 1; }
    #filter { display: none; height: 1; border: none; padding: 0; background: ansi_default; }
    #filter.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("question_mark", "keys", "keys"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("p", "pause", "pause"),
        Binding("g", "per_gpu", "GPUs"),
        Binding("n", "per_node", "nodes"),
        Binding("escape", "all", "all"),
    ]

    def __init__(
        self, ask: Ask, state: TopScreenState, style: Style, clock: Clock, interval_s: float
    ) -> None:
        super().__init__(ansi_color=True)
        self._ask = ask
        self._state = state
        self._terminal_style = style
        self._clock = clock
        self._interval_s = interval_s
        self._asking = False
        self._asked_again = False
        self.failure: LatticeError | None = None
        """Why the screen has ended, if not by a key."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="body"):
            yield Static(id="lines")
        yield Input(id="filter", placeholder="letters of a name", compact=True)
        yield Static(KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#body").focus()
        self.paint()
        self.set_interval(self._interval_s, self.poll)
        self.set_interval(_TICK_S, self.paint)

    def on_resize(self) -> None:
        self.paint()

    def poll(self, *, with_past: bool = False) -> None:
        """Send a request, unless nothing can change or one is under way."""
        state = self._state
        if (state.over or state.paused) and not with_past:
            return
        if self._asking:
            self._asked_again = self._asked_again or with_past
            return
        self._asking = True
        mode = state.mode
        self.run_worker(
            lambda: self._answered(mode, with_past=with_past),
            name="poll",
            thread=True,
            exit_on_error=False,
        )

    def _answered(self, mode: TopMode, *, with_past: bool) -> None:
        try:
            answer = self._ask(mode, with_past)
        except LatticeError as error:
            self.call_from_thread(self._failed, error)
        else:
            self.call_from_thread(self._take, mode, answer)

    def _take(self, mode: TopMode, answer: TopAnswer) -> None:
        self._asking = False
        if mode is self._state.mode:
            self._state.take(answer, self._clock.monotonic())
        self.paint()
        if self._asked_again or mode is not self._state.mode:
            self._asked_again = False
            self.poll(with_past=True)

    def _failed(self, error: LatticeError) -> None:
        self._asking = False
        if isinstance(error, RateLimited | Unavailable):
            self._state.trouble = error.message
            self.paint()
            return
        self.failure = error
        self.exit()

    def paint(self) -> None:
        view = ScreenView(self._state, self._terminal_style, self.size.width - 1, self._clock.now())
        text = Text("\n", no_wrap=True, overflow="crop").join(
            map(self._text, view.lines(self._clock.monotonic()))
        )
        # A tick may come while the screen is closed, when there are no lines.
        for lines in self.query("#lines").results(Static):
            lines.update(text)

    def _text(self, line: Line) -> Text:
        made = Text(no_wrap=True, overflow="crop")
        for text, colour in line:
            made.append(
                text,
                style=colour if self._terminal_style.colour or colour in {"bold", "dim"} else "",
            )
        return made

    def action_keys(self) -> None:
        self._state.help = not self._state.help
        self.paint()

    def action_sort(self) -> None:
        self._state.next_sort()
        self.paint()

    def action_pause(self) -> None:
        self._state.paused = not self._state.paused
        self.paint()
        if not self._state.paused:
            self.poll()

    def action_per_gpu(self) -> None:
        self._show(TopMode.PER_GPU)

    def action_per_node(self) -> None:
        self._show(TopMode.PER_NODE)

    def _show(self, mode: TopMode) -> None:
        self._state.toggle(mode)
        self._state.answer = None
        self.paint()
        self.poll(with_past=True)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = self._state.pattern
        field.add_class("asked")
        field.focus()

    def action_all(self) -> None:
        self._state.pattern = ""
        self._end_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.query_one("#filter").has_class("asked"):
            self._state.pattern = event.value
            self.paint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._state.pattern = event.value
        self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter").remove_class("asked")
        self.query_one("#body").focus()
        self.paint()
