"""A process that did not end though it was killed, and where in the kernel it waits.

Nothing here reads the memory of a process (`cmdline`, `environ`): that can hang like its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ENDING_NAMESPACE = "zap_pid_ns_processes"
_NOWHERE = ("", "0")
_ENDED = "Z"
_STATES = {
    "D": "in an uninterruptible wait",
    "R": "running",
    "S": "sleeping",
    "T": "stopped",
    "t": "stopped by a tracer",
    _ENDED: "ended, but not collected by its parent",
}


@dataclass(frozen=True, slots=True, order=True)
class Survivor:
    """What is known of it."""

    pid: int
    name: str
    state: str
    waits_in: str
    parent: int

    @classmethod
    def of(cls, pid: int, proc: Path = _PROC) -> Survivor:
        """The process as it is now; of several threads one that hangs, the first may have ended."""
        folder = proc / str(pid)
        threads = [folder, *sorted((folder / "task").glob("*"))]
        state, thread = min(((_stat(each)[0], each) for each in threads), key=_rank)
        return cls(pid, _read(folder / "comm"), state, _wait_channel(thread), _stat(folder)[1])

    def __str__(self) -> str:
        state = f"{self.state} ({_STATES[self.state]})" if self.state in _STATES else self.state
        told = f"process {self.pid} ({self.name or 'gone'}) is in state {state or 'unknown'}"
        if self.state == _ENDED:
            return f"{told}: process {self.parent}"
        return told + (f", waiting in {self.waits_in}" if self.waits_in else "")


def uncollected(pids: Iterable[int]) -> list[Survivor]:
    """Ended processes that the first process of a pid namespace waits for."""
    ending = [pid for pid in pids if _wait_channel(_PROC / str(pid)) == _ENDING_NAMESPACE]
    namespaces = {_pid_namespace(pid) for pid in ending} - {0}
    everybody = [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit()]
    members = [pid for pid in everybody if namespaces and _pid_namespace(pid) in namespaces]
    return [each for each in map(Survivor.of, members) if each.state == _ENDED]


def _rank(thread: tuple[str, Path]) -> int:
    states = [*_STATES]
    return states.index(thread[0]) if thread[0] in states else len(states)


def _stat(thread: Path) -> tuple[str, int]:
    """State and parent."""
    fields = _read(thread / "stat").rpartition(")")[2].split()
    return (fields[0], int(fields[1])) if fields else ("", 0)


def _wait_channel(thread: Path) -> str:
    """The kernel function it sleeps in; a kernel without that name has a stack for root."""
    if (name := _read(thread / "wchan")) not in _NOWHERE:
        return name
    first = _read(thread / "stack").partition("\n")[0]
    return first.rpartition("] ")[2].partition("+")[0]


def _pid_namespace(pid: int) -> int:
    with suppress(OSError):
        return (_PROC / str(pid) / "ns/pid").stat().st_ino
    return 0


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace").strip("\0\n")
    return ""
