"""The port `StateStore`: the few data that all replicas must agree on, by key, with revisions.

Keys are short ASCII paths (`nodes/n1`), values a few hundred bytes. Every change has a revision;
revisions only rise. Reads return the newest agreed state, or raise `Unavailable`: never a guess.
Large or endless data (jobs, logs, metrics) does not belong here.

There are no locks. A writer commits with the revision that it read as a fence (`Expect`). If that
fails, it reads again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lattice.base.errors import Unavailable, UsageError
from lattice.domain.source import Source

LONGEST_KEY = 512
LARGEST_VALUE_BYTES = 64 * 1024
MOST_CHANGES = 100
"""In one commit, and as many expectations; etcd itself refuses more than 128."""
LARGEST_COMMIT_BYTES = 1024 * 1024
"""Keys and values together; etcd itself refuses more than 1.5 MiB."""
SHORTEST_LEASE_S = 2
LONGEST_LEASE_S = 24 * 3600

_NOT_IN_KEYS = re.compile(r"[^!-~]")


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its current value."""

    key: str
    value: bytes
    revision: int
    """Of its last change: the fence for the next."""
    created: int
    """The revision of its creation, since it was last absent."""
    lease: int = 0
    """The lease of the key; 0 if it stays until deleted."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every key under a prefix at one revision; a watch from `revision` misses nothing."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class NewerKeys:
    """The keys under a prefix that changed after a revision, and how many there are in all."""

    entries: tuple[Entry, ...]
    count: int
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
    """Remove a key; an absent key is no error."""

    key: str


Change: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class Changed:
    """A change from a watch. `entry` is None if the key was deleted or its lease ended."""

    key: str
    entry: Entry | None
    revision: int


class Lease(Protocol):
    """A lease: the store removes its keys when its holder stops renewing it."""

    @property
    def id(self) -> int:
        """For `Put.lease`."""

    @property
    def lost(self) -> bool:
        """True once it can't be relied on any more; never False again."""

    async def wait_lost(self) -> None:
        """Return when it is lost: expired, revoked, or unconfirmed for its whole time."""

    async def release(self) -> None:
        """End it now, and remove every key under it."""


class Compacted(Exception):
    """A watch asked for revisions that are no longer kept: list again."""


class LeaseGone(Unavailable):
    """A put under a lease failed because the lease has ended. Take another."""

    def __init__(self) -> None:
        super().__init__(
            "The lease this was to be written under has ended.",
            hint="Try again in a few seconds; the server takes a new lease by itself.",
        )


class StateStore(Protocol):
    """Agreed state. Every call raises `Unavailable` while the store can't agree.

    Values out of bounds raise `UsageError`, and a put under an ended lease raises `LeaseGone`.
    """

    async def get(self, key: str) -> Entry | None:
        """The key with its current value, or None."""

    async def list(self, prefix: str) -> Listing:
        """Every key that begins with the prefix, sorted by key."""

    async def newer(self, prefix: str, after: int) -> NewerKeys:
        """Those of them that changed after a revision. Deleted ones show only in the count."""

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Set it unconditionally; returns the revision of the change.

        After `Unavailable` it may have happened or not.
        """

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """Make all changes at once if all expectations hold: their revision, or None if not.

        No key may be changed twice. If only absent keys are deleted, there is no new revision, and
        the newest one is returned. After `Unavailable` it may have happened or not: read, then
        decide.
        """

    async def lease(self, ttl_s: int) -> Lease:
        """A lease, renewed in the background until released or lost."""

    def watch(
        self, prefix: str, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[Changed, ...]]]:
        """Every change after a revision, in order, none twice; one tuple is one revision.

        It survives lost connections and members. Raises `Compacted` if the store no longer has the
        revisions.
        """


class ChangeReader(Protocol):
    """The changes of a view, for code that reads them when it wants to."""

    def take(self) -> tuple[Changed, ...]:
        """The newest change of each key since the last call; the first call has every entry."""


class StateView(Protocol):
    """A cached copy of a prefix, for readers. It updates itself.

    `source` reports when it is not current. Never decide on it alone: a writer fences with the
    revision that it saw here.
    """

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every key as last seen, a snapshot. Raises `Unavailable` before the first reading.

        A snapshot is a copy of all keys. For one key use `get`, for changes `reader`.
        """

    def get(self, key: str) -> Entry | None:
        """One key as last seen, or None. Raises `Unavailable` before the first reading."""

    @property
    def source(self) -> Source:
        """Whether that is current, and if not as of when and why. Never raises."""

    async def wait_first(self) -> None:
        """Return after the first reading, even if there are no keys."""

    async def refresh(self) -> None:
        """Read all of it now. Raises `Unavailable`, and keeps the last reading."""

    def reader(self) -> ChangeReader:
        """A reader of the changes, from the current entries on."""

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[tuple[Changed, ...]]]:
        """First every current entry, then the changes, for code that acts on them.

        A slow reader gets only the newest state of each key, so the buffer is bounded.
        """


def check_key(key: str) -> None:
    """Raise `UsageError` for an invalid key."""
    if not key:
        raise UsageError("A key of the state can't be empty.", hint="Give it a name.")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Raise `UsageError` for a prefix that no key can have; the empty prefix is every key."""
    if len(prefix) > LONGEST_KEY:
        raise UsageError(
            f"A key of {len(prefix)} characters is too long for the state: {prefix[:40]}…",
            hint=f"At most {LONGEST_KEY} characters.",
        )
    if _NOT_IN_KEYS.search(prefix):
        raise UsageError(
            f"{prefix[:60]!a} can't be a key of the state.",
            hint="Keys are printable ASCII without spaces.",
        )


def check_value(key: str, value: bytes) -> None:
    """Raise `UsageError` for a value that is too large."""
    if len(value) > LARGEST_VALUE_BYTES:
        raise UsageError(
            f"{len(value)} bytes are too many for the value of {key}.",
            hint=f"At most {LARGEST_VALUE_BYTES} bytes; large things belong in the object store.",
        )


def check_lease(ttl_s: int) -> None:
    """Raise `UsageError` for a lease that is too short or too long."""
    if not SHORTEST_LEASE_S <= ttl_s <= LONGEST_LEASE_S:
        raise UsageError(
            f"A lease can't last {ttl_s} s.",
            hint=f"From {SHORTEST_LEASE_S} s to {LONGEST_LEASE_S} s.",
        )


def check_commit(expect: Sequence[Expect], changes: Sequence[Change]) -> None:
    """Raise `UsageError` for a commit that no store would accept."""
    if not changes or max(len(changes), len(expect)) > MOST_CHANGES:
        raise UsageError(
            f"A commit of {len(changes)} changes and {len(expect)} expectations can't be made.",
            hint=f"From 1 to {MOST_CHANGES} changes, and as many expectations.",
        )
    for change in changes:
        check_key(change.key)
        if isinstance(change, Put):
            check_value(change.key, change.value)
    for each in expect:
        check_key(each.key)
    _check_once(change.key for change in changes)
    size_bytes = sum(
        len(each.key) + (len(each.value) if isinstance(each, Put) else 0) for each in changes
    )
    if size_bytes > LARGEST_COMMIT_BYTES:
        raise UsageError(
            f"A commit of {size_bytes} bytes is too large.",
            hint=f"At most {LARGEST_COMMIT_BYTES} bytes of keys and values.",
        )


def _check_once(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise UsageError(
                f"A commit changes {key} twice.", hint="Keep the last of these changes only."
            )
        seen.add(key)
