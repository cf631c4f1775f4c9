"""The records of the audit log in the state store.

    audit/head           the newest entry, what is archived, and the trusted keys
    audit/block/FIRST    one batch: its entries and its seal

Every commit expects the revision of the head, so the chain can't fork.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lattice.base.signatures import key_name
from lattice.domain.audit import canonical
from lattice.domain.audit_chain import ChainPoint
from lattice.domain.state import Entry

HEAD = "audit/head"
BLOCKS = "audit/block/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """The value under `audit/head`."""

    cluster: str
    newest: ChainPoint
    archived: ChainPoint
    """The newest entry in the archive."""
    keys: tuple[bytes, ...]
    """Public keys that the chain trusts after its newest entry."""
    archived_keys: tuple[bytes, ...]
    """Those after the newest entry in the archive."""
    planned: int = 0
    """The last entry of the segment that is being archived; 0 if none is."""
    retained_bytes: int = 0
    """The size of all batches that are not archived."""

    def trusts(self, key: str) -> bool:
        return key in map(key_name, self.keys)

    def encoded(self) -> bytes:
        record = {
            "cluster": self.cluster,
            "newest": [self.newest.sequence, self.newest.link.hex()],
            "archived": [self.archived.sequence, self.archived.link.hex()],
            "keys": [each.hex() for each in self.keys],
            "archived_keys": [each.hex() for each in self.archived_keys],
            "planned": self.planned,
            "retained_bytes": self.retained_bytes,
        }
        return canonical(record).encode()


class UnreadableHead(Exception):
    """The record can't be parsed."""


def head_of(entry: Entry) -> AuditHead:
    """Raises `UnreadableHead`."""
    try:
        record = json.loads(entry.value)
        return AuditHead(
            cluster=str(record["cluster"]),
            newest=_point(record["newest"]),
            archived=_point(record["archived"]),
            keys=tuple(bytes.fromhex(each) for each in record["keys"]),
            archived_keys=tuple(bytes.fromhex(each) for each in record["archived_keys"]),
            planned=int(record["planned"]),
            retained_bytes=int(record["retained_bytes"]),
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableHead(str(problem)) from None


def block_key(first: int) -> str:
    return f"{BLOCKS}{first:020d}"


def _point(record: list[object]) -> ChainPoint:
    sequence, link = record
    return ChainPoint(int(str(sequence)), bytes.fromhex(str(link)))
