"""What every user can read in /proc about a process: its start, its owner, its command line.

It reads only what needs no privilege. A process that ends while it is read gives None, never an
error. So does one that the kernel hides (`hidepid`); `hides_processes` distinguishes that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lattice.domain.kerneltext import figure
from lattice.domain.nodejobs import ProcessId

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_LARGEST_READ_BYTES = 1 << 20
_LARGEST_INFO_BYTES = 4096
_START_FIELD = 22


class Proc:
    """One mount of procfs."""

    def __init__(self, root: Path, wall: Callable[[], float]) -> None:
        self._root = str(root)
        self._wall = wall

    @property
    def boot_id(self) -> str:
        """Of the running kernel; "" if it can't be read."""
        text = read_text(f"{self._root}/sys/kernel/random/boot_id")
        return text.strip() if text else ""

    @property
    def hides_processes(self) -> bool:
        """Whether processes of other users are hidden; then no job has pids here."""
        return not os.path.exists(f"{self._root}/1")  # noqa: PTH110  never raises

    @property
    def booted(self) -> int | None:
        """Wall time of the boot, in whole seconds."""
        text = read_text(f"{self._root}/stat")
        return parse_boot_time(text) if text else None

    def process(self, pid: int) -> ProcessId | None:
        text = read_text(f"{self._root}/{pid}/stat")
        ticks = parse_start_ticks(text) if text else None
        return None if ticks is None else ProcessId(pid, ticks)

    def owner(self, pid: int) -> int | None:
        """Its real user id."""
        text = read_text(f"{self._root}/{pid}/status")
        return parse_owner(text) if text else None

    def title(self, pid: int) -> str | None:
        text = read_text(f"{self._root}/{pid}/cmdline")
        return text.rstrip("\0") if text else None

    def wall_time(self, process: ProcessId) -> float | None:
        """When it started, by the wall clock.

        Computed from the boot time in whole seconds, so that it is always the same value; the
        accuracy is half a second.
        """
        booted = self.booted
        if booted is None:
            return None
        return min(booted + 0.5 + process.start_ticks / _TICKS_A_SECOND, self._wall())

    def earliest_start(self, process: ProcessId) -> float | None:
        """When it can have started at the earliest: at most a second before it has.

        Never after now, so that it is the same value from the first moment on.
        """
        booted = self.booted
        return None if booted is None else booted + process.start_ticks / _TICKS_A_SECOND


def process_info(proc: Path, pid: int) -> tuple[int, str, str] | None:
    """Parent, name and command line (separated by NULs) of a process; None if it is gone."""
    folder = proc / str(pid)
    try:
        with (folder / "stat").open("rb") as file:
            stat = file.read(_LARGEST_INFO_BYTES)
        with (folder / "cmdline").open("rb") as file:
            title = file.read(_LARGEST_INFO_BYTES)
    except OSError:
        return None
    # The name is in brackets and may itself contain brackets.
    name, closing, rest = stat[stat.find(b"(") + 1 :].rpartition(b")")
    fields = rest.split()
    if not closing or len(fields) < 2 or not fields[1].isdigit():
        return None
    return int(fields[1]), _text(name), _text(title.rstrip(b"\0"))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").strip()


def read_text(path: str) -> str | None:
    """A small kernel file as a whole; None if it is gone, empty or can't be read."""
    # Not Path.read_text: thousands of these are read, and this takes a third of the time.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        size = 0
        while size < _LARGEST_READ_BYTES and (part := os.read(file, 65536)):
            parts.append(part)
            size += len(part)
    except OSError:  # ESRCH, ENODEV: it ended between the two calls
        return None
    finally:
        os.close(file)
    return b"".join(parts).decode("ascii", "replace") or None


def parse_start_ticks(stat: str) -> int | None:
    """Field 22. The process chooses the name in field 2: brackets, spaces, line ends."""
    fields = stat[stat.rfind(")") + 1 :].split()
    at = _START_FIELD - 3
    if ")" not in stat or len(fields) <= at:
        return None
    return figure(fields[at])


def parse_owner(status: str) -> int | None:
    """The first number of the line `Uid:`. A line end in a name is escaped in this file."""
    for line in status.split("\n"):
        if line.startswith("Uid:"):
            figures = line.split()
            return figure(figures[1]) if len(figures) > 1 else None
    return None


def parse_boot_time(stat: str) -> int | None:
    for line in stat.split("\n"):
        if line.startswith("btime "):
            return figure(line[6:].strip())
    return None


def parse_pids(procs: str) -> list[int]:
    """The pids in cgroup.procs. 0 is a process of another pid namespace."""
    found = (figure(word) for word in procs.split())
    return [pid for pid in found if pid]
