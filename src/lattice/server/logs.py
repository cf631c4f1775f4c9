"""The server's part of logs, put together: what takes chunks in, and what reads them for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lattice.access.finding import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.limits import CallerLimits
from lattice.base.clock import Clock
from lattice.domain.objects import ObjectStore
from lattice.domain.outputs import JobFiles
from lattice.domain.scheduler import Scheduler
from lattice.domain.stream import NodeStreams
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.feeds import Feeds
from lattice.features.logs.service.intake import IntakeJournal, LogIntake
from lattice.features.logs.service.naming import Naming
from lattice.features.logs.service.reading import LogReading


def log_intake(
    scheduler: Scheduler,
    files: JobFiles,
    objects: ObjectStore,
    signer: GrantSigner,
    clock: Clock,
    journal: IntakeJournal,
) -> LogIntakeRpc:
    """For the agents' listener."""
    return LogIntakeRpc(LogIntake(Naming(scheduler, clock), files, objects, signer, journal))


@asynccontextmanager
async def open_log_reading(
    scheduler: Scheduler,
    objects: ObjectStore,
    nodes: NodeStreams,
    signer: GrantSigner,
    clock: Clock,
    limits: CallerLimits,
) -> AsyncIterator[LogReading]:
    """For people, until the context ends."""
    feeds = Feeds(nodes, signer, clock)
    try:
        yield LogReading(
            scheduler, AllocationFinder(scheduler, clock), Archive(objects), feeds, clock, limits
        )
    finally:
        await feeds.aclose()
