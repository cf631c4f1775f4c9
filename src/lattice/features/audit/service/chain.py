"""A replica's copy of the retained chain, and the commit of new entries behind it.

A replica commits only behind entries that it has read and verified. So it knows every event that
the store still has, and a retry finds the entry of the first try. The event of a commit whose
answer was lost is found in the same manner.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.signatures import key_name
from lattice.domain.audit import (
    TRUSTS,
    AuditAct,
    AuditEntry,
    AuditEvent,
    BadEntry,
    entry_of,
    named_keys,
)
from lattice.domain.audit_chain import (
    Batch,
    ChainBroken,
    ChainPoint,
    ChainVerifier,
    Sign,
    genesis,
    make_batch,
    read_batch,
)
from lattice.domain.state import Entry, Expect, Put, StateStore
from lattice.features.audit.service.head import (
    BLOCKS,
    HEAD,
    AuditHead,
    UnreadableHead,
    block_key,
    head_of,
)

_log = logging.getLogger("lattice.audit")

MOST_RETAINED_BYTES = 64 * 1024 * 1024
"""Of batches that wait for the archive. Then nothing more is recorded until they are archived."""
LARGEST_BATCH_BYTES = 60 * 1024
_TRIES = 100
_MOST_STEPS = 20
"""Batches that are read one by one; for more, all are listed."""


class BrokenLog(Unavailable):
    """The log in the state store is not as it was written."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"The audit log in the agreed state is damaged: {problem}",
            hint="`lattice audit verify` names the first bad entry. See docs/operate/audit.md.",
        )


class AuditChain:
    """Not shared between tasks: one writer uses it."""

    def __init__(
        self,
        state: StateStore,
        clock: Clock,
        sign: Sign,
        keys: Sequence[bytes],
        cluster: Callable[[], Awaitable[str]],
    ) -> None:
        """`keys` are public keys that this replica trusts; its own is the first."""
        self._state = state
        self._clock = clock
        self._sign = sign
        self._keys = tuple(keys)
        self._cluster = cluster
        self._head: AuditHead | None = None
        self._revision = 0
        self._batches: dict[int, Batch] = {}
        self._entries: dict[str, AuditEntry] = {}
        self.current = False
        self.rollbacks = 0

    def another(self) -> AuditChain:
        """A chain of its own for another task."""
        return AuditChain(self._state, self._clock, self._sign, self._keys, self._cluster)

    @property
    def head(self) -> AuditHead | None:
        """The head as last read."""
        return self._head

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches that are not archived, oldest first."""
        return tuple(self._batches[first] for first in sorted(self._batches))

    def recorded(self, event: str) -> AuditEntry | None:
        """The entry of an event that the state store still has."""
        return self._entries.get(event)

    async def append(self, events: Sequence[AuditEvent]) -> tuple[AuditEntry, ...]:
        """Commit these events and return their entries. Raises `Unavailable`.

        After `Unavailable` some may have been committed; a call with the same ids finds them.
        """
        for _ in range(_TRIES):
            if not self.current:
                await self.refresh()
            new = self._new(events)
            if not new or await self._commit(new):
                return tuple(self._entries[each.event] for each in events)
            # Another replica was first. A short random pause lets one of them win.
            await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311 - not a secret
        raise Unavailable("Other servers write to the audit log all the time.", hint="Try again.")

    async def refresh(self) -> None:
        """Read what others have committed, and verify it. Raises `Unavailable`."""
        self.current = False
        entry = await self._state.get(HEAD)
        while entry is not None:
            try:
                await self._follow(entry)
                break
            except BrokenLog:
                # Batches may have been archived between the two reads.
                before, entry = entry.revision, await self._state.get(HEAD)
                if entry is not None and entry.revision == before:
                    raise
        else:
            self._forget(None, 0)
        self.current = True

    def adopt(self, head: AuditHead, revision: int) -> None:
        """Take the head of a commit that archived batches."""
        self._head, self._revision = head, revision
        self._drop_archived(head.archived.sequence)

    def _new(self, events: Sequence[AuditEvent]) -> list[AuditEvent]:
        fresh: dict[str, AuditEvent] = {}
        for each in events:
            if each.event not in self._entries:
                fresh.setdefault(each.event, each)
        new = list(fresh.values())
        return [*self._key_changes(), *new] if new else []

    def _key_changes(self) -> list[AuditEvent]:
        """Name keys that the chain does not trust yet: all at its beginning, later the next."""
        own = key_name(self._keys[0])
        if self._head is not None and not self._head.trusts(own):
            # The next call reads again whether another server has named it.
            self.current = False
            raise Unavailable(
                f"The audit log does not trust the key {own} of this server.",
                hint="Start a server that has the key before, with this one in "
                "identity.previous_grant_keys: it names the next key in the log.",
            )
        trusted = frozenset(self._head.keys) if self._head else frozenset[bytes]()
        named = [each for each in self._keys if each not in trusted]
        if not named:
            return []
        detail = " ".join((TRUSTS, *(each.hex() for each in named)))
        return [AuditEvent(event=uuid.uuid4().hex, act=AuditAct.KEY_CHANGE, detail=detail)]

    async def _commit(self, events: Sequence[AuditEvent]) -> bool:
        head = self._head or await self._first_head()
        if head.retained_bytes > MOST_RETAINED_BYTES:
            raise Unavailable(
                "The audit log has no room: its archive has been away for too long.",
                hint="Check the object store with `lattice doctor`.",
            )
        now, sequence = self._clock.now(), head.newest.sequence
        entries = [entry_of(each, sequence + n, now) for n, each in enumerate(events, 1)]
        batch = make_batch(head.cluster, head.newest, entries, self._sign)
        after = replace(
            head,
            newest=batch.end,
            keys=with_named(head.keys, entries),
            retained_bytes=head.retained_bytes + len(batch.text),
        )
        key = block_key(batch.first)
        self.current = False
        revision = await self._state.commit(
            [Expect(HEAD, self._revision), Expect(key, 0)],
            [Put(HEAD, after.encoded()), Put(key, batch.text)],
        )
        if revision is None:
            return False
        self._head, self._revision, self.current = after, revision, True
        self._add(batch)
        return True

    async def _first_head(self) -> AuditHead:
        cluster = await self._cluster()
        start = genesis(cluster)
        return AuditHead(cluster=cluster, newest=start, archived=start, keys=(), archived_keys=())

    async def _follow(self, entry: Entry) -> None:
        try:
            head = head_of(entry)
        except UnreadableHead:
            raise BrokenLog("the record of its head can't be read.") from None
        own = self._head.newest if self._head is not None else None
        if own is not None and not self._goes_on(own, head):
            self.rollbacks += 1
            _log.error(
                "the audit log was rolled back or replaced",
                extra={"entry": own.sequence, "now": head.newest.sequence},
            )
            own = None
        try:
            found = await self._read_from(own, head) if own is not None else None
            if found is None:
                self._forget(None, 0)
                found = await self._read_all(head)
        except (ChainBroken, BadEntry) as problem:
            raise BrokenLog(f"{problem}.") from None
        for batch in found:
            self._add(batch)
        self._head, self._revision = head, entry.revision
        self._drop_archived(head.archived.sequence)

    def _goes_on(self, own: ChainPoint, head: AuditHead) -> bool:
        assert self._head is not None
        if head.cluster != self._head.cluster or head.newest.sequence < own.sequence:
            return False
        return head.newest.sequence != own.sequence or head.newest == own

    async def _read_from(self, own: ChainPoint, head: AuditHead) -> list[Batch] | None:
        """The batches behind our newest entry; None if too many are new."""
        found: list[Batch] = []
        assert self._head is not None
        verifier = _verifier(head.cluster, own, self._head.keys)
        while verifier.point.sequence < head.newest.sequence:
            if len(found) >= _MOST_STEPS:
                return None
            entry = await self._state.get(block_key(verifier.point.sequence + 1))
            if entry is None:
                return None
            found.append(await asyncio.to_thread(_verified, verifier, entry.value))
        return _checked(verifier, head, found)

    async def _read_all(self, head: AuditHead) -> list[Batch]:
        listing = await self._state.list(BLOCKS)
        verifier = _verifier(head.cluster, head.archived, head.archived_keys)
        found: list[Batch] = []
        archived, newest = head.archived.sequence, head.newest.sequence
        for entry in listing.entries:
            first = int(entry.key.removeprefix(BLOCKS))
            # Archived batches may remain for a moment; later ones are newer than this head.
            if archived < first <= newest:
                found.append(await asyncio.to_thread(_verified, verifier, entry.value))
        return _checked(verifier, head, found)

    def _forget(self, head: AuditHead | None, revision: int) -> None:
        self._head, self._revision = head, revision
        self._batches.clear()
        self._entries.clear()

    def _add(self, batch: Batch) -> None:
        self._batches[batch.first] = batch
        self._entries.update((each.event, each) for each in batch.entries)

    def _drop_archived(self, archived: int) -> None:
        for first in [each for each in self._batches if each <= archived]:
            for entry in self._batches.pop(first).entries:
                self._entries.pop(entry.event, None)


def _verifier(cluster: str, point: ChainPoint, keys: Iterable[bytes]) -> ChainVerifier:
    return ChainVerifier(cluster, point, {key_name(each): each for each in keys})


def _verified(verifier: ChainVerifier, text: bytes) -> Batch:
    """The next batch. It takes tens of milliseconds, and there may be a thousand to read."""
    verifier.feed_all(text)
    return read_batch(text)


def _checked(verifier: ChainVerifier, head: AuditHead, found: list[Batch]) -> list[Batch]:
    verifier.finish()
    if verifier.point != head.newest:
        raise ChainBroken(verifier.point.sequence + 1, "the log does not end at its head")
    return found


def with_named(keys: tuple[bytes, ...], entries: Iterable[AuditEntry]) -> tuple[bytes, ...]:
    changes = (each for each in entries if each.act is AuditAct.KEY_CHANGE)
    return tuple(dict.fromkeys((*keys, *(key for each in changes for key in named_keys(each)))))
