"""Ends every process of a control group, also one that is stopped, frozen or hung in the kernel.

The first process of a pid namespace ends only when every other one in it was collected by its
parent. The parent of what was entered with `nsenter` stands outside: while it is stopped or frozen
it collects nothing, and the namespace, killed or not, does not end. Hence the order: thaw, kill
what is inside, let those outside go on and collect, and kill these last.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from lab.cgroup import ControlGroup
from lab.fuse import FuseConnections
from lab.identity import Identity
from lab.survivor import Survivor, uncollected

PATIENCE_S = 30.0
"""Without any process ending. Each end begins it anew: a busy machine takes its time."""
_OUTSIDE_LATER_S = 5.0
"""How long parents outside may need, without any process ending, to collect their children."""
_POLL_S = 0.1

Members = Callable[[], Iterable[Identity]]


def end_all(
    group: ControlGroup,
    others: Members = tuple,
    *,
    patience_s: float = PATIENCE_S,
    outside_later_s: float = _OUTSIDE_LATER_S,
) -> list[Survivor]:
    """Return what can't be ended: those that are left when none has ended for the patience.

    `others` are members that the group does not hold.
    """
    left = _members(group, others)
    fuse = FuseConnections.seen_by(each.pid for each in left)
    changed = time.monotonic()
    while left:
        quiet_s = time.monotonic() - changed
        if quiet_s > patience_s:
            pids = [each.pid for each in left]
            return sorted({*map(Survivor.of, pids), *uncollected(pids)})
        inside = {each for each in left if _is_inside(each.pid)}
        group.thaw()
        for each in left:
            each.send(signal.SIGKILL if each in inside else signal.SIGCONT)
        if not inside or quiet_s > outside_later_s:
            group.kill()
            for each in left:
                each.send(signal.SIGKILL)
        fuse.abort()
        _wait_for_one(left, _POLL_S)
        # A group does not list who is on the way out, such as the first of a pid namespace.
        now = _members(group, others).union(each for each in left if each.alive)
        if now != left:
            left, changed = now, time.monotonic()
    return []


def _members(group: ControlGroup, others: Members) -> frozenset[Identity]:
    # The kernel lists no ended process here, but one whose first thread alone has ended.
    found = set()
    for pid in group.pids():
        with suppress(ProcessLookupError):
            found.add(Identity.of(pid))
    return frozenset(found.union(each for each in others() if each.alive))


def _is_inside(pid: int) -> bool:
    """Whether it is in a pid namespace below this one: it then has a pid in each of them."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return len(line.split()) > len(("NSpid:", "pid"))
    return False


def _wait_for_one(identities: Iterable[Identity], timeout_s: float) -> None:
    """Return when one of them ends, or after the time."""
    waiting, handles = select.poll(), []
    try:
        for each in identities:
            try:
                handles.append(os.pidfd_open(each.pid))
            except OSError:
                return
            waiting.register(handles[-1], select.POLLIN)
        waiting.poll(timeout_s * 1000)
    finally:
        for handle in handles:
            os.close(handle)
