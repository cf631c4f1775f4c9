"""Wires the feature: the writer, the archiver, the anchor, and the service for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from lattice.access.grants import GrantSigner
from lattice.base.operation import AnyBinding
from lattice.base.signatures import key_name
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.object_lock import LockReader
from lattice.domain.objects import ObjectStore
from lattice.features.audit.operations import EXPORT_AUDIT, QUERY_AUDIT, VERIFY_AUDIT
from lattice.features.audit.section import SYSLOG, AuditSection
from lattice.features.audit.service.allocation_runs import AllocationRuns
from lattice.features.audit.service.anchors import AnchorWriter, anchors_in
from lattice.features.audit.service.archive import Archiver, AuditArchive
from lattice.features.audit.service.audit_service import AuditService
from lattice.features.audit.service.entries import SignedEntries
from lattice.features.audit.service.log import AuditLog
from lattice.features.audit.service.reader import AuditReader
from lattice.foundation.foundation import Foundation
from lattice.foundation.recording_store import RecordingStore
from lattice.foundation.wiring import Wiring


def bindings(service: AuditService) -> tuple[AnyBinding, ...]:
    return (
        QUERY_AUDIT.to(service.query),
        VERIFY_AUDIT.to(lambda actor, asked: service.verify(actor, asked.since)),
        EXPORT_AUDIT.to(lambda actor, asked: service.export(actor, asked.cursor)),
    )


def entries(
    foundation: Foundation, signer: GrantSigner, objects: ObjectStore | None
) -> SignedEntries:
    """The port `AuditEntries`, for other features. `objects` is the archive."""
    archive = AuditArchive(objects) if objects is not None else None
    return SignedEntries(AuditReader(foundation.state, archive), signer.public_keys)


def _weakness(
    section: AuditSection, lock: LockReader | None
) -> Callable[[], Awaitable[str]] | None:
    if lock is None:
        return None

    async def weakness() -> str:
        return (await lock.read()).weakness(section.retention_days)

    return weakness


def wire(
    foundation: Foundation,
    signer: GrantSigner,
    log: AuditLog,
    section: AuditSection,
    objects: ObjectStore | None,
    lock: LockReader | None = None,
) -> Wiring:
    """Without `objects` nothing is archived. `lock` reads the lock of its own bucket."""
    archive = AuditArchive(objects) if objects is not None else None
    bucket = foundation.sensitive_objects
    recordings = RecordingStore(bucket) if bucket is not None else None
    reader = AuditReader(foundation.state, archive, recordings)

    def anchors(cluster: str) -> dict[int, bytes]:
        if section.anchor in {"", SYSLOG}:
            return {}
        return anchors_in(Path(section.anchor), cluster)

    service = AuditService(
        reader,
        log,
        foundation.scheduler,
        foundation.limits,
        foundation.clock,
        signer.sign_audit,
        frozenset(map(key_name, signer.public_keys)),
        anchors,
    )
    loops = [Loop("audit log", log.run, OnFailure.RESTART)]
    runs = AllocationRuns(
        foundation.signed_state, log, foundation.scheduler, foundation.views, foundation.clock
    )
    loops.append(Loop("audit allocations", runs.run, OnFailure.RESTART))
    archiver = None
    if archive is not None:
        chain, weakness = log.chain.another(), _weakness(section, lock)
        archiver = Archiver(foundation.state, archive, chain, weakness=weakness)
        loops.append(Loop("audit archive", archiver.run, OnFailure.RESTART))
    if section.anchor:
        anchor = AnchorWriter(log.chain, foundation.clock, section.anchor)
        loops.append(Loop("audit anchor", anchor.run, OnFailure.RESTART))
    foundation.own_metrics.watch(
        lambda: {
            "audit_entries_total": float(log.committed_total),
            "audit_refused_total": float(log.refused_total),
            "audit_lost_total": float(log.lost_total),
            "audit_rollbacks_total": float(log.chain.rollbacks),
            "audit_segments_total": float(archiver.segments_total if archiver else 0),
        }
    )
    foundation.own_metrics.show(lambda: {"audit_queued": float(log.queued)})
    return Wiring(bindings=bindings(service), loops=tuple(loops), close=log.close)
