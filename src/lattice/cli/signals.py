"""Signals as bytes of a descriptor, for a loop around `select`; restores the handlers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType
from typing import Self


def _noted(number: int, frame: FrameType | None) -> None:
    """Only the byte in the pipe counts."""


class CaughtSignals:
    """Used with `with`; in the block these signals only appear in `caught`."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._before: list[tuple[signal.Signals, object]] = []
        self._reads = self._writes = -1
        self._woke = -1

    def __enter__(self) -> Self:
        self._reads, self._writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._woke = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        for number in self._numbers:
            before = signal.getsignal(number)
            # A signal that is ignored, as under nohup, stays ignored.
            if before is not signal.SIG_IGN:
                self._before.append((number, before))
                signal.signal(number, _noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before:
            signal.signal(number, before)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._woke)
        os.close(self._reads)
        os.close(self._writes)

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._reads

    def caught(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            return list(os.read(self._reads, 64))
        except BlockingIOError:
            return []


def stop_here() -> None:
    """Suspend this process as Ctrl-Z would; returns when it continues."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        os.kill(os.getpid(), signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, before)
