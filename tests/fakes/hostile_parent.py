"""A parent that leaves its child what no program expects: `subprocess.Popen(preexec_fn=...)`."""

from __future__ import annotations

import os
import signal

IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
BLOCKED = (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGWINCH)


def leave_odd_things() -> None:
    """Ignored and blocked signals, an open umask, no standard input, no terminal."""
    os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)
    os.umask(0)
    os.close(0)


def signal_sets(status: str) -> dict[str, set[int]]:
    """The numbers in each signal mask of a `/proc/PID/status`, by the field's name."""
    lines = (line.partition(":") for line in status.splitlines())
    masks = {name: int(mask, 16) for name, _, mask in lines if name in ("SigBlk", "SigIgn")}
    return {name: {bit + 1 for bit in range(64) if mask >> bit & 1} for name, mask in masks.items()}
