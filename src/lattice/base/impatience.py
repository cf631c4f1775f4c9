"""Reads that may never return, in threads that can be abandoned. It reads no process itself.

The kernel can block a read of a job's process for as long as that job likes. So a daemon thread
reads each job (its `key`), and the caller waits. The thread records the process that it is about to
read (`ThreadProgress.reads`). A thread without progress for `patience_s` is abandoned, and another
one continues with the next key.

Bounds: at most `most_a_key` threads hang for one key, and `most` in all. A key that has hung is
left alone for a while, longer each time. A process that blocks a thread is not read again until
that thread returns. Threads that hang don't keep Python from exiting.

Without a hang, a call costs one hand-over to an idle thread, for any number of keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic

from lattice.base.impatience_threads import K, Read, Round, Stuck, T, ThreadProgress, Threads

PATIENCE_S = 2.0
_QUICK_S = 0.2
"""The patience for further keys of a call after one has hung."""


class ImpatientReader(Generic[K]):
    """Safe for several threads. Call `close` at the end."""

    def __init__(
        self,
        name: str,
        *,
        patience_s: float = PATIENCE_S,
        within_s: float = 5.0,
        most_a_key: int = 3,
        most: int = 256,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`within_s`: how long a call continues with further keys once one has hung."""
        self._patience_s = patience_s
        self._within_s = within_s
        self._threads: Threads[K] = Threads(name, most_a_key, most, monotonic)

    @property
    def cpu_s(self) -> float:
        """Processor time of the threads in seconds, all calls together."""
        return self._threads.cpu_s

    @property
    def stuck(self) -> int:
        with self._threads.lock:
            return self._threads.hanging

    def hangs_for(self, key: K) -> bool:
        """True if a thread hangs for this key."""
        with self._threads.lock:
            return bool(self._threads.pids(key))

    def read_each(self, keys: Sequence[K], read: Read[K, T]) -> dict[K, T | Stuck]:
        """Read each key; `Stuck` for keys that could not be read. Raises what `read` raises."""
        woken = threading.Event()
        call = self._call(keys, read, woken.set)
        while not call.over():
            woken.wait(call.pause_s)
        return call.result()

    async def read_one(self, key: K, read: Read[K, T]) -> T | Stuck:
        """Read one key from an event loop. It may be cancelled."""
        # A helper has no event loop, and asyncio would take 3 MiB of it.
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
                loop.call_soon_threadsafe(woken.set)

        call = self._call((key,), read, wake)
        try:
            while not call.over():
                with suppress(TimeoutError):
                    async with asyncio.timeout(call.pause_s):
                        await woken.wait()
        except asyncio.CancelledError:
            call.leave()
            raise
        return call.result()[key]

    def close(self) -> None:
        """End the idle threads. Threads that hang end when they return."""
        self._threads.close()

    def _call(self, keys: Sequence[K], read: Read[K, T], wake: Callable[[], None]) -> _Call[K, T]:
        return _Call(self._threads, keys, read, wake, self._patience_s, self._within_s)


class _Call(Generic[K, T]):
    """The keys of one caller, read by as many threads as needed."""

    _seen: tuple[ThreadProgress | None, int]
    """The state of the thread when progress was last seen."""

    def __init__(
        self,
        threads: Threads[K],
        keys: Sequence[K],
        read: Read[K, T],
        wake: Callable[[], None],
        patience_s: float,
        within_s: float,
    ) -> None:
        self._threads = threads
        self._read = read
        self._wake = wake
        self._patience_s = patience_s
        self._until_s = threads.monotonic() + within_s
        self._hung = False
        self._keys = tuple(dict.fromkeys(keys))
        self._found: dict[K, T | Stuck] = {}
        with threads.lock:
            refused = [key for key in self._keys if threads.refuses(key)]
            self._found.update((key, Stuck(threads.pids(key))) for key in refused)
            # Keys that have hung before come last, so that they delay no others.
            admitted = [key for key in self._keys if key not in self._found]
            self._begin(sorted(admitted, key=threads.has_hung))

    @property
    def pause_s(self) -> float:
        """When to check again if no thread wakes the caller before."""
        return self._patience_now_s / 4

    def over(self) -> bool:
        """True when `result` can be called; otherwise call it again."""
        with self._threads.lock:
            turn, now = self._turn, self._threads.monotonic()
            if turn.finished or not turn.keys:
                self._found.update(turn.found)
                return True
            if self._hung and now >= self._until_s:
                turn.cut = True
            progress = turn.progress
            seen = progress, progress.count if progress is not None else 0
            if progress is None or seen != self._seen:
                self._seen, self._since_s, self._suspected = seen, now, False
                return False
            if now - self._since_s < self._patience_now_s or self._worker_is_starved():
                return False
            if not self._suspected:
                # It may only be waiting for the interpreter, which this thread holds.
                self._suspected = True
                return False
            self._go_on_without(turn, progress)
            return not self._turn.keys

    def leave(self) -> None:
        """The caller does not wait any more."""
        with self._threads.lock:
            turn = self._turn
            turn.cut = True
            if not turn.finished and turn.key is not None and turn.progress is not None:
                self._threads.leave(turn.key, turn.progress)

    def result(self) -> dict[K, T | Stuck]:
        if self._turn.error is not None:
            raise self._turn.error
        return {key: self._found.get(key, Stuck()) for key in self._keys}

    @property
    def _patience_now_s(self) -> float:
        return min(_QUICK_S, self._patience_s) if self._hung else self._patience_s

    def _worker_is_starved(self) -> bool:
        return self._worker is not None and self._worker.waits_for_processor()

    def _begin(self, keys: Sequence[K]) -> None:
        self._turn: Round[K, T] = Round(keys, self._read, self._wake)
        self._worker = self._threads.begin(self._turn) if keys else None
        self._seen = (None, 0)
        self._since_s = self._threads.monotonic()
        self._suspected = False

    def _go_on_without(self, turn: Round[K, T], progress: ThreadProgress) -> None:
        key = turn.key
        assert key is not None  # there is progress on it
        self._hung = True
        self._threads.leave(key, progress)
        self._threads.note_hang(key)
        self._found.update(turn.found)
        self._found[key] = Stuck(self._threads.pids(key))
        rest = turn.keys[turn.keys.index(key) + 1 :]
        may_go_on = self._threads.monotonic() < self._until_s and not self._threads.full
        self._begin(rest if may_go_on and not turn.cut else ())
