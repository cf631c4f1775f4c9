"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.locks.model import LockList, LockOrder, UnlockOrder

_SERVICE = "lattice.v1.LockService/"

LIST_LOCKS = Operation(
    rpc=_SERVICE + "ListLocks", method="GET", path="/locks", request=EmptyRequest, answer=LockList
)
CREATE_LOCK = Operation(
    rpc=_SERVICE + "CreateLock", method="POST", path="/locks", request=LockOrder, answer=LockList
)
DELETE_LOCK = Operation(
    rpc=_SERVICE + "DeleteLock",
    method="POST",
    path="/locks/unlock",
    request=UnlockOrder,
    answer=LockList,
)


def list_locks() -> Call[LockList]:
    """List the locks in force that the caller may end."""
    return LIST_LOCKS.call(EmptyRequest())


def create_lock(kind: str, target: str = "", *, reason: str, duration_s: int = 0) -> Call[LockList]:
    """Lock from now on; the answer holds the new lock."""
    return CREATE_LOCK.call(
        LockOrder(kind=kind, target=target, reason=reason, duration_s=duration_s)
    )


def delete_lock(kind: str, target: str = "") -> Call[LockList]:
    """End a lock now; the answer holds the removed lock."""
    return DELETE_LOCK.call(UnlockOrder(kind=kind, target=target))


SDK: Mapping[str, Callable[..., object]] = {
    "locks": list_locks,
    "lock": create_lock,
    "unlock": delete_lock,
}
"""Method names of the SDK, and the functions that build their calls."""
