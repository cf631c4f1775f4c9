"""The port `StateStore`: the little that all replicas must agree on, by key, with revisions.

Keys are short ASCII paths (`nodes/n1`), values a few hundred bytes. Every change has a revision;
revisions only rise. Reads are the newest agreed state, or `Unavailable`: never a guess. Large or
endless things (jobs, logs, metrics) have no place here.

There are no locks. Whoever wants to change what he read commits with the revision he read as a
fence (`Expect`), and whoever loses reads again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

LONGEST_KEY = 512
LARGEST_VALUE_BYTES = 64 * 1024
MOST_CHANGES = 100
"""In one commit; etcd itself refuses more than 128."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it stands."""

    key: str
    value: bytes
    revision: int
    """Of its last change: the fence for the next."""
    created: int
    """Of its first since it was last absent."""
    lease: int = 0
    """The lease it lives under; 0 if it stays until deleted."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every key under a prefix at one revision; a watch from `revision` misses nothing."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Expect:
    """The key still has this revision; 0: there is no such key."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key, under a lease if one is given."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; harmless if it is absent."""

    key: str


Change: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class Changed:
    """What a watch saw. `entry` is None where the key went, by a deletion or with its lease."""

    key: str
    entry: Entry | None
    revision: int


class Lease(Protocol):
    """A sign of life: what was put under it goes when its holder does."""

    @property
    def id(self) -> int:
        """For `Put.lease`."""

    @property
    def lost(self) -> bool:
        """True once it can no longer be relied on; never again False."""

    async def wait_lost(self) -> None:
        """Return when it is lost: expired, revoked, or unconfirmed for its whole time."""

    async def release(self) -> None:
        """Let it go now, and every key under it."""


class Compacted(Exception):
    """A watch asked for revisions that are no longer kept: list again."""


class StateStore(Protocol):
    """Agreed state. Every call raises `Unavailable` while the store can't agree."""

    async def get(self, key: str) -> Entry | None:
        """The key as it stands."""

    async def list(self, prefix: str) -> Listing:
        """Every key that begins with the prefix, by key."""

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Set it, whatever it was; the revision of the change."""

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """All changes at once if everything expected holds: their revision, or None if not.

        After `Unavailable` it may have happened or not: read, then decide.
        """

    async def lease(self, ttl_s: int) -> Lease:
        """A lease, kept alive in the background until released or lost."""

    def watch(
        self, prefix: str, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[Changed, ...]]]:
        """Every change after a revision, in order, none twice; changes of one commit together.

        Goes on by itself over lost connections and members. Raises `Compacted` where the store no
        longer has what was asked for.
        """
