"""Whether a node's agent is linked: the records of it, and how they may change. Pure.

An agent keeps one link to one replica. Two keys describe it:

    links/NODE   the link itself, under the lease of the replica that holds it, and gone with it
    nodes/NODE   the node's record, which stays: when it was linked or lost, its condition

The invariant: **the record follows the link's key and never runs ahead of it.**

- A writer of the record expects the revisions of both keys, so the record was true when it was
  written. A write based on an older reading fails and is made again from a newer one.
- An epoch never falls. Input of an older epoch than the record's changes nothing.
- A missing link key means "route unknown". Only time turns that into Degraded and Down, counted
  from `since`. A new link sets Ready at once.
- A linked node is Ready, so no server that saw its link has set another condition.
- Its health is the agent's last report. It is written when it changes, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from lattice.domain.allocation import Allocation
from lattice.domain.node import (
    NOT_LOOKED,
    AgentLink,
    Condition,
    HealthState,
    Node,
    NodeAgent,
    NodeHealth,
    NodeState,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.slices import AllocationSlice, SliceState
from lattice.domain.source import Source

AGENT_LOST = "the agent of the node is not linked"
LINKS = "links/"
NODES = "nodes/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The route to an agent: the replica that holds it, and which of the node's links it is."""

    node: str
    replica: str
    epoch: int
    since: float
    """Wall time in Unix seconds."""
    boot_id: str = ""
    agent_version: str = ""
    instance: str = ""
    """One run of the agent; a restart makes another one."""
    health: NodeHealth = NOT_LOOKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    node: str
    epoch: int
    linked: bool
    since: float
    """Since when it is linked, or not linked."""
    condition: Condition
    boot_id: str = ""
    agent_version: str = ""
    registered: float
    """When an agent of this node was first seen."""
    earlier_boot_id: str = ""
    """The boot id of the link before, if it was another."""
    doubled: float = 0.0
    """When a boot id came back that another had followed: two machines use one certificate."""
    health: NodeHealth = NOT_LOOKED


@dataclass(frozen=True, slots=True)
class Times:
    """After how long without a link a node gets which condition."""

    degraded_after_s: float = 30.0
    down_after_s: float = 90.0
    sensitive_down_after_s: float = 600.0


_DOUBLED_S = 15 * 60.0
"""For how long it is told after it was last seen."""


def next_epoch(before: Presence | None) -> int:
    return before.epoch + 1 if before else 1


def linked(before: Presence | None, link: Link, now: float) -> Presence | None:
    """The record with this link; None if the link is older than the record.

    The same epoch may come back: a replica that lost its lease puts its links again.
    """
    if before is not None:
        if link.epoch < before.epoch:
            return None
        if before.linked and link.epoch == before.epoch:
            return None if link.health == before.health else replace(before, health=link.health)
    earlier, doubled = _boots(before, link, now)
    return Presence(
        node=link.node,
        epoch=link.epoch,
        linked=True,
        since=now,
        condition=Condition.READY,
        boot_id=link.boot_id,
        agent_version=link.agent_version,
        registered=before.registered if before else now,
        earlier_boot_id=earlier,
        doubled=doubled,
        health=link.health,
    )


def _boots(before: Presence | None, link: Link, now: float) -> tuple[str, float]:
    """The boot id before this link's, and when two machines were last seen to alternate."""
    if before is None:
        return "", 0.0
    if before.boot_id == link.boot_id or not before.boot_id:
        return before.earlier_boot_id, before.doubled
    # A machine that boots gets a new id; an id that comes back belongs to another machine.
    doubled = now if link.boot_id == before.earlier_boot_id else before.doubled
    return before.boot_id, doubled


def slices_of(allocation: Allocation, reading: PresenceReading) -> tuple[AllocationSlice, ...]:
    """The slices that an allocation runs in now, as far as their nodes' agents report them."""
    if allocation.state.finished:
        return ()
    found = []
    for held in allocation.gpu_indices:
        record = reading.records.get(held.node)
        for each in record.health.slices if record is not None else ():
            if set(each.guest.gpus).intersection(held.indices):
                guest = each.guest
                if record is not None and not record.linked:
                    guest = replace(guest, state=SliceState.UNKNOWN, reason=AGENT_LOST, faults=())
                found.append(AllocationSlice(node=held.node, guest=guest))
    return tuple(found)


def may_be_in_slice(allocation: Allocation, nodes: str, reading: PresenceReading) -> bool:
    """True if the job runs or ran in a slice on these nodes, or if that is not known.

    What Slurm accounts of such a job is the host's.
    """
    records = {each: reading.records.get(each) for each in NodeSet.parse(nodes)}
    slices = {
        name: [set(one.guest.gpus) for one in record.health.slices]
        for name, record in records.items()
        if record is not None
    }
    if not allocation.gpu_indices:
        return allocation.gpus != 0 and any(slices.values())
    return any(
        gpus.intersection(held.indices)
        for held in allocation.gpu_indices
        for gpus in slices.get(held.node, ())
    )


def lacks_of(record: Presence, reading: PresenceReading) -> tuple[str, ...]:
    """What is wrong with the agent or its certificate, for people."""
    own = record.health.lacks if record.linked else ()
    if not is_doubled(record, reading):
        return own
    doubled = (
        f"two machines use the certificate of {record.node} by turns. Remove the state folder of "
        f"the one that is not {record.node} and enrol it under its own name; then: "
        f"lattice admin revoke {record.node}, and enrol {record.node} anew"
    )
    return (*own, doubled)


def is_doubled(record: Presence, reading: PresenceReading) -> bool:
    """True if two machines used one certificate by turns within the last quarter of an hour."""
    as_of = reading.source.as_of
    return as_of is not None and as_of.timestamp() - record.doubled <= _DOUBLED_S


def unlinked(before: Presence | None, epoch: int, now: float) -> Presence | None:
    """The record without the link of this epoch; None if nothing changes."""
    if before is None or not before.linked or epoch != before.epoch:
        return None
    return replace(before, linked=False, since=now)


def judged(
    presence: Presence, link: Link | None, now: float, times: Times, *, sensitive: bool = False
) -> Presence | None:
    """The record that follows from the two keys and the time; None if it does not change.

    `link` is the current value of the link's key. One of an older epoch than the record's is no
    route.
    """
    if link is not None and link.epoch >= presence.epoch:
        return linked(presence, link, now)
    if presence.linked:
        return unlinked(presence, presence.epoch, now)
    condition = _condition(now - presence.since, times, sensitive=sensitive)
    # Without a link it only gets worse: a clock that runs behind must not improve a condition.
    if _ORDER[condition] <= _ORDER[presence.condition]:
        return None
    return replace(presence, condition=condition)


_ORDER = {condition: rank for rank, condition in enumerate(Condition)}


def _condition(gone_s: float, times: Times, *, sensitive: bool) -> Condition:
    if gone_s >= (times.sensitive_down_after_s if sensitive else times.down_after_s):
        return Condition.DOWN
    return Condition.DEGRADED if gone_s >= times.degraded_after_s else Condition.READY


class BadRecord(Exception):
    """The value under one of the keys is not valid."""


T = TypeVar("T", Link, Presence)


def written(record: Link | Presence) -> bytes:
    """The value of a key."""
    return msgspec.json.encode(record)


def read_link(node: str, value: bytes) -> Link:
    """Parse the value of `links/NODE`; raises `BadRecord`. Fields of later versions are ignored."""
    return _read(node, value, Link)


def read_presence(node: str, value: bytes) -> Presence:
    """Parse the value of `nodes/NODE`; raises `BadRecord`. Fields of later versions are ignored."""
    return _read(node, value, Presence)


def _read(node: str, value: bytes, kind: type[T]) -> T:
    try:
        record = msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"{node}: {error}") from None
    if record.node != node:
        raise BadRecord(f"{node}: names another node")
    if record.epoch < 1:
        raise BadRecord(f"{node}: has no epoch")
    return record


@dataclass(frozen=True, slots=True)
class PresenceReading:
    """Every agent ever seen, with the source and its age."""

    records: Mapping[str, Presence]
    links: Mapping[str, Link]
    source: Source


class Presences(Protocol):
    """Answers at any time which agents are linked."""

    def presences(self) -> PresenceReading:
        """The last known state, at once, with its age."""


_BY_CONDITION = {
    Condition.READY: NodeState.READY,
    Condition.DEGRADED: NodeState.DEGRADED,
    Condition.DOWN: NodeState.DOWN,
}


def with_agent(node: Node, reading: PresenceReading) -> Node:
    """The node with its agent's state combined with Slurm's.

    Slurm's state stays unless it is ready: a lost link must not hide what an operator or Slurm has
    decided. A cluster that never had an agent is left as it is.
    """
    if not reading.records:
        return node
    record = reading.records.get(node.name)
    if record is None:
        return replace(node, agent=NodeAgent(link=AgentLink.NEVER))
    link = reading.links.get(node.name)
    agent = NodeAgent(
        link=AgentLink.LINKED if record.linked else AgentLink.LOST,
        condition=record.condition,
        replica=link.replica if link and record.linked else "",
        since=datetime.fromtimestamp(record.since, UTC),
        version=record.agent_version,
        # The report of a lost agent is not the node's health now.
        health=record.health.health if record.linked else HealthState.UNKNOWN,
        health_words=record.health.words if record.linked else (),
        lacks=lacks_of(record, reading),
    )
    state = node.state
    if state is NodeState.READY:
        state = _BY_CONDITION[record.condition]
    return replace(node, state=state, agent=agent)
