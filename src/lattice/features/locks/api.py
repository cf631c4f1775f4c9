"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json

from lattice.base.call import Call
from lattice.features.locks.model import LockList


def list_locks() -> Call[LockList]:
    """The locks in force that the caller may end."""
    return Call("GET", "/v1/locks", LockList)


def create_lock(kind: str, target: str, reason: str, duration_s: int = 0) -> Call[LockList]:
    """Lock from now on; the answer holds that lock."""
    order = {"kind": kind, "target": target, "reason": reason, "duration_s": duration_s}
    return Call("POST", "/v1/locks", LockList, body=json.dumps(order).encode())


def delete_lock(kind: str, target: str) -> Call[LockList]:
    """End a lock now; the answer holds the lock that was."""
    order = {"kind": kind, "target": target}
    return Call("POST", "/v1/locks/unlock", LockList, body=json.dumps(order).encode())
