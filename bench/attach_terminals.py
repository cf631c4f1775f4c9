"""Keys typed at a terminal one every few milliseconds, and how long each takes to come back."""

from __future__ import annotations

import os
import select
import time

from lab.screen import Screen

KEY_EVERY_S = 0.004
_SKIPPED = 50


def echoes_ms(
    screen: Screen, count: int, *, every_s: float = KEY_EVERY_S, patience_s: float = 5.0
) -> list[float]:
    """Of so many keys; the first are left out. `patience_s` is for the last ones to come back."""
    sent: list[float] = []
    came: list[float] = []
    begun = time.perf_counter()
    while len(came) < count:
        due = begun + len(sent) * every_s
        wait_s = max(0.0, due - time.perf_counter()) if len(sent) < count else patience_s
        ready, _, _ = select.select([screen.leader], [], [], wait_s)
        if ready:
            came += [time.perf_counter()] * os.read(screen.leader, 65536).count(b"x")
        elif len(sent) < count:
            # A line now and then: a terminal keeps no more than 4 KiB of one.
            key = b"x" if len(sent) % 200 != 199 else b"x\n"
            sent.append(time.perf_counter())
            os.write(screen.leader, key)
        else:
            raise AssertionError(f"{len(came)} of {count} keys came back")
    found = zip(sent, came, strict=False)
    return [(back - there) * 1000 for there, back in found][_SKIPPED:]
