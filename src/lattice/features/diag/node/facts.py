"""Serves streams of the kind `facts`: all facts about one job at once.

All sources are queried in parallel with the same timeout. A source that fails or is late becomes an
absence with its reason, and does not affect the others. The snapshot waits a moment for the facts
and is then sent first: on a slow node the facts may be too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lattice.base.errors import LatticeError, NotFound
from lattice.base.text import inert
from lattice.domain.jobfacts import (
    FactAbsence,
    FactKind,
    GpuFact,
    LinkFact,
    MountFact,
    NodeFacts,
    PeerFact,
    TaskFact,
    TransportFact,
)
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import Session
from lattice.features.diag.convert import (
    FACTS_UNKNOWN,
    BadFacts,
    FactsAsked,
    facts_message,
    facts_opening_of,
)
from lattice.features.diag.node.job_runs import JobRuns

_SLACK_S = 0.25
"""Reserved for sending the answer to the server."""
_TOGETHER_S = 0.8
"""If the facts arrive within this time, all goes out together."""
SILENT = "it did not answer in time"
_LONGEST_TEXT = 200
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FoundFacts(Generic[_T]):
    """The facts of one source, and why others are missing."""

    facts: tuple[_T, ...] = ()
    absences: tuple[FactAbsence, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkFound:
    """Links and transport come from one reading."""

    links: tuple[LinkFact, ...] = ()
    transport: TransportFact | None = None
    absences: tuple[FactAbsence, ...] = ()


@dataclass(frozen=True, slots=True)
class PeersFound:
    """Traffic by address, and the addresses of this node."""

    peers: tuple[PeerFact, ...] = ()
    addresses: tuple[str, ...] = ()
    absences: tuple[FactAbsence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSources:
    """The sources of facts. Each may raise anything and take any time."""

    network: Callable[[JobIdentity], Awaitable[NetworkFound]]
    mounts: Callable[[bytes], Awaitable[FoundFacts[MountFact]]]
    """With a signed request for the helper."""
    tasks: Callable[[bytes], Awaitable[FoundFacts[TaskFact]]]
    gpus: Callable[[JobIdentity], Awaitable[FoundFacts[GpuFact]]]
    peers: Callable[[JobIdentity], Awaitable[PeersFound]]
    snapshot: Callable[[int, float], Awaitable[bytes]]
    """Returns the snapshot of this job number since that start; empty without one."""
    clock_ahead_s: Callable[[], float | None]
    last_output: Callable[[JobIdentity], float | None]
    now: Callable[[], float]
    """By the servers' clock."""


class FactFeed:
    """Implements `Serve`."""

    def __init__(self, node: str, runs: JobRuns, sources: FactSources) -> None:
        self._node = node
        self._runs = runs
        self._sources = sources

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = facts_opening_of(opening)
        except BadFacts as fault:
            raise NotFound(str(fault)) from None
        identity = self._runs.find(asked.job_id, asked.started)
        if identity is not None:
            await self._send_facts(session, identity, asked)
            return
        if asked.look:
            await session.send(b"")
        await session.send(FACTS_UNKNOWN, last=True)

    async def _send_facts(self, session: Session, identity: JobIdentity, asked: FactsAsked) -> None:
        within_s = max(_SLACK_S, asked.within_s - _SLACK_S)
        gathering = asyncio.create_task(self._gathered(identity, asked, within_s), name="facts")
        lost: Sequence[FactAbsence] = ()
        try:
            if asked.look:
                reading = self._sources.snapshot(asked.job_id, asked.started)
                snapshot = await _asked(reading, within_s)
                await asyncio.wait([gathering], timeout=_TOGETHER_S)
                await session.send(snapshot if isinstance(snapshot, bytes) else b"")
                lost = [] if isinstance(snapshot, bytes) else _absences(snapshot, FactKind.FIGURES)
            facts = await gathering
        finally:
            gathering.cancel()
        facts = replace(facts, absences=(*facts.absences, *lost))
        await session.send(facts_message(self._runs.began(identity), facts), last=True)

    async def _gathered(
        self, identity: JobIdentity, asked: FactsAsked, within_s: float
    ) -> NodeFacts:
        sources = self._sources
        network, mounts, tasks, gpus, peers = await asyncio.gather(
            _asked(sources.network(identity), within_s),
            _asked(sources.mounts(asked.mounts), within_s),
            _asked(self._tasks(identity, asked), within_s),
            _asked(sources.gpus(identity), within_s),
            _asked(sources.peers(identity), within_s),
        )
        lost = [
            *_absences(network, FactKind.LINKS, FactKind.TRANSPORT),
            *_absences(mounts, FactKind.MOUNTS),
            *_absences(tasks, FactKind.TASKS),
            *_absences(gpus, FactKind.GPUS),
            *_absences(peers, FactKind.PEERS),
        ]
        ahead_s, output = sources.clock_ahead_s(), sources.last_output(identity)
        if ahead_s is None:
            lost.append(FactAbsence(FactKind.CLOCK, "the link has not measured it yet"))
        if output is None:
            lost.append(FactAbsence(FactKind.OUTPUT, "no output was seen since it is followed"))
        return NodeFacts(
            node=self._node,
            time=sources.now(),
            links=network.links if isinstance(network, NetworkFound) else (),
            transport=network.transport if isinstance(network, NetworkFound) else None,
            mounts=mounts.facts if isinstance(mounts, FoundFacts) else (),
            tasks=tasks.facts if isinstance(tasks, FoundFacts) else (),
            gpus=gpus.facts if isinstance(gpus, FoundFacts) else (),
            peers=peers.peers if isinstance(peers, PeersFound) else (),
            addresses=peers.addresses if isinstance(peers, PeersFound) else (),
            clock_ahead_s=ahead_s,
            last_output=output,
            absences=tuple(lost),
        )

    async def _tasks(self, identity: JobIdentity, asked: FactsAsked) -> FoundFacts[TaskFact]:
        # The helper would block too, and only report a timeout.
        self._runs.check_readable(identity)
        return await self._sources.tasks(asked.tasks)


async def _asked(source: Awaitable[_T], within_s: float) -> _T | tuple[str, str]:
    """Return the source's answer, or a reason and the error's text."""
    try:
        async with asyncio.timeout(within_s):
            return await source
    except TimeoutError:
        return SILENT, ""
    except LatticeError as error:
        return inert(error.message).rstrip(".")[:_LONGEST_TEXT], ""
    except Exception as error:  # noqa: BLE001 - one source's defect is not the others'
        return "it could not be read", inert(f"{type(error).__name__}: {error}")[:_LONGEST_TEXT]


def _absences(
    found: NetworkFound | FoundFacts[_T] | PeersFound | tuple[str, str], *kinds: FactKind
) -> Sequence[FactAbsence]:
    if isinstance(found, tuple):
        return [FactAbsence(kind, found[0], last_error=found[1]) for kind in kinds]
    return found.absences
