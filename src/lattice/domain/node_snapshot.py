"""Ports to what nodes measure and find for a job now, without the metric store. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lattice.domain.alert import Alert, Progress
from lattice.domain.jobfacts import NodeFacts, RankStack
from lattice.domain.measured import JobSnapshot
from lattice.domain.run_events import NodeEvents

if TYPE_CHECKING:
    from lattice.domain.attempts import JobAttempt

SETTLED_S = 120.0
"""So long after its first snapshot a node's judge has found all current alerts again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """One snapshot of a job on one node. Times are the servers'."""

    node: str
    before: JobSnapshot | None
    """The previous one, for rates."""
    now: JobSnapshot
    firing: tuple[Alert, ...] = ()
    progress: Progress | None = None
    judged_since: float | None = None
    """The judge's first snapshot of this job; None: not reported."""

    def knows_of(self, since: float) -> bool:
        """True if an alert that began then, and is not in `firing`, has cleared.

        A restarted agent has lost its alerts and needs a while to find them again.
        """
        if self.judged_since is None:
            return self.before is not None
        return since >= self.judged_since or self.now.time >= self.judged_since + SETTLED_S


@dataclass(frozen=True, slots=True)
class NodeUnreachable:
    """Why a node reported nothing."""

    node: str
    reason: str
    since: float | None = None
    """Since when it does not answer, in seconds since 1970, if known."""


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    snapshot: NodeSnapshot

    @property
    def node(self) -> str:
        return self.snapshot.node


@dataclass(frozen=True, slots=True)
class NodeAlert:
    node: str
    alert: Alert


@dataclass(frozen=True, slots=True)
class NodeStale:
    """A node has stopped answering, so its last values are not current any more."""

    silence: NodeUnreachable

    @property
    def node(self) -> str:
        return self.silence.node


@dataclass(frozen=True, slots=True)
class NodeBack:
    node: str
    gone_s: float


@dataclass(frozen=True, slots=True)
class NodeOver:
    """The job's processes on the node have ended."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeftOut:
    """Older measurements of a node that were dropped for newer ones, as the follower was slow."""

    node: str
    count: int


NodeNews: TypeAlias = NodeMeasured | NodeAlert | NodeStale | NodeBack | NodeOver | NodeLeftOut


class NodeSnapshots(Protocol):
    """Asks the agents of a running attempt."""

    async def read(
        self, attempt: JobAttempt, *, only: Collection[str] | None = None, within_s: float = 3.0
    ) -> tuple[tuple[NodeSnapshot, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once, in parallel. Never raises.

        A node without a timely answer is unreachable.
        """

    async def events(
        self, attempt: JobAttempt, *, within_s: float = 3.0
    ) -> tuple[tuple[NodeEvents, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once for what happened, also soon after the end. Never raises.

        A node may have had several runs of the attempt, each with its events.
        """

    def follow(
        self, attempt: JobAttempt, *, alerts_only: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[NodeNews]]:
        """The news of all its nodes, as they come, until the context ends.

        There is one stream per node, shared by all followers on this server. With `alerts_only`
        the snapshots may have no readings.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """Everything that one node reports about a job at once; at least one of the two."""

    node: str
    facts: NodeFacts | None = None
    snapshot: NodeSnapshot | None = None
    lacking: str = ""
    """Why the other one is missing."""


class FactSource(Protocol):
    """Asks the nodes of a running attempt for their facts and their measurements."""

    async def check(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeAnswer, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once, in parallel. Never raises.

        A node without a timely answer is unreachable.
        """


class StackSource(Protocol):
    """Collects the stacks of a running attempt's ranks from its nodes."""

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node in parallel. Never raises.

        `subject` is the caller, for the nodes' records. The result is by node and rank. A node
        without a timely answer is unreachable.
        """
