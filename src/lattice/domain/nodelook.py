"""Ports to what nodes measure of a job right now, without the metric store in between. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lattice.domain.alert import Alert, Progress
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import JobSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """One look at a job on one node. Times are the servers'."""

    node: str
    before: JobSnapshot | None
    """The one before, for rates."""
    now: JobSnapshot
    firing: tuple[Alert, ...] = ()
    progress: Progress | None = None


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

    async def black_box(
        self, attempt: JobAttempt, node: str, *, within_s: float = 5.0
    ) -> tuple[JobSnapshot, ...]:
        """The last minutes on one node, oldest first. Raises `Unavailable` and `NotFound`."""

    def follow(self, attempt: JobAttempt) -> AbstractAsyncContextManager[AsyncIterator[NodeNews]]:
        """What all its nodes tell, as it comes, until the context ends.

        One stream a node, shared by all who follow on this server.
        """
