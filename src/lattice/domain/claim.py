"""A claim: nodes that run the sensitive work of one person alone, and how it may change. Pure.

    claims/held/ID    a claim in force, with the step that it is in
    claims/past/ID    a claim that was released: what ran on it is still its owner's to read
    claims/fence      changed with every new claim

The invariants:

- **A node is in at most one claim.** A new claim expects the revision of the fence that was read
  before all claims. So of two that overlap, the second fails, and it changes nothing.
- **A reservation has a claim.** The record is there before Slurm's reservation is made, and until
  it is removed. The record's step names what is under way, so any server can finish it.

    nothing ─► claiming ─► claimed ─► releasing ─► past
                  └─ Slurm refuses ─► releasing ─► nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import msgspec

from lattice.domain.allocation import Allocation
from lattice.domain.attempts import attempts_of
from lattice.domain.node import Node, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.reservation import RESERVATION_PREFIX, Reservation

CLAIMS = "claims/"
HELD = "claims/held/"
PAST = "claims/past/"
FENCE = "claims/fence"
MOST_NODES = 512
"""In one claim; a site has few nodes for sensitive work."""
MOST_HELD = 200
MOST_PAST = 10_000
"""The oldest of them go. What ran on those can't be read any more."""
CLOCK_SLACK = timedelta(seconds=30)
"""How far the clock of slurmctld may differ from that of a server."""
_ID = re.compile(r"[0-9a-f]{12}")


class ClaimStep(StrEnum):
    """What happened to a claim last."""

    CLAIMING = "claiming"
    """It is recorded. Slurm may have its reservation or not."""
    CLAIMED = "claimed"
    """Slurm has its reservation."""
    RELEASING = "releasing"
    """Slurm may have its reservation or not, and is to have none."""


class BadClaimRecord(Exception):
    """The value under a key is no claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """One claim. Times are wall time in Unix seconds."""

    id: str
    user: str
    """Whose jobs run there."""
    sub: str
    tenant: str = ""
    nodes: tuple[str, ...]
    """In order."""
    reason: str = ""
    step: ClaimStep = ClaimStep.CLAIMING
    stepped: float
    """When it came to this step."""
    since: float
    until: float = 0.0
    """When its release began; 0 while it is held."""
    undone: str = ""
    """Why Slurm refused it; empty if it did not."""

    @property
    def reservation(self) -> Reservation:
        return Reservation(RESERVATION_PREFIX + self.id, self.user, self.nodes)

    @property
    def folded(self) -> str:
        """Its nodes in Slurm's notation."""
        return NodeSet(self.nodes).fold()

    def at(self, step: ClaimStep, now: float, *, undone: str = "") -> NodeClaim:
        """The claim in another step."""
        return replace(self, step=step, stepped=now, undone=undone or self.undone)

    def covers(self, nodes: NodeSet, started: datetime, ended: datetime | None) -> bool:
        """True if these nodes were in the claim all that time. None: it still runs."""
        if self.step is ClaimStep.CLAIMING or self.undone:
            return False
        if not nodes or not set(nodes) <= set(self.nodes):
            return False
        since, until = datetime.fromtimestamp(self.since, UTC), self._end
        if started < since - CLOCK_SLACK or (ended is not None and ended < since):
            return False
        if until is None:
            return True
        return ended is not None and started <= until and ended <= until + CLOCK_SLACK

    @property
    def _end(self) -> datetime | None:
        """From when on the nodes are no longer reserved; None while they are."""
        end = self.until or (self.stepped if self.step is ClaimStep.RELEASING else 0.0)
        return datetime.fromtimestamp(end, UTC) if end else None


@dataclass(frozen=True)
class ClaimSet:
    """The claims at one moment, held and past."""

    held: tuple[NodeClaim, ...] = ()
    past: tuple[NodeClaim, ...] = ()
    unreadable: frozenset[str] = field(default_factory=frozenset)
    """Ids of held claims that no server signed. They give no right and free no node."""

    def of_node(self, node: str) -> NodeClaim | None:
        """The claim that a node is in now."""
        return self._by_node.get(node)

    def state_of(self, node: Node) -> NodeState:
        """Claimed if it is ready and in a claim. What is wrong with a node is never hidden."""
        if node.state is not NodeState.READY or self.of_node(node.name) is None:
            return node.state
        return NodeState.CLAIMED

    def of_user(self, user: str) -> tuple[NodeClaim, ...]:
        """The claims with a reservation that this person holds, oldest first."""
        ready = (each for each in self.held if each.step is ClaimStep.CLAIMED)
        return tuple(
            sorted((each for each in ready if each.user == user), key=lambda each: each.since)
        )

    def overlapping(self, nodes: Iterable[str]) -> tuple[NodeClaim, ...]:
        """The claims that hold one of these nodes, by id."""
        found = {claim.id: claim for node in nodes if (claim := self.of_node(node))}
        return tuple(found[each] for each in sorted(found))

    def fault_of(self, allocation: Allocation) -> str:
        """Why this sensitive allocation is not served, or an empty text.

        Every run must have been on nodes that its owner had claimed, from its start to its end.
        """
        attempts = attempts_of(allocation)
        for each in attempts:
            if each.started is None:
                continue
            is_last = each is attempts[-1]
            nodes = each.nodes or (allocation.nodes if is_last else "")
            is_over = not is_last or allocation.state.finished or allocation.state.waiting
            ended = each.ended if is_over else None
            if is_over and ended is None:
                ended = each.started
            if not self._covers(allocation.user, nodes, each.started, ended):
                verb = "ran" if is_over else "runs"
                return f"it {verb} on {nodes or 'nodes'} that {allocation.user} had not claimed"
        return ""

    def _covers(self, user: str, nodes: str, started: datetime, ended: datetime | None) -> bool:
        try:
            names = NodeSet.parse(nodes)
        except ValueError:
            return False
        return any(each.covers(names, started, ended) for each in self._by_user.get(user, ()))

    @cached_property
    def _by_node(self) -> Mapping[str, NodeClaim]:
        return {node: claim for claim in self.held for node in claim.nodes}

    @cached_property
    def _by_user(self) -> Mapping[str, Sequence[NodeClaim]]:
        found: dict[str, list[NodeClaim]] = {}
        for each in (*self.held, *self.past):
            found.setdefault(each.user, []).append(each)
        return found


class Claims(Protocol):
    """The claims, as this replica last read them."""

    def claims(self) -> ClaimSet:
        """All of them. Raises `Unavailable` before the first reading."""


class NoClaims:
    """For a server that can't hold claims: no node is claimed."""

    def claims(self) -> ClaimSet:
        return ClaimSet()


def is_claim_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def claim_of(reservation: str) -> str:
    """The id of the claim that a reservation belongs to."""
    return reservation.removeprefix(RESERVATION_PREFIX)


def written_claim(claim: NodeClaim) -> bytes:
    """The value of its key."""
    return msgspec.json.encode(claim)


def read_claim(claim_id: str, value: bytes) -> NodeClaim:
    """Parse the value of a key. Raises `BadClaimRecord`. Fields of later versions are ignored."""
    try:
        claim = msgspec.json.decode(value, type=NodeClaim)
        names = NodeSet(claim.nodes)
    except (ValueError, RecursionError) as error:
        raise BadClaimRecord(f"claim {claim_id}: {error}") from None
    if claim.id != claim_id or not claim.user or not 0 < len(names) <= MOST_NODES:
        raise BadClaimRecord(f"claim {claim_id}: is not valid")
    return claim
