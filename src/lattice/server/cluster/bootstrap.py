"""The owner of the state: written once when a cluster begins, checked by every starting server.

A server never begins a cluster by accident. With an empty etcd or the wrong root it would otherwise
lose every claim and session.
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
    """The value under `cluster`."""

    id: str
    created: datetime
    format: int = FORMAT

    def encoded(self) -> bytes:
        """The stored form."""
        told = {"id": self.id, "created": self.created.isoformat(), "format": self.format}
        return json.dumps(told).encode()


async def bootstrap(store: StateStore, clock: Clock) -> ClusterRecord:
    """Begin a cluster's state; `ConfigurationError` if there is one already."""
    record = ClusterRecord(uuid.uuid4().hex, clock.now())
    try:
        done = await store.commit([Expect(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, record.encoded())])
    except Unavailable:
        # It may have happened: then the record is ours, or another's by now.
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
    """The cluster of this state; `ConfigurationError` if there is none or it is not readable."""
    entry = await store.get(CLUSTER_KEY)
    if entry is None:
        raise ConfigurationError(
            "There is no cluster's state yet.",
            hint="Begin it, once, with `lattice-server --config F --bootstrap`; "
            "if there was one, quorum.endpoints names the wrong etcd.",
        )
    return read_cluster(entry)


def read_cluster(entry: Entry) -> ClusterRecord:
    """Parse the record; `ConfigurationError` for one of a newer Lattice."""
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
