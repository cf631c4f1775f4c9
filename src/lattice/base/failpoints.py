"""Named places at which a test can have the process killed, as a power failure would.

`LATTICE_FAILPOINT=spool.frame.written` kills the process when it first reaches that place,
`spool.frame.written:3` when it does so for the third time. If unset, a failpoint costs one
comparison.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "LATTICE_FAILPOINT"
_armed, _, _times = os.environ.get(VARIABLE, "").partition(":")
_left = int(_times) if _times.isdigit() else 1


def failpoint(name: str) -> None:
    """Kill the process here, if the variable names this place."""
    global _left  # noqa: PLW0603 - a process is killed once
    if name != _armed:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
