"""Signs the records of the state store: the port `StateStore` over another one.

    value  = `LS1`, key name, signature (base64), newline; then the record as given.
    signed = domain, the record's key, newline, the record.

Without a key of the servers, a writer to etcd can create no trusted record and can't move one to
another key. An untrusted record reads as an empty value, which every reader treats as unreadable.
It gives no rights, and it is swept like any other.

Some records only take rights away, such as a revocation. Those are also obeyed without a signature.
Ignoring them could only help an attacker, and records from before signatures must stay valid.

Not covered: a record that is deleted, or restored to an earlier value under the same key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from lattice.base.signatures import BadSignature, KeyRing, SigningKey
from lattice.domain.state import (
    Change,
    Changed,
    Entry,
    Expect,
    Lease,
    Listing,
    NewerKeys,
    Put,
    StateStore,
)

_log = logging.getLogger("lattice.state")

_DOMAIN = b"lattice state record 1\n"
_MARK = b"LS1 "
_LONGEST_PREFIX = 128
_MOST_REMEMBERED = 65_536
_MANY = 64
"""More records are opened in a thread: also what was checked before is hashed again."""
UNBELIEVED = b""


class RecordSigner:
    """Signs with one key, and also trusts others while keys are replaced."""

    def __init__(self, key: SigningKey, also_believed: Iterable[bytes] = ()) -> None:
        self._key = key
        self._ring = KeyRing((key.public, *also_believed))
        self._checked: OrderedDict[bytes, bool] = OrderedDict()

    def sign(self, key: str, record: bytes) -> bytes:
        """The value to store under this key."""
        signature = base64.b64encode(self._key.sign(_to_sign(key, record)))
        return b"%s%s %s\n%s" % (_MARK, self._key.name.encode(), signature, record)

    def open(self, key: str, value: bytes) -> bytes | None:
        """The record under a key; None if no server signed it for this key."""
        head, newline, record = value.partition(b"\n")
        if not newline or not is_signed(value) or len(head) > _LONGEST_PREFIX:
            return None
        seen = _digest(key, value)
        believed = self._checked.get(seen)
        if believed is None:
            believed = self._verify(key, head, record)
            self._checked[seen] = believed
            while len(self._checked) > _MOST_REMEMBERED:
                self._checked.popitem(last=False)
        return record if believed else None

    def _verify(self, key: str, head: bytes, record: bytes) -> bool:
        try:
            name, signature = head.removeprefix(_MARK).decode("ascii").split(" ")
            raw = base64.b64decode(signature, validate=True)
            self._ring.verify(name, _to_sign(key, record), raw)
        except (BadSignature, ValueError, binascii.Error):
            return False
        return True


class SignedStateStore:
    """Signs on writes, and trusts only signed values on reads."""

    def __init__(
        self, store: StateStore, signer: RecordSigner, *, obeyed_unsigned: tuple[str, ...] = ()
    ) -> None:
        """`obeyed_unsigned`: prefixes of records that only take rights away."""
        self._store = store
        self._signer = signer
        self._obeyed_unsigned = obeyed_unsigned
        self._reported: dict[str, int] = {}

    async def get(self, key: str) -> Entry | None:
        """The current value of the key."""
        entry = await self._store.get(key)
        return self._opened(entry) if entry is not None else None

    async def list(self, prefix: str) -> Listing:
        """Every key that begins with the prefix, sorted by key."""
        listing = await self._store.list(prefix)
        if len(listing.entries) > _MANY:
            opened = await asyncio.to_thread(self._opened_all, listing.entries)
        else:
            opened = self._opened_all(listing.entries)
        return Listing(opened, listing.revision)

    async def newer(self, prefix: str, after: int) -> NewerKeys:
        """Those of them that changed after a revision. Deleted ones show only in the count."""
        found = await self._store.newer(prefix, after)
        return replace(found, entries=self._opened_all(found.entries))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Set it unconditionally; returns the revision of the change."""
        return await self._store.put(key, self._signer.sign(key, value), lease)

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """Make all changes at once if all expectations hold; their revision, or None if not."""
        return await self._store.commit(expect, [self._signed(each) for each in changes])

    async def lease(self, ttl_s: int) -> Lease:
        """A lease, renewed in the background until released or lost."""
        return await self._store.lease(ttl_s)

    @asynccontextmanager
    async def watch(
        self, prefix: str, after: int
    ) -> AsyncIterator[AsyncIterator[tuple[Changed, ...]]]:
        """Every change after a revision, in order, none twice."""
        async with self._store.watch(prefix, after) as batches:
            yield self._opened_batches(batches)

    async def _opened_batches(
        self, batches: AsyncIterator[tuple[Changed, ...]]
    ) -> AsyncIterator[tuple[Changed, ...]]:
        async for batch in batches:
            yield tuple(
                replace(each, entry=self._opened(each.entry)) if each.entry else each
                for each in batch
            )

    def _signed(self, change: Change) -> Change:
        if not isinstance(change, Put):
            return change
        return replace(change, value=self._signer.sign(change.key, change.value))

    def _opened_all(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        return tuple(map(self._opened, entries))

    def _opened(self, entry: Entry) -> Entry:
        record = self._signer.open(entry.key, entry.value)
        if record is not None:
            return replace(entry, value=record)
        obeyed = entry.key.startswith(self._obeyed_unsigned) and not is_signed(entry.value)
        self._report(entry, obeyed=obeyed)
        return entry if obeyed else replace(entry, value=UNBELIEVED)

    def _report(self, entry: Entry, *, obeyed: bool) -> None:
        if self._reported.get(entry.key) == entry.revision:
            return
        if len(self._reported) >= _MOST_REMEMBERED:
            self._reported.clear()
        self._reported[entry.key] = entry.revision
        if obeyed:
            _log.warning("record without a signature is obeyed", extra={"key": entry.key})
        else:
            _log.error("record without a valid signature", extra={"key": entry.key})


def is_signed(value: bytes) -> bool:
    """True if it claims a signature, valid or not."""
    return value.startswith(_MARK)


def _to_sign(key: str, record: bytes) -> bytes:
    return b"%s%s\n%s" % (_DOMAIN, key.encode(), record)


def _digest(key: str, value: bytes) -> bytes:
    return hashlib.sha256(b"%s\n%s" % (key.encode(), value)).digest()
