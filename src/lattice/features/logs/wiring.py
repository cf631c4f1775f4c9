"""Wires the feature: the intake, the retention, and the service for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial

import msgspec
from grpc import aio

from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding, BinaryStream
from lattice.base.reload import Reload
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.attempts import JobAttempt
from lattice.domain.log_volume import LogLoss, LogVolume, LogVolumes
from lattice.domain.objects import ObjectStore
from lattice.features.logs import wire as own_wire
from lattice.features.logs.blocks import ZSTD, BlockWriter
from lattice.features.logs.model import LogBlock, LogGap, LogPage, LogQuery, LogRecord
from lattice.features.logs.operations import LIST_LOG_STREAMS, READ_LOGS, STREAM_LOGS
from lattice.features.logs.render.marks import gap_text
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.section import LogsSection
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.bounds import WorkBounds
from lattice.features.logs.service.intake import ChunkStores, LogIntake
from lattice.features.logs.service.job_seals import JobSealing
from lattice.features.logs.service.job_text import JobTextReader
from lattice.features.logs.service.key_retention import KeyRetention, RecordingSweep
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.features.logs.service.metadata import Summaries
from lattice.features.logs.service.records import BLOCKS, PACKED_BLOCKS
from lattice.features.logs.service.retention import Removals, Retention
from lattice.features.logs.service.seal import Seals
from lattice.features.logs.service.sealed_objects import ObjectsByAllocation, SealedObjects
from lattice.features.logs.service.search_process import SearchProcesses
from lattice.features.logs.service.volume import VolumeReader
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.convert import message_of
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1.logs_pb2_grpc import add_LogIntakeServicer_to_server

# The field of the message shows the kind of the record.
_TYPE = frozenset({"type"})


def record_message(record: LogRecord, cursor: str = "") -> pb.LogRecord:
    """The record and its cursor as a message."""
    if isinstance(record, LogBlock):
        return pb.LogRecord(block=message_of(record, pb.LogBlock, without=_TYPE), cursor=cursor)
    if isinstance(record, LogGap):
        return pb.LogRecord(gap=message_of(record, pb.LogGap, without=_TYPE), cursor=cursor)
    return pb.LogRecord(note=message_of(record, pb.LogNote, without=_TYPE), cursor=cursor)


def page_message(page: LogPage) -> pb.LogPage:
    """The page with all its records."""
    message = message_of(page, pb.LogPage, without=frozenset({"records"}))
    message.records.extend(map(record_message, page.records))
    return message


def bindings(service: LogService) -> tuple[AnyBinding, ...]:
    """The operations with their methods."""
    return (
        READ_LOGS.to(
            lambda actor, asked: service.page(actor, asked.id, asked), message=page_message
        ),
        STREAM_LOGS.to(
            lambda actor, asked: service.stream(actor, asked.id, asked),
            message=record_message,
            binary=BinaryStream(
                lambda actor, asked, accepted: service.stream(
                    actor, asked.id, asked, PACKED_BLOCKS if accepted.get(ZSTD) == "1" else BLOCKS
                ),
                lambda: BlockWriter(msgspec.json.encode),
            ),
        ),
        LIST_LOG_STREAMS.to(
            lambda actor, asked: service.streams(actor, asked.id, LogQuery(attempt=asked.attempt))
        ),
    )


def log_volumes(foundation: Foundation) -> LogVolumes | None:
    """Reads how much attempts wrote, for other features; None without an object store."""
    if foundation.objects is None:
        return None
    reader = VolumeReader(foundation.objects, foundation.clock)

    async def volume(attempt: JobAttempt) -> LogVolume:
        if foundation.sensitive.covers(attempt.allocation):
            return LogVolume(missing="it is not shown of sensitive work.")
        found, gaps = await reader.of(attempt)
        losses = tuple(
            LogLoss(
                node=each.node,
                time=each.gap.time_ms / 1000,
                text=gap_text(each.gap.cause, each.gap.lost_bytes, each.gap.at.offset),
            )
            for each in gaps
        )
        return replace(found, losses=losses)

    return volume


def wire(
    foundation: Foundation,
    section: LogsSection,
    seal_keys: Iterable[bytes] = (),
    recordings: RecordingSweep | None = None,
    texts: JobTextReader | None = None,
) -> Wiring:
    """The feature; without an object store there is nothing. `seal_keys` are earlier ones.

    `recordings` end with the retention of logs.
    """
    nodes, ordinary = foundation.nodes, foundation.objects
    if ordinary is None:
        return Wiring()
    clock, scheduler = foundation.clock, foundation.scheduler
    objects, chunk_stores, key_retention = _stores(foundation, ordinary, recordings)
    signer = nodes.signer if nodes else None
    seals = Seals(objects, signer, (*(signer.public_keys if signer else ()), *seal_keys))
    summaries = Summaries(objects, scheduler, clock, seals)
    retention = Retention(ordinary, scheduler, clock, section.rules, key_retention)
    loops = _keeping(foundation, summaries, retention)
    if nodes is None:
        return Wiring(loops=loops, reloads=(Reload("logs", partial(_reload, retention)),))
    finder = AttemptFinder(scheduler, clock)
    intake = LogIntake(
        finder,
        foundation.job_files,
        objects,
        nodes.signer,
        foundation.journal,
        clock,
        seals,
        summaries.note,
        section.job_quota_bytes,
        JobSealing(foundation.data_keys, foundation.sensitive),
        chunk_stores,
    )
    feeds = Feeds(nodes.streams, nodes.signer, clock, finder.of)
    search = SearchProcesses()
    bounds = WorkBounds.reporting(foundation.own_metrics.limit_refused, search)
    service = LogService(
        scheduler,
        foundation.output,
        Archive(objects, seals),
        feeds,
        clock,
        foundation.limits,
        Removals(objects),
        bounds,
    )
    (texts or JobTextReader()).service = service

    def reload(section: LogsSection) -> None:
        _reload(retention, section)
        intake.quota.most_bytes = section.job_quota_bytes

    def offer_agents(server: aio.Server) -> None:
        add_LogIntakeServicer_to_server(LogIntakeRpc(intake), server)

    close = partial(_close, bounds, search, service, feeds)
    return Wiring(
        bindings=bindings(service), offer=raw_logs(service), offer_agents=offer_agents,
        reloads=(Reload("logs", reload),), loops=loops, close=close,
    )  # fmt: skip


async def _close(
    bounds: WorkBounds, search: SearchProcesses, service: LogService, feeds: Feeds
) -> None:
    bounds.turns.close()
    search.close()
    await service.aclose()
    await feeds.aclose()


def _stores(
    foundation: Foundation, ordinary: ObjectStore, recordings: RecordingSweep | None
) -> tuple[ObjectStore, ChunkStores, KeyRetention | None]:
    """Where logs are read, where chunks are put, and what destroys keys."""
    bucket, keys = foundation.sensitive_objects, foundation.data_keys
    if bucket is None or keys is None:
        return ordinary, ChunkStores(ordinary, None), None
    sealed = SealedObjects(bucket, keys)
    retention = KeyRetention(keys, bucket, foundation.audit, foundation.clock, recordings)
    return ObjectsByAllocation(ordinary, sealed, keys), ChunkStores(ordinary, sealed), retention


def raw_logs(service: LogService) -> Callable[[GuardedRoutes[Actor], aio.Server], None]:
    """Adds the route and the rpc for the bytes of logs."""

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, service)
        server.add_generic_rpc_handlers((own_wire.RawLogRpc(service).handlers(),))

    return offer


def _reload(retention: Retention, section: LogsSection) -> None:
    retention.rules = section.rules


def _keeping(
    foundation: Foundation, summaries: Summaries, retention: Retention
) -> tuple[Loop, ...]:
    """The loops that write metadata of stored logs and apply the retention."""
    foundation.own_metrics.watch(lambda: _keeping_counts(summaries, retention))
    summing = Loop("log metadata", summaries.run, OnFailure.RESTART)
    removing = partial(retention.run, foundation.state)
    return (summing, Loop("log retention", removing, OnFailure.RESTART))


def _keeping_counts(summaries: Summaries, retention: Retention) -> dict[str, float]:
    counts: dict[str, float] = {"logs_metadata_written_total": summaries.written_total}
    for name, value in asdict(retention.counts).items():
        counts[f"logs_retention_{name}"] = value
    return counts
