"""Reads single keys of a terminal while something runs, and restores the terminal afterwards."""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Callable
from threading import Thread


def listen(act: Callable[[str], None]) -> Callable[[], None]:
    """Call `act` with each key, in another thread; the returned function ends that.

    Only for the terminal's foreground group: a background process would be stopped for touching it.
    """
    keys = sys.stdin.fileno()
    if not os.isatty(keys) or os.tcgetpgrp(keys) != os.getpgrp():
        return lambda: None
    before = termios.tcgetattr(keys)
    now = termios.tcgetattr(keys)
    # Interrupts stay on; only line mode and echo are off.
    now[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(keys, termios.TCSADRAIN, now)
    hears, ends = os.pipe()

    def hear() -> None:
        while hears not in (ready := select.select([keys, hears], [], [])[0]):
            if ready and not (typed := os.read(keys, 1)):
                break
            act(typed.decode("latin-1"))
        os.close(hears)

    def stop() -> None:
        nonlocal ends
        if ends >= 0:
            os.close(ends)
            ends = -1
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    Thread(target=hear, name="keys", daemon=True).start()
    return stop
