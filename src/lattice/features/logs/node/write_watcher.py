"""How a capture notices that its job has written.

inotify reports writes at once, but each small write() takes a third longer for the writer. So it
serves jobs that write little. If a job writes much, the capture drops its watches and polls its
files. When the job is quiet again, it requests watches again. Written bytes count, read or not:
jobs over their quota or without spool space must not pay either.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

LONGEST_WAIT_S = 1.0
"""Between polls without inotify events: a network file system, or a lost watch."""
COALESCE_S = 0.02
"""Small writes are read together: at most 50 reads a second for each job."""
WINDOW_S = 2.0
MUCH = 256 * 1024
"""Bytes a second above which a job is polled; below a quarter of it, it is quiet."""
_QUIET = MUCH // 4
_POLL_S = 0.1
_FOLLOWED_POLL_S = 0.01
_QUIET_POLL_S = 0.05
_ASK_AGAIN_S = 30.0


class Noticing:
    """Any thread may call `add`, `added_all` and `wake`; the rest is for the reading thread."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        written_bytes: Callable[[], int],
        on_quiet: Callable[[], None],
    ) -> None:
        """Both are called in the reading thread.

        - `written_bytes`: how much the job has written by now.
        - `on_quiet`: inotify watches are wanted again.
        """
        self._monotonic = monotonic
        self._written_bytes = written_bytes
        self._on_quiet = on_quiet
        self._watches: list[int] = []
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._since_s = monotonic()
        self._bytes_then = 0
        self._polls = False
        self._quiet = False
        self._asked_s: float | None = None

    def add(self, descriptor: int) -> None:
        """Add an inotify instance for some of the files; it is closed at the end."""
        with self._lock:
            if self._polls and not self._quiet:
                os.close(descriptor)
            else:
                self._watches.append(descriptor)
        self.wake()

    def added_all(self) -> None:
        """Every file has a watch again, as far as the kernel had watches left."""
        with self._lock:
            if self._watches and self._quiet:
                self._polls = False

    def wake(self) -> None:
        """End the current or the next wait at once."""
        # A full pipe wakes the reader anyway; a closed one means that it has ended.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._wake_writer, b"w")

    def wait(self, *, followed: bool) -> None:
        """Wait until something may have been written; `followed` if somebody waits for it."""
        self._judge()
        with self._lock:
            watches = tuple(self._watches)
        polling = select.poll()
        for each in (self._wake_reader, *watches):
            polling.register(each, select.POLLIN)
        ready = [number for number, _ in polling.poll(self._wait_s(followed) * 1000)]
        for each in ready:
            try:
                os.read(each, 65536)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._drop((each,))
        if ready and self._wake_reader not in ready and not followed:
            # Nobody waits, so more writes can be read together.
            threading.Event().wait(COALESCE_S)

    def close(self) -> None:
        self._drop(tuple(self._watches))
        os.close(self._wake_reader)
        # The write end stays open: a late `wake` must not write into another file with that number.

    def _wait_s(self, followed: bool) -> float:
        if not self._polls:
            return LONGEST_WAIT_S
        if self._quiet:
            return _QUIET_POLL_S
        return _FOLLOWED_POLL_S if followed else _POLL_S

    def _judge(self) -> None:
        now_s = self._monotonic()
        lasted_s = now_s - self._since_s
        if lasted_s < WINDOW_S:
            return
        written_bytes = self._written_bytes()
        rate = (written_bytes - self._bytes_then) / lasted_s
        self._since_s, self._bytes_then = now_s, written_bytes
        if rate >= MUCH and self._watches:
            self._asked_s = None
            with self._lock:
                self._polls, self._quiet = True, False
            self._drop(tuple(self._watches))
        elif self._polls:
            was_quiet, self._quiet = self._quiet, rate < _QUIET
            due = self._asked_s is None or now_s - self._asked_s >= _ASK_AGAIN_S
            if was_quiet and self._quiet and due:
                self._asked_s = now_s
                self._on_quiet()

    def _drop(self, watches: tuple[int, ...]) -> None:
        with self._lock:
            for each in watches:
                self._watches.remove(each)
                os.close(each)
