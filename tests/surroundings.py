"""Tests and what they start find the same signals, umask and streams, whoever began.

A parent may ignore signals (`nohup`, a shell's background job), block them, or close the standard
input. All of that is inherited, through exec too. An ignored signal gets a handler that does
nothing: pytest still survives it, and a program that is started has the default again.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

UMASK = 0o022
_OF_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Python ignores these itself, and `subprocess` restores them."""
_STREAMS = (0, 1, 2)


def restore() -> None:
    """Give this process what a program has that a login shell starts in front."""
    for number in ignored():
        signal.signal(number, _survive)
    # A handler would be harmless, but while it is ignored no child can be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(UMASK)
    for stream in _STREAMS:
        _open_if_closed(stream)


def forget() -> None:
    """In a fork that becomes another program: have the defaults now, and not only after exec."""
    for number in signal.Signals:
        if signal.getsignal(number) is _survive:
            signal.signal(number, signal.SIG_DFL)


def ignored() -> list[signal.Signals]:
    """Signals that the parent of this process had it ignore."""
    every = (number for number in signal.Signals if number not in _OF_PYTHON)
    return [number for number in every if signal.getsignal(number) is signal.SIG_IGN]


def _survive(number: int, frame: FrameType | None) -> None:
    """Do what ignoring it would do."""


def _open_if_closed(stream: int) -> None:
    try:
        os.fstat(stream)
    except OSError:
        # The lowest free descriptor is this one: those below it are open.
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(stream, True)
