"""Runs the background loops of a process, and handles their failures.

A loop is declared with a name and an action for its failure. The loop is started again after a
pause, or the process ends so that systemd restarts it. Each failure is logged with its traceback
and counted. A loop that returns has failed too, unless it is declared finite.

A failure here is a defect. A loop handles what it expects, such as an engine that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from lattice.base.clock import Clock
from lattice.base.errors import InternalError

_log = logging.getLogger("lattice.supervisor")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 120.0
"""After so long without a failure the pause begins at the first value again."""


class OnFailure(Enum):
    """What the failure of a loop does."""

    RESTART = "restart"
    """The loop is started again after a pause, which doubles up to `LONGEST_PAUSE_S`."""
    END = "end"
    """The process stops in order, with an exit status other than 0."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One background loop. `run` is called again for each restart."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]
    on_failure: OnFailure
    finite: bool = False
    """True if it may return."""


class LoopFailed(InternalError):
    """A loop that the process needs has failed."""


class LoopReturned(Exception):
    """A loop that should run until it is cancelled has returned."""


class Supervisor:
    """Runs the loops of one process."""

    def __init__(
        self,
        clock: Clock,
        end: Callable[[], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`end` begins the orderly stop of the process, at the end of which `check` is called."""
        self._clock = clock
        self._end = end
        self._sleep = sleep
        self._loops: dict[str, Loop] = {}
        self._failures: dict[str, int] = {}
        self._failed_at_s: dict[str, float] = {}
        self._fatal: LoopFailed | None = None

    @property
    def loops(self) -> Mapping[str, Loop]:
        """Every loop that was ever started, by name."""
        return MappingProxyType(self._loops)

    @property
    def failures(self) -> Mapping[str, int]:
        """The number of failures of each loop."""
        return MappingProxyType(self._failures)

    @property
    def failed_s_ago(self) -> Mapping[str, float]:
        """How long ago each loop that has failed did so last."""
        now_s = self._clock.monotonic()
        return {name: now_s - at_s for name, at_s in self._failed_at_s.items()}

    def check(self) -> None:
        """Raise `LoopFailed` if the process ends because of a loop."""
        if self._fatal is not None:
            raise self._fatal

    @asynccontextmanager
    async def running(self, *loops: Loop) -> AsyncIterator[None]:
        """Run these loops until the context ends. When it has ended, all of them have."""
        for loop in loops:
            self._loops[loop.name] = loop
            self._failures.setdefault(loop.name, 0)
        stopping = asyncio.Event()
        tasks = [asyncio.create_task(self._keep(loop, stopping), name=loop.name) for loop in loops]
        try:
            yield
        finally:
            stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, loop: Loop, stopping: asyncio.Event) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = self._clock.monotonic()
            error = await _failure(loop, stopping)
            if error is None:
                return
            self._failures[loop.name] += 1
            self._failed_at_s[loop.name] = self._clock.monotonic()
            if stopping.is_set():
                _report(logging.ERROR, "a background loop failed as it stopped", loop, error)
                return
            if loop.on_failure is OnFailure.END:
                self._end_process(loop, error)
                return
            if self._clock.monotonic() - began_s >= HEALTHY_S:
                pause_s = FIRST_PAUSE_S
            _report(
                logging.ERROR,
                "a background loop failed and is started again",
                loop,
                error,
                failures=self._failures[loop.name],
                pause_s=pause_s,
            )
            await self._sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _end_process(self, loop: Loop, error: BaseException) -> None:
        _report(logging.CRITICAL, "a background loop failed and the process ends", loop, error)
        if self._fatal is None:
            self._fatal = LoopFailed(
                f"The background loop {loop.name!r} failed: {type(error).__name__}: {error}",
                hint="Start the process again (systemd: Restart=on-failure) and report the "
                "traceback in its log.",
            )
        self._end()


async def _failure(loop: Loop, stopping: asyncio.Event) -> BaseException | None:
    """Run it once. None if it ended as it may; raises `CancelledError` if it was stopped."""
    error: BaseException
    try:
        await loop.run()
    except asyncio.CancelledError as cancelled:
        if stopping.is_set():
            raise
        # Not cancelled by its owner: the loop awaited something that another part cancelled.
        error = cancelled
    except Exception as defect:  # noqa: BLE001 - every error is logged and counted
        error = defect
    else:
        if loop.finite or stopping.is_set():
            return None
        error = LoopReturned(f"{loop.name} returned, and should run until it is cancelled")
    if not stopping.is_set():
        _forget_cancellation()
    return error


def _forget_cancellation() -> None:
    """A task group that fails leaves its request to cancel behind (Python 3.11 and 3.12).

    In the next run it would make a timeout look like a cancellation.
    """
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _report(level: int, event: str, loop: Loop, error: BaseException, **more: object) -> None:
    _log.log(level, event, extra={"loop": loop.name, **more}, exc_info=error)
