"""Which process a pid means: the pid together with the moment the kernel started it.

The kernel hands a pid out again; pid, start time and boot id together never repeat. Signals go
through a pidfd opened before the start time is compared, so there is no moment in which a
recycled pid could be hit.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; the second is a name that may hold anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of this boot, for ever."""

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The process that has this pid now; raises ProcessLookupError if none has."""
        try:
            return cls(pid, int(_stat_fields(pid)[19]), boot_id())
        except FileNotFoundError:
            raise ProcessLookupError(pid) from None

    def state(self) -> str:
        """The kernel's state letter, or "" if the process is gone or waits to be reaped."""
        try:
            fields = _stat_fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return ""
        same = int(fields[19]) == self.start_ticks and self.boot == boot_id()
        return fields[0] if same and fields[0] not in "ZX" else ""

    @property
    def alive(self) -> bool:
        return self.state() != ""

    def wake_parent(self) -> None:
        """Let an `nsenter` above it go on: it stops itself when its child is stopped, and one that
        stays stopped never collects the child, whose pid namespace then can't end.
        """
        with suppress(OSError, ValueError):
            parent = int(_stat_fields(self.pid)[1])
            if (_PROC / str(parent) / "comm").read_text().strip() == "nsenter":
                os.kill(parent, signal.SIGCONT)

    def send(self, *signals: signal.Signals) -> bool:
        """Deliver the signals to exactly this process; False if it is no more."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            for number in signals:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False if it still runs after the time."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if self.alive:
                waiting = select.poll()
                waiting.register(handle, select.POLLIN)
                waiting.poll(timeout_s * 1000)
        finally:
            os.close(handle)
        return not self.alive


def children(pid: int) -> list[int]:
    """Those that any of its threads has started."""
    found = []
    for thread in (_PROC / str(pid) / "task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def carrying(variable: str, value: str, *, not_below: str) -> Iterator[Identity]:
    """Every process whose environment, as it was started, holds exactly this variable.

    Members of control groups below that one are left out: to read the environment of a hostile
    process may hang as long as it wishes.
    """
    wanted = f"{variable}={value}".encode()
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            if f"/{not_below}/" in (folder / "cgroup").read_text():
                continue
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield Identity.of(int(folder.name))
