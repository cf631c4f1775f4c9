"""Backups for administrators: made, listed, checked, and the restore planned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.base.errors import DataUnavailable, Unavailable, UsageError
from lattice.domain.backup import BackupManifest, BadBackup, StateRecord, is_backup_name
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.state import StateStore
from lattice.features.state.model import (
    Backup,
    BackupCheck,
    BackupList,
    BackupReference,
    RestorePlan,
)
from lattice.features.state.service.backup_store import BackupStore

_NOWHERE = "There is no place for backups, or no key to sign them with."
_NOWHERE_HINT = "Set backup.folder or the section objects, and the section identity."
_HINT = "Choose another one: `lattice admin backups` lists them."


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupTerms:
    """How the site wants its backups."""

    every_h: float = 0.0
    keep: int = 14
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMeans:
    """How this server's state can be restored."""

    order: Callable[[str], Awaitable[None]] | None
    """Orders the restore at the next start; None if the server must not do it by itself."""
    steps: Callable[[str], tuple[str, ...]]
    """What people do for the backup with this name."""


class BackupService:
    """Without a store of backups every call is refused with what to configure."""

    def __init__(
        self,
        state: StateStore,
        store: BackupStore | None,
        terms: BackupTerms,
        means: RestoreMeans,
        journal: ActJournal,
        *,
        kind: str,
    ) -> None:
        """`kind` is what holds the state: `etcd` or `single`."""
        self._state = state
        self._backups = store
        self._terms = terms
        self._means = means
        self._journal = journal
        self._kind = kind
        self._one = asyncio.Lock()

    async def create(self, actor: Actor) -> Backup:
        """Make one now, for an administrator."""
        made = await self.make(by=actor.sub)
        self._journal.acted("backup", made.name, actor.sub, f"revision {made.revision}")
        return backup_of(made)

    async def make(self, *, by: str) -> BackupManifest:
        """Make one of a single reading of all keys. `by` is empty for the schedule."""
        store = self._store()
        async with self._one:
            listing = await self._state.list("")
            entry = next((each for each in listing.entries if each.key == CLUSTER_KEY), None)
            if entry is None:
                raise DataUnavailable(
                    "There is no cluster's state to back up.", hint="Bootstrap the cluster first."
                )
            return await store.write(
                listing, read_cluster(entry), store=self._kind, by=by, version=self._terms.version
            )

    async def backups(self) -> BackupList:
        store = self._store()
        return BackupList(
            location=store.location,
            every_h=self._terms.every_h,
            keep=self._terms.keep,
            backups=await store.listed(),
        )

    async def prune(self) -> tuple[str, ...]:
        """Remove scheduled backups beyond those to keep."""
        return await self._store().prune(self._terms.keep)

    async def verify(self, asked: BackupReference) -> BackupCheck:
        """Read all of it; the first thing that is wrong is in the answer."""
        store = self._store()
        name = await named(store, asked.text)
        try:
            manifest = await store.manifest(name)
        except BadBackup as bad:
            return BackupCheck(name=name, sound=False, problem=str(bad))
        backup = backup_of(manifest)
        try:
            live = await self._cluster()
            check_cluster(manifest, live)
            await store.records(manifest)
        except BadBackup as bad:
            return BackupCheck(name=name, sound=False, problem=str(bad), backup=backup)
        return BackupCheck(name=name, sound=True, backup=backup)

    async def restore(self, actor: Actor, asked: BackupReference) -> RestorePlan:
        """Check it, then order the restore or name the steps. Changes no state."""
        store = self._store()
        name = await named(store, asked.text)
        live = await self._cluster()
        manifest, _ = await checked(store, name, live)
        if self._means.order is not None:
            await self._means.order(name)
        done = "ordered for the next start" if self._means.order else "only the steps were shown"
        self._journal.acted("restore", name, actor.sub, f"{name}: {done}")
        return RestorePlan(
            backup=backup_of(manifest),
            by_server=self._means.order is not None,
            steps=self._means.steps(name),
            lost=lost_since(manifest.taken),
        )

    async def _cluster(self) -> ClusterRecord | None:
        """The cluster that is there now; None if there is none, or the state is away."""
        try:
            entry = await self._state.get(CLUSTER_KEY)
        except Unavailable:
            return None
        return read_cluster(entry) if entry is not None else None

    def _store(self) -> BackupStore:
        if self._backups is None:
            raise DataUnavailable(_NOWHERE, hint=_NOWHERE_HINT)
        return self._backups


async def named(store: BackupStore, text: str) -> str:
    """The name of the backup that is meant; the newest one for an empty text.

    A path must lead to a backup of the configured place. Nothing else is read.
    """
    if not text:
        found = await store.listed()
        if not found:
            raise DataUnavailable(
                f"There is no backup in {store.location}.", hint="Make one: lattice admin backup."
            )
        return found[0].name
    folder, _, name = text.rstrip("/").rpartition("/")
    if not is_backup_name(name) or (folder and folder != store.location):
        raise UsageError(
            f"{text[:100]!a} is no backup of this server.",
            hint=f"Give the name of one in {store.location}: `lattice admin backups` lists them.",
        )
    return name


async def checked(
    store: BackupStore, name: str, live: ClusterRecord | None, *, older: bool = False
) -> tuple[BackupManifest, tuple[StateRecord, ...]]:
    """The backup and its records if it may be restored over the live cluster.

    With `older`, one from before an earlier restore is accepted. Raises `DataUnavailable`.
    """
    try:
        manifest = await store.manifest(name)
        check_cluster(manifest, live)
        records = await store.records(manifest)
        if not older:
            await check_epoch(store, manifest, live)
    except BadBackup as bad:
        raise DataUnavailable(f"The backup {name} can't be restored: {bad}.", hint=_HINT) from None
    return manifest, records


def check_cluster(manifest: BackupManifest, live: ClusterRecord | None) -> None:
    """Raise `BadBackup` for a backup of another cluster."""
    if live is not None and manifest.cluster != live.id:
        raise BadBackup(f"it is of cluster {manifest.cluster[:60]}, and this one is {live.id[:60]}")


async def check_epoch(
    store: BackupStore, manifest: BackupManifest, live: ClusterRecord | None
) -> None:
    """Raise `BadBackup` for a backup from before an earlier restore.

    Without a live state the newest backup that is trusted shows the epoch.
    """
    epoch = live.epoch if live is not None else 0
    for each in (await store.listed())[:3]:
        try:
            newest = await store.manifest(each.name)
        except BadBackup:
            continue
        if newest.cluster == manifest.cluster:
            epoch = max(epoch, newest.epoch)
    if manifest.epoch < epoch:
        raise BadBackup(
            f"it is of epoch {manifest.epoch}, from before a restore: the state is in epoch "
            f"{epoch} now (`lattice-server restore --older` takes it nevertheless)"
        )


def backup_of(manifest: BackupManifest) -> Backup:
    return Backup(
        name=manifest.name,
        taken=manifest.taken,
        by=manifest.by,
        cluster=manifest.cluster,
        epoch=manifest.epoch,
        revision=manifest.revision,
        records=manifest.records,
        size_bytes=manifest.size_bytes,
        version=manifest.version,
        store=manifest.store,
    )


def lost_since(taken: datetime) -> str:
    """What a restore takes back, for people."""
    return (
        f"What changed after {taken:%Y-%m-%d %H:%M:%S} UTC is lost. Revoke and lock again whom you "
        "revoked and locked since; enrolment tokens used since are good again until they expire."
    )
