"""Runs heavy work in a few threads, with fair turns among callers.

`asyncio.to_thread` starts up to 32 threads, each of which competes with the event loop for the
interpreter. These few have the priority of the loop. A thread of lower priority could hold the
interpreter while it waits for a processor, and the loop would wait too.

The work of one caller of `Turns` runs in one thread at a time, one quantum per turn. A caller with
ten searches gets as many turns as a caller with one. The event loop only hands out turns.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import ParamSpec, TypeVar

_MOST_THREADS = 4
_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")
_QUANTUM_S = 0.02


def few() -> int:
    """Half of the processors and at most 4, so that the event loop keeps one."""
    return max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))


async def in_few_threads(
    work: Callable[_Arguments, _Found], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Found:
    """Return what `work` returns, or raise what it raises. Waits until a thread is free."""
    return await asyncio.get_running_loop().run_in_executor(
        _pool(), lambda: work(*arguments, **named)
    )


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(few(), thread_name_prefix="heavy")


@dataclass(eq=False, slots=True)
class _Work:
    """The work of one caller, step by step."""

    steps: Iterator[object]
    done: asyncio.Future[None]
    abandoned: bool = False
    """True once no caller waits for it. The thread checks this after the current step."""


class Turns:
    """Runs iterators in threads until they end. Used from one event loop."""

    def __init__(
        self,
        threads: int = 0,
        *,
        quantum_s: float = _QUANTUM_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads` 0: half of the processors and at most 4, so that the event loop keeps one."""
        count = threads or few()
        self._free = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="turns")
        self._quantum_s = quantum_s
        self._monotonic = monotonic
        self._waiting: OrderedDict[str, deque[_Work]] = OrderedDict()
        self._running: set[str] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How much work waits for a turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        """How many callers have a turn."""
        return len(self._running)

    async def run(self, caller: str, steps: Iterator[object]) -> None:
        """Return when `steps` has ended; raises what it raises.

        A step is never interrupted. If this is cancelled, the current step is the last one.
        """
        work = _Work(steps, asyncio.get_running_loop().create_future())
        self._enqueue(caller, work)
        self._hand_out()
        try:
            await work.done
        finally:
            work.abandoned = True

    def close(self) -> None:
        """Hand out no more turns. Threads end after the current quantum."""
        self._closed = True
        for queue in self._waiting.values():
            for work in queue:
                work.done.cancel()
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, caller: str, work: _Work) -> None:
        self._waiting.setdefault(caller, deque()).append(work)

    def _hand_out(self) -> None:
        while self._free:
            caller = next((each for each in self._waiting if each not in self._running), None)
            if caller is None:
                return
            queue = self._waiting[caller]
            work = queue.popleft()
            if queue:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if not work.abandoned:
                self._start(caller, work)

    def _start(self, caller: str, work: _Work) -> None:
        self._free -= 1
        self._running.add(caller)
        turn = asyncio.get_running_loop().run_in_executor(self._pool, self._turn, work)
        turn.add_done_callback(lambda done: self._ended(caller, work, done))

    def _turn(self, work: _Work) -> bool:
        """One quantum, in a thread. True if the work has ended."""
        begun = self._monotonic()
        for _ in work.steps:
            if work.abandoned:
                return True
            if self._monotonic() - begun >= self._quantum_s:
                return False
        return True

    def _ended(self, caller: str, work: _Work, turn: asyncio.Future[bool]) -> None:
        self._free += 1
        self._running.discard(caller)
        if turn.cancelled() or self._closed:
            work.done.cancel()
        elif (error := turn.exception()) is not None:
            if not work.done.done():
                work.done.set_exception(error)
        elif not turn.result():
            self._enqueue(caller, work)
        elif not work.done.done():
            work.done.set_result(None)
        self._hand_out()
