"""The server's part of logs, put together: what takes chunks in, and what reads them for people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from lattice.access.finding import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputDoor
from lattice.adapters.pki.files import believed_keys
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.objects import ObjectStore
from lattice.domain.outputs import JobFiles
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore
from lattice.domain.stream import NodeStreams
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.bounds import WorkBounds
from lattice.features.logs.service.chunk_admission import NO_QUOTA
from lattice.features.logs.service.feeds import Feeds
from lattice.features.logs.service.intake import IntakeJournal, LogIntake
from lattice.features.logs.service.metadata import Summaries
from lattice.features.logs.service.naming import AttemptName, Naming
from lattice.features.logs.service.reading import LogReading
from lattice.features.logs.service.retention import Removals, Retention, RetentionRules
from lattice.features.logs.service.seal import Seals
from lattice.features.logs.service.search_process import SearchProcesses
from lattice.server.figures import Figures
from lattice.server.limits import Limits
from lattice.server.sharing import SharingParts


def log_seals(objects: ObjectStore, signer: GrantSigner | None, before: Iterable[Path]) -> Seals:
    """Signed with the key of grants; `before` holds the keys that sealed earlier."""
    believed = (*(signer.public_keys if signer else ()), *believed_keys(before))
    return Seals(objects, signer, believed)


def log_intake(  # noqa: PLR0913 - what it stands on
    scheduler: Scheduler,
    files: JobFiles,
    objects: ObjectStore,
    signer: GrantSigner,
    clock: Clock,
    journal: IntakeJournal,
    seals: Seals,
    on_last: Callable[[AttemptName], None] = lambda _: None,
    *,
    quota_bytes: int = NO_QUOTA,
) -> LogIntakeRpc:
    """For the agents' listener."""
    naming = Naming(scheduler, clock)
    intake = LogIntake(naming, files, objects, signer, journal, clock, seals, on_last, quota_bytes)
    return LogIntakeRpc(intake)


@asynccontextmanager
async def open_log_reading(
    scheduler: Scheduler,
    objects: ObjectStore,
    nodes: NodeStreams,
    signer: GrantSigner,
    clock: Clock,
    limits: Limits,
    sharing: SharingParts,
    seals: Seals,
) -> AsyncIterator[LogReading]:
    """For people, until the context ends."""
    feeds = Feeds(nodes, signer, clock, Naming(scheduler, clock).of)
    search = SearchProcesses()
    bounds = WorkBounds.reporting(limits.refused, search)
    try:
        yield LogReading(
            scheduler,
            OutputDoor(AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock),
            Archive(objects, seals),
            feeds,
            clock,
            limits,
            Removals(objects),
            bounds,
        )
    finally:
        bounds.turns.close()
        search.close()
        await feeds.aclose()


@asynccontextmanager
async def open_log_keeping(
    scheduler: Scheduler,
    objects: ObjectStore,
    state: StateStore,
    clock: Clock,
    rules: RetentionRules,
    figures: Figures,
    seals: Seals,
    supervisor: Supervisor,
) -> AsyncIterator[Summaries]:
    """What is done with stored logs when nobody looks: summed up, and removed in time."""
    summaries = Summaries(objects, scheduler, clock, seals)
    retention = Retention(objects, scheduler, clock, rules)
    figures.watch(lambda: _keeping_counts(summaries, retention))
    loops = [Loop("log metadata", summaries.run, OnFailure.RESTART)]
    if rules.is_set:
        loops.append(Loop("log retention", lambda: retention.run(state), OnFailure.RESTART))
    async with supervisor.running(*loops):
        yield summaries


def _keeping_counts(summaries: Summaries, retention: Retention) -> dict[str, float]:
    counts: dict[str, float] = {"logs_metadata_written_total": summaries.written_total}
    for name, value in asdict(retention.counts).items():
        counts[f"logs_retention_{name}"] = value
    return counts
