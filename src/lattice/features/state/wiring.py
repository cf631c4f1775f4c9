"""Wires the feature: its services, and the loop that makes scheduled backups."""

from __future__ import annotations

from dataclasses import asdict

from lattice.base.errors import ConfigurationError
from lattice.base.supervisor import Loop, OnFailure
from lattice.features.state.operations import (
    CREATE_BACKUP,
    GET_QUORUM,
    LIST_BACKUPS,
    RESTORE_BACKUP,
    VERIFY_BACKUP,
    VERIFY_BACKUP_BY_POST,
)
from lattice.features.state.service.backup_store import BackupStore
from lattice.features.state.service.backups import BackupService, BackupTerms, RestoreMeans
from lattice.features.state.service.quorum import QuorumService, StateKind
from lattice.features.state.service.schedule import BackupSchedule
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(
    foundation: Foundation,
    kind: StateKind,
    store: BackupStore | None,
    terms: BackupTerms,
    means: RestoreMeans,
) -> Wiring:
    """Return the feature's part of the server. Raises `ConfigurationError`."""
    quorum = QuorumService(kind, foundation.state)
    backups = BackupService(
        foundation.state, store, terms, means, foundation.journal, kind=kind.store
    )
    return Wiring(
        bindings=(
            GET_QUORUM.to(lambda _actor, _asked: quorum.status()),
            LIST_BACKUPS.to(lambda _actor, _asked: backups.backups()),
            CREATE_BACKUP.to(lambda actor, _asked: backups.create(actor)),
            VERIFY_BACKUP.to(lambda _actor, asked: backups.verify(asked)),
            VERIFY_BACKUP_BY_POST.to(lambda _actor, asked: backups.verify(asked)),
            RESTORE_BACKUP.to(backups.restore),
        ),
        loops=_loops(foundation, store, terms, backups),
    )


def _loops(
    foundation: Foundation, store: BackupStore | None, terms: BackupTerms, backups: BackupService
) -> tuple[Loop, ...]:
    if not terms.every_h:
        return ()
    if store is None:
        raise ConfigurationError(
            "Backups are scheduled, and there is no place for them or no key to sign them with.",
            hint="Set backup.folder or the section objects, and the section identity.",
        )
    schedule = BackupSchedule(backups, foundation.state, foundation.clock, terms.every_h)
    foundation.own_metrics.watch(
        lambda: {f"backups_{name}": count for name, count in asdict(schedule.counts).items()}
    )
    return (Loop("backups", schedule.run, OnFailure.RESTART),)
