"""A backup in the place that a configuration names, signed with its key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lattice.base.clock import SystemClock
from lattice.domain.cluster_record import CLUSTER_KEY, read_cluster
from lattice.domain.state import Entry, Listing
from lattice.features.state.service.backup_store import BackupStore
from lattice.server.cluster.backups import open_backup_store
from lattice.server.config.load import load_server_config
from lattice.server.engines import open_objects


def store_of_backups(config_file: Path, single: Path | None = None) -> BackupStore:
    """The store of backups, opened as a server opens it."""
    config = load_server_config(config_file, os.environ)
    if single is not None:
        config = replace(config, single=single)
    store = open_backup_store(config, open_objects(config.objects, single), SystemClock())
    assert store is not None
    return store


async def back_up(
    config_file: Path, records: Mapping[str, bytes], single: Path | None = None
) -> str:
    """Store a backup of these records; returns its name."""
    entries = tuple(Entry(key, records[key], 1, 1) for key in sorted(records))
    cluster = read_cluster(Entry(CLUSTER_KEY, records[CLUSTER_KEY], 1, 1))
    made = await store_of_backups(config_file, single).write(
        Listing(entries, 7), cluster, store="single", by="olga", version="1"
    )
    return made.name
