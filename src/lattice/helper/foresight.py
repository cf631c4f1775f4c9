"""Has the kernel get ready for a move between control groups while something else is done.

The first such move in a while makes the kernel wait until every CPU has passed a quiet point: 5 to
20 ms, most of what entering a job takes. Those that follow soon after do not wait. So one that
moves nothing is begun beside the search for the job's process.
"""

from __future__ import annotations

import _thread
import os
from contextlib import suppress
from pathlib import Path

_V1_PREFERRED = "freezer"


class Foresight:
    """Knows this process's own group, to which it can be moved without moving."""

    def __init__(
        self, proc: Path = Path("/proc"), control_groups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._file = next((each for each in _own(proc, control_groups) if _names_me(each)), None)

    def begin(self) -> None:
        """Returns at once. A thread, because only its wait is wanted; it touches nothing else."""
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
    """Whether it is really this process's group: a namespace may show paths that are not."""
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
