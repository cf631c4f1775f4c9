"""The processes that were started in a recorded terminal, and their end.

They can leave the terminal (`nohup`, `setsid`), but not the job's control group for guests. A job
has one recorded terminal at a time. So whatever the owner has there, and had not before the
terminal began, was started in it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lattice.helper.jobgroups import pids_of
from lattice.helper.kernel_texts import read_stat, status_of, text_of

LONGEST_S = 10.0
_PAUSE_S = 0.01
_DEAD = frozenset("ZXx")


class GuestProcesses:
    """Those of one terminal. Created before it begins."""

    def __init__(
        self,
        folder: str,
        uid: int,
        *,
        proc: Path = Path("/proc"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._uid = str(uid)
        self._proc = proc
        self._monotonic = monotonic
        self._before = {pid: self._started(pid) for pid in pids_of(folder)}
        """Those that were there, with their start: a number may be used again."""

    def end(self) -> bool:
        """Kill them until none is left; False if some could not be ended in time."""
        until_s = self._monotonic() + LONGEST_S
        while left := self._left():
            for pid in left:
                self._kill(pid)
            if self._monotonic() > until_s:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _left(self) -> list[int]:
        return [pid for pid in pids_of(self._folder) if self._is_new(pid) and self._is_owners(pid)]

    def _is_new(self, pid: int) -> bool:
        if pid not in self._before:
            return True
        started = self._started(pid)
        return started is not None and started != self._before[pid]

    def _started(self, pid: int) -> int | None:
        """When it started, in ticks of the node; None if it has ended, or is hidden."""
        try:
            folder = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            stat = read_stat(text_of(folder, "stat"))
        finally:
            os.close(folder)
        return stat.started if stat is not None else None

    def _is_owners(self, pid: int) -> bool:
        """False for Slurm's own and for those that have ended; a hidden one is the owner's."""
        try:
            folder = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return self._proc.joinpath(str(pid)).exists()
        try:
            status = status_of(text_of(folder, "status"))
        finally:
            os.close(folder)
        if "State" not in status:
            # It ended meanwhile, or is hidden.
            return self._proc.joinpath(str(pid)).exists()
        return self._uid in status.get("Uid", "").split() and status["State"][:1] not in _DEAD

    def _kill(self, pid: int) -> None:
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # Checked again: the pid may have been reused.
                if pid in pids_of(self._folder):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
