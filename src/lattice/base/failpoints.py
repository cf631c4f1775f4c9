"""Named places at which a test can have the process killed, as a power switch would.

`LATTICE_FAILPOINT=spool.frame.written` kills at the first time that place is reached,
`spool.frame.written:3` at the third. Unset, a failpoint is one comparison.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "LATTICE_FAILPOINT"
_armed, _, _times = os.environ.get(VARIABLE, "").partition(":")
_left = int(_times) if _times.isdigit() else 1


def failpoint(name: str) -> None:
    """End here, if that was asked for."""
    global _left  # noqa: PLW0603 - the process has one end
    if name != _armed:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
