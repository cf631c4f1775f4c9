"""Process-wide settings: inherited signals, core files, and how often Python collects garbage.

A process keeps until its end what it holds after its start. Scanning that again and again takes
time and, in a process that forks, memory.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import signal
from contextlib import suppress


def reset_inherited_signals() -> None:
    """Unblock every signal, and let this process wait for its children again.

    The mask and an ignored SIGCHLD both survive exec. With SIGCHLD ignored, the kernel reaps
    children itself and their exit codes are lost. A blocked SIGTERM or SIGALRM never arrives.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_PR_SET_DUMPABLE = 4


def leave_no_core() -> None:
    """Prevent core files, and reads of the memory by other processes of the same account.

    A limit of 0 does not suffice: the kernel ignores it where a program receives the cores. It is
    set too, for children, and may be forbidden by the unit, which then sets it itself.
    """
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(AttributeError):  # not on every system
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


MANY = 50_000
"""A page about a few hundred nodes makes as many objects, which are freed without a collection.
With the interpreter's threshold of 700, a fifth of the time for such a page goes into collections.
"""
_OLDER = 20


def settle(young: int | None = None) -> None:
    """Exclude all current objects from collection; collect new ones after `young` of them."""
    gc.collect()
    gc.freeze()
    if young is not None:
        gc.set_threshold(young, _OLDER, _OLDER)
