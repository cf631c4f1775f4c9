"""Serves streams of the kind `facts`: everything that is known here of one job, at once.

Every source is asked at the same time and has the same time to answer. One that fails, or does not
answer, is an absence with its reason, and keeps nothing from the others. What is measured waits for
the facts a moment, and then goes ahead: on a slow node they may come too late.
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
    TaskFact,
    TransportFact,
)
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import Session
from lattice.features.diag.convert.facts import (
    BadTell,
    FactsAsked,
    facts_opening_of,
    facts_tell,
    facts_unknown_tell,
)
from lattice.features.diag.node.lives import Lives

_SLACK_S = 0.25
"""An answer has to reach the server, too."""
_TOGETHER_S = 0.8
"""Where the facts are there by then, all is one message on the wire."""
SILENT = "it did not answer in time"
_LONGEST_WORDS = 200
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found(Generic[_T]):
    """What one source tells, and why not more."""

    facts: tuple[_T, ...] = ()
    absences: tuple[FactAbsence, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkFound:
    """Links and transport come from one look."""

    links: tuple[LinkFact, ...] = ()
    transport: TransportFact | None = None
    absences: tuple[FactAbsence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where facts come from. Each may raise anything and take for ever."""

    network: Callable[[JobIdentity], Awaitable[NetworkFound]]
    mounts: Callable[[bytes], Awaitable[Found[MountFact]]]
    """With a question for the helper, written and granted."""
    tasks: Callable[[bytes], Awaitable[Found[TaskFact]]]
    gpus: Callable[[JobIdentity], Awaitable[Found[GpuFact]]]
    look: Callable[[int, float], Awaitable[bytes]]
    """What is told to who looks at the job of this number since that moment; empty: nothing."""
    clock_ahead_s: Callable[[], float | None]
    last_output: Callable[[JobIdentity], float | None]
    now: Callable[[], float]
    """By the servers' clock."""


class FactFeed:
    """A `Serve`."""

    def __init__(self, node: str, lives: Lives, sources: Sources) -> None:
        self._node = node
        self._lives = lives
        self._sources = sources

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = facts_opening_of(opening)
        except BadTell as fault:
            raise NotFound(str(fault)) from None
        identity = self._lives.find(asked.job_id, asked.started)
        if identity is not None:
            await self._told(session, identity, asked)
            return
        if asked.look:
            await session.send(b"")
        await session.send(facts_unknown_tell(), last=True)

    async def _told(self, session: Session, identity: JobIdentity, asked: FactsAsked) -> None:
        within_s = max(_SLACK_S, asked.within_s - _SLACK_S)
        gathering = asyncio.create_task(self._gathered(identity, asked, within_s), name="facts")
        lost: Sequence[FactAbsence] = ()
        try:
            if asked.look:
                look = self._sources.look(asked.job_id, asked.started)
                told = await _asked(look, within_s)
                await asyncio.wait([gathering], timeout=_TOGETHER_S)
                await session.send(told if isinstance(told, bytes) else b"")
                lost = [] if isinstance(told, bytes) else _absences(told, FactKind.FIGURES)
            facts = await gathering
        finally:
            gathering.cancel()
        facts = replace(facts, absences=(*facts.absences, *lost))
        await session.send(facts_tell(self._lives.began(identity), facts), last=True)

    async def _gathered(
        self, identity: JobIdentity, asked: FactsAsked, within_s: float
    ) -> NodeFacts:
        sources = self._sources
        network, mounts, tasks, gpus = await asyncio.gather(
            _asked(sources.network(identity), within_s),
            _asked(sources.mounts(asked.mounts), within_s),
            _asked(self._tasks(identity, asked), within_s),
            _asked(sources.gpus(identity), within_s),
        )
        lost = [
            *_absences(network, FactKind.LINKS, FactKind.TRANSPORT),
            *_absences(mounts, FactKind.MOUNTS),
            *_absences(tasks, FactKind.TASKS),
            *_absences(gpus, FactKind.GPUS),
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
            mounts=mounts.facts if isinstance(mounts, Found) else (),
            tasks=tasks.facts if isinstance(tasks, Found) else (),
            gpus=gpus.facts if isinstance(gpus, Found) else (),
            clock_ahead_s=ahead_s,
            last_output=output,
            absences=tuple(lost),
        )

    async def _tasks(self, identity: JobIdentity, asked: FactsAsked) -> Found[TaskFact]:
        # The helper would be held, too, and tell nothing but that it took too long.
        self._lives.check_readable(identity)
        return await self._sources.tasks(asked.tasks)


async def _asked(source: Awaitable[_T], within_s: float) -> _T | tuple[str, str]:
    """What it tells; or why it tells nothing, and the error's own words."""
    try:
        async with asyncio.timeout(within_s):
            return await source
    except TimeoutError:
        return SILENT, ""
    except LatticeError as error:
        return inert(error.message).rstrip(".")[:_LONGEST_WORDS], ""
    except Exception as error:  # noqa: BLE001 - one source's defect is not the others'
        return "it could not be read", inert(f"{type(error).__name__}: {error}")[:_LONGEST_WORDS]


def _absences(
    found: NetworkFound | Found[_T] | tuple[str, str], *kinds: FactKind
) -> Sequence[FactAbsence]:
    if isinstance(found, tuple):
        return [FactAbsence(kind, found[0], last_error=found[1]) for kind in kinds]
    return found.absences
