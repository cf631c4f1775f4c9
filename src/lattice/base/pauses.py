"""How long the event loop of a process is busy without a break.

During one turn of the loop nothing else is served: no call, no key of a terminal, no ping.

asyncio's own loop is measured exactly: a turn lasts from the return of one `select` to the next
call of it. That costs two readings of the clock per turn, and wakes nothing. uvloop is faster and
has no selector. There a timer measures how late it is called. A pause then appears shorter than it
was, by the time of the timer at most.

This is elapsed time, not processor time: a busy machine makes a turn longer too.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable

WINDOW_S = 60.0
"""The longest pause covers the last one to two minutes, so that two scrapers both see it."""
BEAT_S = 0.02
"""The timer of a server."""
SLOW_BEAT_S = 0.25
"""That of an agent, which must not wake a node often."""

_Events = list[tuple[selectors.SelectorKey, int]]


class LoopPauses:
    """Measures the loop that `new_loop` makes. Read it from that loop."""

    def __init__(self, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._monotonic = monotonic
        self._roll_at = monotonic() + WINDOW_S
        self._longest_s = 0.0
        self._longest_before_s = 0.0
        self._busy_s = 0.0
        self._processor_clock: int | None = None
        self.turns: int | None = 0
        """None if they can't be counted."""
        self._starting = False

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A measured event loop, for `asyncio.Runner(loop_factory=…)`."""
        return asyncio.SelectorEventLoop(_MeasuredSelector(self, self._monotonic))

    def new_fast_loop(self, beat_s: float = BEAT_S) -> asyncio.AbstractEventLoop:
        """The same with uvloop, if it is installed."""
        try:
            import uvloop  # noqa: PLC0415 - all works without it
        except ImportError:
            return self.new_loop()
        loop = uvloop.new_event_loop()
        loop.call_soon(self._begin_beats, loop, beat_s)
        return loop

    def _begin_beats(self, loop: asyncio.AbstractEventLoop, beat_s: float) -> None:
        self.turns = None
        self._processor_clock = time.pthread_getcpuclockid(threading.get_ident())
        loop.call_soon(self._beat, loop, beat_s, self._monotonic())

    def _beat(self, loop: asyncio.AbstractEventLoop, beat_s: float, due: float) -> None:
        now = self._monotonic()
        self._note_pause(max(0.0, now - due), now)
        loop.call_later(beat_s, self._beat, loop, beat_s, now + beat_s)

    @property
    def busy_s(self) -> float:
        """The duration of all finished turns; with uvloop, the processor time of the thread."""
        if self._processor_clock is None:
            return self._busy_s
        return time.clock_gettime(self._processor_clock)

    @property
    def longest_s(self) -> float:
        """The longest turn of the last one to two minutes."""
        self._roll(self._monotonic())
        return max(self._longest_s, self._longest_before_s)

    def start(self) -> None:
        """Ignore all pauses up to the end of this turn: a starting process serves no requests."""
        self._starting = True

    def note(self, begun: float, over: float) -> None:
        """Record one turn."""
        took = over - begun
        self.turns = (self.turns or 0) + 1
        self._busy_s += took
        self._note_pause(took, over)

    def _note_pause(self, took: float, over: float) -> None:
        if self._starting:
            self._starting = False
            self._longest_s = self._longest_before_s = 0.0
            return
        # Only a few turns are the longest yet, or the first of a window.
        if took > self._longest_s or over >= self._roll_at:
            self._roll(over)
            self._longest_s = max(took, self._longest_s)

    def _roll(self, now: float) -> None:
        if now < self._roll_at:
            return
        # After a sleep longer than a window nothing of the last window counts.
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
