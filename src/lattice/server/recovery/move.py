"""The command `lattice-server move`: a `--single` site to the full form.

The records of the database go into etcd, with the identity of the cluster. The objects of the
folder go into the object store, and each is read back. Repeated after an interruption it does what
is left. The folder is not changed, but marked: a server refuses to start with it from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import open_etcd
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.sqlite.replacement import DATABASE
from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import ConfigurationError, DataUnavailable
from lattice.base.sizes import size_text
from lattice.domain.backup import StateRecord
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.state import StateStore
from lattice.features.state.service.state_import import import_state
from lattice.server.cluster.state import MOVED
from lattice.server.config.load import load_server_config
from lattice.server.config.sections import ServerConfig
from lattice.server.engines import open_objects
from lattice.server.recovery.folder_owner import become_owner


def move(arguments: Sequence[str]) -> int:
    """Move a site. Raises `LatticeError`; the folder then still works as before."""
    options = _parser().parse_args(arguments)
    config = load_server_config(options.config, os.environ)
    become_owner(options.source)
    _check_target(config, options.source)
    return asyncio.run(Moving(options.source, config, SystemClock()).run())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lattice-server move",
        description="Moves a site from --single to etcd and an object store, while no server runs. "
        "Run it again after an interruption.",
    )
    add = parser.add_argument
    add("--from", dest="source", type=Path, required=True, metavar="DIR", help="its folder")
    add("--config", type=Path, required=True, help="the new configuration, with quorum and objects")
    return parser


@dataclass(slots=True)
class MoveCounts:
    """What was done by this run."""

    records: int = 0
    objects: int = 0
    objects_bytes: int = 0
    equal: int = 0
    """Objects that were there already, with the same content."""


class Moving:
    """One move, from a folder to what a configuration names."""

    def __init__(self, source: Path, config: ServerConfig, clock: Clock) -> None:
        self._source = source
        self._config = config
        self._clock = clock

    async def run(self) -> int:
        """Objects first, then the records: a server can start only when both are there."""
        counts = MoveCounts()
        quorum = self._config.quorum
        tls = EtcdTls(quorum.ca, quorum.cert, quorum.key)
        async with (
            open_sqlite(self._source) as single,
            open_etcd(quorum.endpoints, tls, self._clock) as etcd,
        ):
            records, cluster = await _read(single)
            there = await _cluster_of(etcd)
            if there is not None and there.id != cluster.id:
                raise ConfigurationError(
                    f"etcd holds another cluster: {there.id}; the folder has {cluster.id}.",
                    hint="Nothing was changed. Name an etcd of its own in quorum.endpoints.",
                )
            objects = open_objects(self._config.objects, None)
            folder = self._source / "objects"
            if objects is not None and folder.is_dir():
                await copy_objects(
                    FolderObjectStore(folder), objects, counts, only_missing=there is not None
                )
            if there is None:
                counts.records = await import_state(etcd, records, cluster)
            self._mark(cluster)
        _print(
            f"Moved cluster {cluster.id}: {counts.records} records, {counts.objects} objects "
            f"({size_text(counts.objects_bytes)}); {counts.equal} objects were there already. "
            "All of it was read back."
        )
        _print(f"Start every server with the new configuration, without --single {self._source}.")
        return 0

    def _mark(self, cluster: ClusterRecord) -> None:
        moved = {
            "cluster": cluster.id,
            "at": self._clock.now().isoformat(),
            "to": list(self._config.quorum.endpoints),
        }
        (self._source / MOVED).write_text(json.dumps(moved) + "\n", encoding="utf-8")


async def copy_objects(
    source: ObjectStore, target: ObjectStore, counts: MoveCounts, *, only_missing: bool
) -> None:
    """Copy every object and compare its content. Raises `DataUnavailable` if one differs.

    With `only_missing` an object that exists stays: a server may have written it since.
    """
    async for each in source.listing(""):
        body = await source.read(each.key)
        there = await _read_object(target, each.key)
        if there == body:
            counts.equal += 1
            continue
        if there is not None and only_missing:
            continue
        await target.put(each.key, body)
        if await _read_object(target, each.key) != body:
            digest = hashlib.sha256(body).hexdigest()
            raise DataUnavailable(
                f"The object {each.key} reads back with another content than it was written with.",
                hint=f"Its SHA-256 is {digest}. Check the object store, then move again.",
            )
        counts.objects += 1
        counts.objects_bytes += len(body)


async def _read_object(store: ObjectStore, key: str) -> bytes | None:
    try:
        return await store.read(key)
    except NoObject:
        return None


async def _read(single: StateStore) -> tuple[tuple[StateRecord, ...], ClusterRecord]:
    listing = await single.list("")
    entry = next((each for each in listing.entries if each.key == CLUSTER_KEY), None)
    if entry is None:
        raise ConfigurationError(
            "The folder has no cluster's state.", hint="Name the folder of --single."
        )
    records = tuple(StateRecord(each.key, each.value) for each in listing.entries if not each.lease)
    return records, read_cluster(entry)


async def _cluster_of(store: StateStore) -> ClusterRecord | None:
    entry = await store.get(CLUSTER_KEY)
    return read_cluster(entry) if entry is not None else None


def _check_target(config: ServerConfig, source: Path) -> None:
    if not (source / DATABASE).exists():
        raise ConfigurationError(
            f"{source} has no database of a single server.", hint="Name the folder of --single."
        )
    if not config.quorum.endpoints:
        raise ConfigurationError(
            "The new configuration names no etcd.", hint="Set quorum.endpoints."
        )
    if config.objects.url is None and any((source / "objects").glob("[!.]*")):
        raise ConfigurationError(
            f"{source / 'objects'} has objects, and the new configuration has no object store.",
            hint="Set objects.url.",
        )
    identity = config.identity
    for key, name in (("ca_cert", "ca.crt"), ("ca_key", "ca.key"), ("grant_key", "grant.key")):
        old, new = source / name, getattr(identity, key)
        if not old.exists():
            continue
        if new is None or new.read_bytes() != old.read_bytes():
            raise ConfigurationError(
                f"identity.{key} is not the file of the single server, {old}.",
                hint=f"Agents trust that one: set identity.{key} to a copy of it on every server.",
            )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
