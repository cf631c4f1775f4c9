"""The status of the quorum, from what the members report. Pure but for `QuorumService`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lattice.base.errors import LatticeError
from lattice.domain.cluster_record import CLUSTER_KEY, read_cluster
from lattice.domain.quorum import MembersOf, QuorumMember, majority
from lattice.domain.state import StateStore
from lattice.features.state.model import QuorumStatus

WITHIN_S = 3.0
_SINGLE = "one server with a database of its own (--single): no quorum, no high availability"
_TEMPORARY = "the state is a file that ends with this server: there is nothing to back up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKind:
    """What holds the agreed state."""

    store: str
    """`etcd`, `single` or `temporary`."""
    members: MembersOf | None = None
    """None without etcd."""


def quorum_status(members: Sequence[QuorumMember]) -> QuorumStatus:
    """What the members of etcd report, as one answer."""
    voters = [each for each in members if not each.is_learner]
    there = [each for each in voters if each.answers and each.has_leader]
    needed = majority(len(voters))
    leader = next((each for each in there if each.is_leader), None)
    alarms = tuple(
        f"{each.etcd_name or each.name}: {each.reason}"
        for each in members
        if each.answers and each.reason
    )
    note = ""
    if len(there) < needed:
        note = f"{len(there)} of {len(voters)} members agree, and {needed} are needed"
    elif len(there) == needed:
        note = "the state can't be changed once another member fails"
    return QuorumStatus(
        store="etcd",
        healthy=len(there) >= needed,
        note=note,
        leader=(leader.etcd_name or leader.name) if leader else "",
        term=max((each.term for each in there), default=0),
        index=max((each.index for each in there), default=0),
        needed=needed,
        may_fail=max(len(there) - needed, 0),
        size_bytes=max((each.size_bytes for each in there), default=0),
        alarms=alarms,
        members=tuple(members),
    )


class QuorumService:
    """Asks the members anew for each caller."""

    def __init__(self, kind: StateKind, state: StateStore) -> None:
        self._kind = kind
        self._state = state

    async def status(self) -> QuorumStatus:
        """The members and the cluster's record. Does not raise while etcd is away."""
        if self._kind.members is None:
            single = self._kind.store == "single"
            status = QuorumStatus(
                store=self._kind.store, healthy=True, note=_SINGLE if single else _TEMPORARY
            )
        else:
            status = quorum_status(await self._kind.members(WITHIN_S))
        try:
            entry = await self._state.get(CLUSTER_KEY)
            record = read_cluster(entry) if entry is not None else None
        except LatticeError as error:
            return replace(status, healthy=False, note=status.note or error.message.rstrip("."))
        if record is None:
            return replace(status, note=status.note or "there is no cluster's state yet")
        return replace(status, cluster=record.id, epoch=record.epoch)
