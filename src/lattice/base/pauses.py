"""How long the event loop of a process is busy without a break.

While one turn of the loop lasts, nothing else is served: no call, no key of a terminal, no ping.
A turn is measured where the loop asks the kernel for news: from the moment an answer came to the
next question. That costs two readings of the clock a turn, and wakes nobody.

It is the time that passed, not processor time: a busy machine makes a turn longer as well.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

WINDOW_S = 60.0
"""The longest pause is that of the last one to two minutes, so that two scrapers don't rob each
other of it."""

_Events = list[tuple[selectors.SelectorKey, int]]


class LoopPauses:
    """Measures the loop that `new_loop` makes. Read from the loop itself."""

    def __init__(self, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._monotonic = monotonic
        self._roll_at = monotonic() + WINDOW_S
        self._longest_s = 0.0
        self._longest_before_s = 0.0
        self.busy_s = 0.0
        """How long all turns took that are over."""
        self.turns = 0
        self._starting = False

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that is measured, for `asyncio.Runner(loop_factory=…)`."""
        return asyncio.SelectorEventLoop(_MeasuredSelector(self, self._monotonic))

    @property
    def longest_s(self) -> float:
        """The longest turn of the last one to two minutes."""
        self._roll(self._monotonic())
        return max(self._longest_s, self._longest_before_s)

    def start(self) -> None:
        """Leave out all pauses up to the end of this turn: a process that starts serves nobody."""
        self._starting = True

    def note(self, begun: float, over: float) -> None:
        """One turn."""
        took = over - begun
        self.turns += 1
        self.busy_s += took
        if self._starting:
            self._starting = False
            self._longest_s = self._longest_before_s = 0.0
            return
        # Few turns are long, or the first of a window.
        if took > self._longest_s or over >= self._roll_at:
            self._roll(over)
            self._longest_s = max(took, self._longest_s)

    def _roll(self, now: float) -> None:
        if now < self._roll_at:
            return
        # Whoever slept for longer than a window has nothing left of the one before it.
        alone = now >= self._roll_at + WINDOW_S
        self._longest_before_s = 0.0 if alone else self._longest_s
        self._longest_s = 0.0
        self._roll_at = now + WINDOW_S


class _MeasuredSelector(selectors.DefaultSelector):
    def __init__(self, pauses: LoopPauses, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._note = pauses.note
        self._monotonic = monotonic
        self._ask = super().select
        self._woken = monotonic()

    def select(self, timeout: float | None = None) -> _Events:
        self._note(self._woken, self._monotonic())
        try:
            return self._ask(timeout)
        finally:
            self._woken = self._monotonic()
