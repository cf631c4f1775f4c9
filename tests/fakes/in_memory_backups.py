"""The feature of the agreed state on fakes: backups in memory, signed with a key of the tests."""

from __future__ import annotations

from lattice.base.signatures import SigningKey
from lattice.domain.backup import BackupSigner
from lattice.features.state import wiring
from lattice.features.state.service.backup_store import BackupStore
from lattice.features.state.service.backups import BackupTerms, RestoreMeans
from lattice.features.state.service.quorum import StateKind
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from tests.fakes.in_memory_objects import InMemoryObjectStore

LOCATION = "memory/state-backups"


def in_memory_backups(base: Foundation) -> Wiring:
    """The wiring of a single server with a place for backups."""
    signer = BackupSigner(SigningKey.generate())
    store = BackupStore(InMemoryObjectStore(base.clock), signer, base.clock, location=LOCATION)
    means = RestoreMeans(order=None, steps=lambda name: (f"restore {name}",))
    return wiring.wire(base, StateKind(store="single"), store, BackupTerms(version="1"), means)
