"""Takes a share of every core away, as a hypervisor does: `python -m bench.stolen_cores 25`.

One real-time process a core spins for a moment out of each period and sleeps for the rest, so
whatever else runs there is stopped meanwhile. Ends with its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PERIOD_S = 0.4
_PRIORITY = 50


@contextmanager
def stolen(percent: float) -> Iterator[None]:
    """For the time of the block; nothing is taken for 0."""
    if percent <= 0:
        yield
        return
    thieves = [
        multiprocessing.Process(target=_steal, args=(core, percent), daemon=True)
        for core in os.sched_getaffinity(0)
    ]
    for each in thieves:
        each.start()
    try:
        yield
    finally:
        for each in thieves:
            each.kill()
            each.join()


def _steal(core: int, percent: float) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    parent = os.getppid()
    busy_s = PERIOD_S * percent / 100
    while os.getppid() == parent:
        until = time.monotonic() + busy_s
        while time.monotonic() < until:
            pass
        time.sleep(PERIOD_S - busy_s)


if __name__ == "__main__":
    with stolen(float(sys.argv[1])):
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
