"""Slots for probes that may hang: a file with a lock, which the probing process holds to its end.

A process that waits for a dead file share may not even be killable. It is abandoned. Its lock shows
later callers that it still hangs, since when, and for which user. So the same dead share is not
probed twice, and the number of hanging probes is limited.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_OF_USER = 8
MOST_OF_ALL = 32
_FORGET_S = 3600.0
_NAME = re.compile(r"([0-9]{1,10})-[a-z]{1,16}-[0-9]{1,24}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot that this process holds, and every process that inherits the descriptor."""

    descriptor: int


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """A slot that an earlier probe holds, and since when."""

    since_s: float


class ProbeSlots:
    """Slots in one folder of root. Times are seconds since the node started."""

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises `OSError`, and `ValueError` if others could change it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(f"{folder} must belong to root and be open to root alone")
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, uid: int, kind: str, number: int) -> int:
        """Open the file of a slot as root; the caller takes it later, without root's rights."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(f"{uid}-{kind}-{number}", flags, 0o600, dir_fd=self._folder)

    def room(self, uid: int) -> int:
        """How many more probes may start for this user. Also removes old files of free slots."""
        of_user = of_all = 0
        for name in os.listdir(self._folder):  # noqa: PTH208
            named = _NAME.fullmatch(name)
            if named and self._is_taken(name):
                of_all += 1
                of_user += int(named[1]) == uid
        return max(0, min(MOST_OF_USER - of_user, MOST_OF_ALL - of_all))

    def _is_taken(self, name: str) -> bool:
        try:
            file = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            # A file that a process is about to lock is younger.
            if time.time() - os.fstat(file).st_mtime > _FORGET_S:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)
            return False
        finally:
            os.close(file)


def take(file: int) -> HeldSlot | TakenSlot:
    """Take the slot, or return since when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        told = os.pread(file, 32, 0)
        return TakenSlot(int(told) / 1e9 if told.isdigit() else _now_s())
    os.ftruncate(file, 0)
    os.pwrite(file, str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)).encode(), 0)
    return HeldSlot(file)


def waited_s(taken: TakenSlot) -> float:
    """For how long the earlier probe has waited."""
    return max(0.0, _now_s() - taken.since_s)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
