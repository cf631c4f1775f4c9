"""`BackupStore`: backups in an object store. Writing, reading, listing, removing.

The manifest is written last and removed first. So a backup with a manifest is complete, and what
was left by an interruption has none.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, timedelta

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.domain.backup import (
    FORMAT,
    LARGEST_MANIFEST_BYTES,
    ROOT,
    BackupManifest,
    BackupPart,
    BackupSigner,
    BadBackup,
    StateRecord,
    backup_name,
    check_records,
    is_backup_name,
    is_scheduled,
    manifest_key,
    packed,
    part_key,
    taken_at,
    unpacked,
)
from lattice.domain.cluster_record import ClusterRecord, read_cluster
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.state import Entry, Listing
from lattice.features.state.model import ListedBackup

_ABANDONED_AFTER = timedelta(days=1)
"""A backup without a manifest is removed then: another server may still write it before."""


class BackupStore:
    """The backups of one place."""

    def __init__(
        self, objects: ObjectStore, signer: BackupSigner, clock: Clock, *, location: str
    ) -> None:
        """`location` is the place for people."""
        self._objects = objects
        self._signer = signer
        self._clock = clock
        self.location = location

    async def write(
        self, listing: Listing, cluster: ClusterRecord, *, store: str, by: str, version: str
    ) -> BackupManifest:
        """Write the records and then the manifest. Raises `Unavailable`."""
        taken = self._clock.now().astimezone(UTC)
        name = backup_name(taken, "hand" if by else "scheduled", secrets.token_hex(4))
        parts: list[BackupPart] = []
        pieces = packed(listing.entries)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            parts.append(piece[0])
            await self._objects.put(part_key(name, len(parts)), piece[1])
        manifest = BackupManifest(
            format=FORMAT,
            name=name,
            cluster=cluster.id,
            epoch=cluster.epoch,
            taken=taken,
            revision=listing.revision,
            records=sum(each.records for each in parts),
            version=version,
            store=store,
            by=by,
            parts=tuple(parts),
        )
        await self._objects.put(manifest_key(name), self._signer.signed(manifest))
        return manifest

    async def listed(self) -> tuple[ListedBackup, ...]:
        """The complete backups, the newest first."""
        sizes, complete = await self._found()
        return tuple(
            ListedBackup(name=name, taken=taken_at(name), size_bytes=sizes[name])
            for name in sorted(complete, reverse=True)
        )

    async def manifest(self, name: str) -> BackupManifest:
        """The signed description of a backup. Raises `BadBackup`."""
        if not is_backup_name(name):
            raise BadBackup("that is no name of a backup")
        try:
            stored = await self._objects.read(manifest_key(name), 0, LARGEST_MANIFEST_BYTES + 1)
        except NoObject:
            raise BadBackup("it has no manifest: it is not complete, or gone") from None
        if len(stored) > LARGEST_MANIFEST_BYTES:
            raise BadBackup("its manifest is too large")
        return self._signer.opened(name, stored)

    async def records(self, manifest: BackupManifest) -> tuple[StateRecord, ...]:
        """All records, each part checked. Raises `BadBackup`."""
        found: list[StateRecord] = []
        async for part in self._parts(manifest):
            found += part
        cluster = check_records(manifest, found)
        try:
            record = read_cluster(Entry(cluster.key, cluster.value, 0, 0))
        except ConfigurationError as error:
            raise BadBackup(error.message) from None
        if (record.id, record.epoch) != (manifest.cluster, manifest.epoch):
            raise BadBackup("its records are of another cluster or epoch than its manifest")
        return tuple(found)

    async def prune(self, keep: int) -> tuple[str, ...]:
        """Remove scheduled backups but the newest ones, and abandoned parts. Returns the names."""
        sizes, complete = await self._found()
        scheduled = sorted(filter(is_scheduled, complete), reverse=True)
        latest = self._clock.now() - _ABANDONED_AFTER
        abandoned = [name for name in sizes if name not in complete and taken_at(name) < latest]
        gone = (*scheduled[keep:], *abandoned)
        for name in gone:
            await self._objects.delete(manifest_key(name))
            keys = [each.key async for each in self._objects.listing(f"{ROOT}/{name}/")]
            for key in keys:
                await self._objects.delete(key)
        return gone

    async def _found(self) -> tuple[dict[str, int], set[str]]:
        """Sizes by name, and the names with a manifest."""
        sizes: dict[str, int] = {}
        complete: set[str] = set()
        async for each in self._objects.listing(f"{ROOT}/"):
            # Whoever may write there can leave other objects beside the backups.
            name, _, rest = each.key.removeprefix(f"{ROOT}/").partition("/")
            if rest and is_backup_name(name):
                sizes[name] = sizes.get(name, 0) + each.size_bytes
                if rest == "manifest":
                    complete.add(name)
        return sizes, complete

    async def _parts(self, manifest: BackupManifest) -> AsyncIterator[tuple[StateRecord, ...]]:
        for number, part in enumerate(manifest.parts, 1):
            try:
                # A byte more than expected shows a part that is too long, and no more is read.
                body = await self._objects.read(
                    part_key(manifest.name, number), 0, part.size_bytes + 1
                )
            except NoObject:
                raise BadBackup(f"part {number} of {len(manifest.parts)} is missing") from None
            yield await asyncio.to_thread(unpacked, number, part, body)
