"""A state with records, and a place of backups, in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from lattice.access.actor import Actor, Role
from lattice.base.signatures import SigningKey
from lattice.domain.backup import BackupManifest, BackupSigner, manifest_key
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord
from lattice.features.state.service.backup_store import BackupStore
from lattice.features.state.service.backups import BackupService, BackupTerms, RestoreMeans
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

ADMIN = Actor(sub="olga", role=Role.SYSTEM_ADMIN)
CLUSTER = ClusterRecord("c0ffee", datetime(2026, 1, 1, tzinfo=UTC))
LOCATION = "/backup/state-backups"


class SilentJournal:
    """Keeps what was done."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def acted(self, act: str, target: str, sub: str, detail: str) -> None:
        self.acts.append(f"{act} {target} {sub} {detail}")


class StateSite:
    """One server with a state and a place of backups."""

    def __init__(self, cluster: ClusterRecord = CLUSTER, key: SigningKey | None = None) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.objects = InMemoryObjectStore(self.clock)
        self.key = key or SigningKey.generate()
        self.signer = BackupSigner(self.key)
        self.store = BackupStore(self.objects, self.signer, self.clock, location=LOCATION)
        self.ordered: list[str] = []
        self.journal = SilentJournal()
        self.service = self.make_service()
        self.cluster = cluster

    def make_service(self, *, keep: int = 14, by_server: bool = True) -> BackupService:
        async def order(name: str) -> None:
            self.ordered.append(name)

        means = RestoreMeans(
            order=order if by_server else None, steps=lambda name: (f"restore {name}",)
        )
        terms = BackupTerms(keep=keep, version="9.9")
        return BackupService(self.state, self.store, terms, means, self.journal, kind="single")

    async def fill(self, records: int = 3) -> None:
        """A cluster with records, and one key under a lease."""
        await self.state.put(CLUSTER_KEY, self.cluster.encoded())
        for number in range(records):
            await self.state.put(f"records/{number:06}", b"\x00value %d" % number)
        lease = await self.state.lease(60)
        await self.state.put("presence/r1", b"here", lease.id)

    async def set_epoch(self, epoch: int) -> None:
        self.cluster = replace(self.cluster, epoch=epoch)
        await self.state.put(CLUSTER_KEY, self.cluster.encoded())

    async def craft(self, manifest: BackupManifest, **changes: object) -> None:
        """Exchange a manifest by one with other values and a valid signature."""
        crafted = msgspec.structs.replace(manifest, **changes)
        await self.objects.put(manifest_key(manifest.name), self.signer.signed(crafted))

    async def flip(self, key: str, at: int) -> None:
        """Change one bit of an object."""
        body = bytearray(await self.objects.read(key))
        body[at] ^= 1
        await self.objects.put(key, bytes(body))
