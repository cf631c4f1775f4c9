"""Prepares the kernel for a move between control groups while the helper does other work.

The first move in a while makes the kernel wait for an RCU grace period on every CPU: 5 to 20 ms,
most of the time that entering a job takes. Moves soon after do not wait. So the helper starts a
move that changes nothing while it searches for the job's process.
"""

from __future__ import annotations

import _thread
import os
from contextlib import suppress
from pathlib import Path

_V1_PREFERRED = "freezer"


class Foresight:
    """Moves this process to the control group it is already in."""

    def __init__(
        self, proc: Path = Path("/proc"), control_groups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._file = next((each for each in _own(proc, control_groups) if _names_me(each)), None)

    def begin(self) -> None:
        """Return at once. A thread waits for the move and touches nothing else."""
        if self._file is not None:
            with suppress(RuntimeError):
                _thread.start_new_thread(_write, (self._file,))


def _own(proc: Path, control_groups: Path) -> list[str]:
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in sorted(lines, key=lambda line: f":{_V1_PREFERRED}:" not in line):
        _, controllers, path = line.split(":", 2)
        names = [controllers.removeprefix("name=")] if controllers else ["", "unified"]
        found += [f"{control_groups}/{name}{path}/cgroup.procs" for name in names]
    return found


def _names_me(file: str) -> bool:
    """Whether this process is in the group; in a namespace, `/proc` may show other paths."""
    try:
        return str(os.getpid()) in Path(file).read_text().split()
    except OSError:
        return False


def _write(file: str) -> None:
    with suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
