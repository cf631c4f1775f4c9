"""The command `lattice-server restore`: a backup into an empty etcd, or into a single server.

No server may run. Everything about the backup is checked before anything is written.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import structlog

from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import EtcdStateStore, open_etcd
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.sqlite.replacement import replace_database, stored_value
from lattice.adapters.sqlite.store import SqliteStateStore
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import ConfigurationError, DataUnavailable, LatticeError, Unavailable
from lattice.domain.backup import ROOT, BackupManifest, StateRecord
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.state import Entry
from lattice.features.state.service.backup_store import BackupStore
from lattice.features.state.service.backups import checked, lost_since, named
from lattice.features.state.service.state_import import import_state
from lattice.server.cluster.agents import as_single_server
from lattice.server.cluster.backups import (
    ORDERED,
    backup_signer,
    etcd_steps,
    open_backup_store,
)
from lattice.server.config.load import load_server_config
from lattice.server.config.sections import ServerConfig
from lattice.server.engines import open_objects
from lattice.server.recovery.folder_owner import become_owner

_ORDER_LASTS_S = 86400.0


def restore(arguments: Sequence[str]) -> int:
    """Restore the state. Raises `LatticeError`; then no state was changed."""
    options = _parser().parse_args(arguments)
    config = load_server_config(options.config, os.environ)
    config = replace(config, file=options.config.absolute())
    if options.single is not None:
        become_owner(options.single)
        if not config.identity.is_set and not (options.single / "grant.key").exists():
            raise ConfigurationError(
                f"{options.single} has no keys of a cluster.",
                hint="Put ca.crt, ca.key and grant.key back first: a backup does not hold them.",
            )
        config = as_single_server(config, options.single)
    restoring = Restoring(config, SystemClock(), _print)
    return asyncio.run(restoring.run(options.backup, older=options.older, only=options.check))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lattice-server restore",
        description="Restores the agreed state from a backup, while no server runs. With etcd its "
        "part of etcd must be empty; with --single the old database is put aside.",
    )
    add = parser.add_argument
    add("backup", nargs="?", default="", help="its name, or its folder; the newest one if left out")
    add("--config", type=Path, default=Path("/etc/lattice/server.yaml"))
    add("--single", type=Path, metavar="DIR", help="the folder of a server without etcd")
    add("--older", action="store_true", help="also a backup from before an earlier restore")
    add("--check", action="store_true", help="only check the backup, and print the steps")
    return parser


class Restoring:
    """One restore with a configuration."""

    def __init__(self, config: ServerConfig, clock: Clock, report: Callable[[str], None]) -> None:
        """`report` takes lines for people."""
        self._config = config
        self._clock = clock
        self._report = report

    async def run(self, text: str, *, older: bool = False, only: bool = False) -> int:
        """Restore the backup that `text` means, and report it."""
        store, text = self._source(text)
        name = await named(store, text)
        live = await self._live()
        manifest, records = await checked(store, name, live, older=older)
        size = f"{manifest.records} records of revision {manifest.revision}"
        self._report(f"{name}: {size}, cluster {manifest.cluster}. It is sound.")
        if only:
            self._print_steps(name)
            return 0
        cluster = _next_epoch(records, live)
        if self._config.single is not None:
            await self._into_single(self._config.single, records, cluster)
        else:
            await self._into_etcd(manifest, records, cluster)
        self._report(f"Restored. The state is in epoch {cluster.epoch} now.")
        self._report(lost_since(manifest.taken))
        return 0

    def _source(self, text: str) -> tuple[BackupStore, str]:
        """The store, and the name or path of the backup in it."""
        signer = backup_signer(self._config)
        if signer is None:
            raise ConfigurationError(
                "There is no key to check the backup with.",
                hint="Set the section identity, with the keys of this cluster.",
            )
        folder, _, name = text.rstrip("/").rpartition("/")
        if folder and Path(folder).is_absolute() and Path(folder).name == ROOT:
            objects = FolderObjectStore(Path(folder).parent)
            return BackupStore(objects, signer, self._clock, location=folder), name
        store = open_backup_store(
            self._config, open_objects(self._config.objects, self._config.single), self._clock
        )
        if store is None:
            raise DataUnavailable(
                "No place of backups is configured.",
                hint=f"Set backup.folder or the section objects, or name the folder: …/{ROOT}/NAME",
            )
        return store, text

    async def _live(self) -> ClusterRecord | None:
        """The cluster that is there; None if there is none, or nobody can read it."""
        config = self._config
        if config.single is not None:
            value = await asyncio.to_thread(stored_value, config.single, CLUSTER_KEY)
            return read_cluster(Entry(CLUSTER_KEY, value, 0, 0)) if value is not None else None
        try:
            async with _etcd(config, self._clock) as etcd:
                entry = await etcd.get(CLUSTER_KEY)
        except Unavailable:
            return None
        return read_cluster(entry) if entry is not None else None

    async def _into_single(
        self,
        folder: Path,
        records: Sequence[StateRecord],
        cluster: ClusterRecord,
    ) -> None:
        async def fill(store: SqliteStateStore) -> None:
            await import_state(store, records, cluster)

        suffix = f"before-{self._clock.now():%Y%m%dT%H%M%S.%fZ}"
        before = await replace_database(folder, fill, suffix=suffix)
        (folder / ORDERED).unlink(missing_ok=True)
        if before is not None:
            self._report(f"The old database is {before}.")

    async def _into_etcd(
        self, manifest: BackupManifest, records: Sequence[StateRecord], cluster: ClusterRecord
    ) -> None:
        try:
            async with _etcd(self._config, self._clock) as etcd:
                await import_state(etcd, records, cluster)
        except (Unavailable, ConfigurationError):
            self._print_steps(manifest.name)
            raise

    def _print_steps(self, name: str) -> None:
        if self._config.single is None:
            self._report("Restoring takes these steps:")
            for number, step in enumerate(etcd_steps(self._config, name), 1):
                self._report(f"  {number}. " + step.replace("\n", "\n       "))


async def restore_if_ordered(
    config: ServerConfig, clock: Clock, log: structlog.stdlib.BoundLogger
) -> None:
    """Carry out what `lattice admin restore` ordered of a single server. Does not raise.

    A backup that fails its checks is not restored; the server starts with the state that it has.
    """
    if config.single is None:
        return
    order = config.single / ORDERED
    try:
        age_s = clock.now().timestamp() - order.stat().st_mtime
        name = order.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        log.warning("restore", error=f"{order} can't be read: {error}")
        return
    if age_s > _ORDER_LASTS_S:
        # Whoever ordered it does not expect it any more.
        order.replace(order.with_name(f"{ORDERED}.expired"))
        log.warning("restore not done", backup=name, reason="it was ordered more than a day ago")
        return
    try:
        await Restoring(config, clock, lambda line: log.info("restore", note=line)).run(name)
    except LatticeError as error:
        order.replace(order.with_name(f"{ORDERED}.failed"))
        log.warning("restore failed", backup=name, error=error.message, hint=error.hint)
        return
    log.warning("state restored", backup=name)


def _next_epoch(records: Sequence[StateRecord], live: ClusterRecord | None) -> ClusterRecord:
    value = next(each.value for each in records if each.key == CLUSTER_KEY)
    record = read_cluster(Entry(CLUSTER_KEY, value, 0, 0))
    return replace(record, epoch=max(record.epoch, live.epoch if live else 0) + 1)


def _etcd(config: ServerConfig, clock: Clock) -> AbstractAsyncContextManager[EtcdStateStore]:
    quorum = config.quorum
    return open_etcd(quorum.endpoints, EtcdTls(quorum.ca, quorum.cert, quorum.key), clock)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
