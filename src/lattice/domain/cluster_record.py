"""The record of the cluster in the agreed state: which cluster it is, and its epoch. Pure.

It is written once when a cluster begins. A restore raises the epoch, so that a backup from before
the restore can be recognized.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from lattice.base.errors import ConfigurationError
from lattice.domain.state import Entry

CLUSTER_KEY = "cluster"
FORMAT = 1
"""Of all keys together; a server refuses one that is newer than itself."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The value under `cluster`."""

    id: str
    created: datetime
    format: int = FORMAT
    epoch: int = 0
    """How often the state was restored from a backup."""

    def encoded(self) -> bytes:
        record: dict[str, object] = {
            "id": self.id,
            "created": self.created.isoformat(),
            "format": self.format,
        }
        if self.epoch:
            record["epoch"] = self.epoch
        return json.dumps(record).encode()


def read_cluster(entry: Entry) -> ClusterRecord:
    """Parse the record; `ConfigurationError` for one of a newer Lattice."""
    try:
        stored = json.loads(entry.value)
        record = ClusterRecord(
            str(stored["id"]),
            datetime.fromisoformat(stored["created"]),
            int(stored["format"]),
            int(stored.get("epoch", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(
            "What stands under `cluster` in the state can't be read.",
            hint="Restore the state from a backup.",
        ) from None
    if record.format > FORMAT:
        raise ConfigurationError(
            f"The state has format {record.format}; this server knows up to {FORMAT}.",
            hint="Use the version of lattice-server that the other replicas run.",
        )
    return record
