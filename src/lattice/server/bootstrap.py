"""Whose state this is: written once when a cluster begins, looked at by every server that starts.

A server never begins a cluster by accident: one pointed at an empty etcd, or at the wrong root,
would otherwise forget every claim and session there was.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import Entry, Expect, Put, StateStore

CLUSTER_KEY = "cluster"
FORMAT = 1
"""Of all keys together; a server refuses one that is newer than itself."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What stands under `cluster`."""

    id: str
    created: datetime
    format: int = FORMAT

    def encoded(self) -> bytes:
        """As it is stored."""
        told = {"id": self.id, "created": self.created.isoformat(), "format": self.format}
        return json.dumps(told).encode()


async def bootstrap(store: StateStore, clock: Clock) -> ClusterRecord:
    """Begin a cluster's state; `ConfigurationError` if there is one already."""
    record = ClusterRecord(uuid.uuid4().hex, clock.now())
    try:
        done = await store.commit([Expect(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, record.encoded())])
    except Unavailable:
        # It may have happened: then what stands there is ours, or somebody else's by now.
        entry = await store.get(CLUSTER_KEY)
        if entry is None:
            raise
        done = entry.revision if entry.value == record.encoded() else None
    if done is None:
        there = await find_cluster(store)
        raise ConfigurationError(
            f"The state is bootstrapped already: cluster {there.id}, since {there.created}.",
            hint="Start the server without --bootstrap.",
        )
    return record


async def find_cluster(store: StateStore) -> ClusterRecord:
    """The cluster whose state this is; `ConfigurationError` if it is nobody's or not for us."""
    entry = await store.get(CLUSTER_KEY)
    if entry is None:
        raise ConfigurationError(
            "There is no cluster's state yet.",
            hint="Begin it, once, with `lattice-server --config F --bootstrap`; "
            "if there was one, quorum.endpoints names the wrong etcd.",
        )
    return read_cluster(entry)


def read_cluster(entry: Entry) -> ClusterRecord:
    """The record as it was written; `ConfigurationError` for one of a newer Lattice."""
    try:
        told = json.loads(entry.value)
        record = ClusterRecord(
            str(told["id"]), datetime.fromisoformat(told["created"]), int(told["format"])
        )
    except (ValueError, TypeError, KeyError):
        raise ConfigurationError(
            "What stands under `cluster` in the state can't be read.",
            hint="Restore the state from a copy.",
        ) from None
    if record.format > FORMAT:
        raise ConfigurationError(
            f"The state has format {record.format}; this server knows up to {FORMAT}.",
            hint="Use the version of lattice-server that the other replicas run.",
        )
    return record
