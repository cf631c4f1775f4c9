"""Ports to what nodes measure of a job right now, without the metric store in between. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lattice.domain.alert import Alert, Progress
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import JobSnapshot

SETTLED_S = 120.0
"""So long after its first look a node's judge knows again what stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """One look at a job on one node. Times are the servers'."""

    node: str
    before: JobSnapshot | None
    """The one before, for rates."""
    now: JobSnapshot
    firing: tuple[Alert, ...] = ()
    progress: Progress | None = None
    judged_since: float | None = None
    """Since when who judges there has looked at this job; None: it does not say."""

    def knows_of(self, since: float) -> bool:
        """Whether what has stood since then, and is not in `firing`, has passed.

        An agent that was begun anew has forgotten what stood, and needs a while to find it again.
        """
        if self.judged_since is None:
            return self.before is not None
        return since >= self.judged_since or self.now.time >= self.judged_since + SETTLED_S


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """Why a node told nothing."""

    node: str
    reason: str
    since: float | None = None
    """Since when it does not answer, in seconds since 1970, where that is known."""


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    """A node has measured anew."""

    sight: NodeSight


@dataclass(frozen=True, slots=True)
class NodeAlert:
    """A node has judged anew."""

    node: str
    alert: Alert


@dataclass(frozen=True, slots=True)
class NodeStale:
    """A node has stopped answering; what was told of it is not current any more."""

    silence: NodeSilence


@dataclass(frozen=True, slots=True)
class NodeBack:
    """It answers again."""

    node: str
    gone_s: float


@dataclass(frozen=True, slots=True)
class NodeOver:
    """The job's processes are gone from the node."""

    node: str


NodeNews: TypeAlias = NodeMeasured | NodeAlert | NodeStale | NodeBack | NodeOver


class NodeLooks(Protocol):
    """Asks the agents of a running attempt."""

    async def look(
        self, attempt: JobAttempt, *, only: Collection[str] | None = None, within_s: float = 3.0
    ) -> tuple[tuple[NodeSight, ...], tuple[NodeSilence, ...]]:
        """Every node once, in parallel; who has not answered in time is a silence. Never raises."""

    def follow(self, attempt: JobAttempt) -> AbstractAsyncContextManager[AsyncIterator[NodeNews]]:
        """What all its nodes tell, as it comes, until the context ends.

        One stream a node, shared by all who follow on this server.
        """
