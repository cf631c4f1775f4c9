"""Where the kernel sees a process stand: the functions it sleeps in. Pure but for one read.

`/proc/PID/stack` is for CAP_SYS_ADMIN alone. Names of functions are told, never an address; and
only of a process that sleeps, whose stack does not change under the reader.
"""

from __future__ import annotations

import re
from pathlib import Path

from lattice.domain.jobfacts import Frame
from lattice.domain.probed import MOST_FRAMES
from lattice.helper.process import pinned, text_of

_LINE = re.compile(r"\[<[0-9a-f]{1,16}>\] ([A-Za-z_][A-Za-z0-9_.]{0,127})\+0x", re.ASCII)
_ASLEEP = frozenset("SDI")
_DULL = ("do_syscall_", "entry_SYSCALL_", "el0_", "el0t_", "invoke_syscall")
"""How every call into the kernel begins."""


def read_kernel_stack(text: str) -> tuple[Frame, ...]:
    """The functions, the innermost first."""
    found = (_LINE.match(line) for line in text.splitlines())
    names = [each[1] for each in found if each]
    return tuple(Frame(name) for name in names if not name.startswith(_DULL))[:MOST_FRAMES]


def kernel_stack(proc: Path, pid: int, started: int, job_id: int, state: str) -> tuple[Frame, ...]:
    """Of that very process, while it is asleep; else nothing."""
    if state not in _ASLEEP:
        return ()
    with pinned(proc, pid, job_id) as process:
        if process is None or process.started != started:
            return ()
        frames = read_kernel_stack(text_of(process.folder, "stack"))
        return frames if process.unchanged() else ()
