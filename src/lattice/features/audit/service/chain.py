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
MOST_TRIES = 100
_MOST_STEPS = 20
"""Batches that are read one by one; for more, all are listed."""
_SMALL_BATCH_BYTES = 4 * 1024
"""Verified at once: less than a thread costs."""
_LONGEST_PAUSE_S = 0.02
_PAUSE_S = 0.002
"""Times the tries so far."""


async def pause_after(tries: int) -> None:
    """Wait a little when another replica was first. Random, so that one of several wins."""
    longest_s = min(tries * _PAUSE_S, _LONGEST_PAUSE_S)
    await asyncio.sleep(random.uniform(0, longest_s))  # noqa: S311 - not a secret


def too_busy() -> Unavailable:
    return Unavailable("Other servers write to the audit log all the time.", hint="Try again.")


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
        for tries in range(MOST_TRIES):
            found = await self.try_append(events)
            if found is not None:
                return found
            await pause_after(tries)
        raise too_busy()

    async def try_append(self, events: Sequence[AuditEvent]) -> tuple[AuditEntry, ...] | None:
        """The same, but None if another replica was first. Then none of them was committed."""
        if not self.current:
            await self.refresh()
        new = self._new(events)
        if not new or await self._commit(new):
            return tuple(self._entries[each.event] for each in events)
        return None

    async def refresh(self) -> None:
        """Read what others have committed, and verify it. Raises `Unavailable`."""
        self.current = False
        entry, following = await self._head_and_next()
        while entry is not None:
            try:
                await self._follow(entry, following)
                break
            except BrokenLog:
                # Batches may have been archived between the two reads.
                before, following = entry.revision, None
                entry = await self._state.get(HEAD)
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
        if self._head is not None and self._keys[0] not in self._head.keys:
            own = key_name(self._keys[0])
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

    async def _head_and_next(self) -> tuple[Entry | None, Entry | None]:
        """The head, and the batch behind our newest entry: mostly it is the only new one."""
        if self._head is None:
            return await self._state.get(HEAD), None
        key = block_key(self._head.newest.sequence + 1)
        head, following = await asyncio.gather(self._state.get(HEAD), self._state.get(key))
        return head, following

    async def _follow(self, entry: Entry, following: Entry | None) -> None:
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
            found = await self._read_from(own, head, following) if own is not None else None
            if found is None:
                self._forget(None, 0)
                verifier = _verifier(head.cluster, head.archived, head.archived_keys)
                found = await self._read_listed(verifier, head)
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

    async def _read_from(
        self, own: ChainPoint, head: AuditHead, following: Entry | None
    ) -> list[Batch] | None:
        """The batches behind our newest entry; None if some of them are archived."""
        if own.sequence < head.archived.sequence:
            return None
        found: list[Batch] = []
        assert self._head is not None
        verifier = _verifier(head.cluster, own, self._head.keys)
        while verifier.point.sequence < head.newest.sequence:
            if len(found) >= _MOST_STEPS:
                return found + await self._read_listed(verifier, head)
            entry = following or await self._state.get(block_key(verifier.point.sequence + 1))
            following = None
            if entry is None:
                return None
            if len(entry.value) <= _SMALL_BATCH_BYTES:
                found += _verify(verifier, [entry.value])
            else:
                found += await asyncio.to_thread(_verify, verifier, [entry.value])
        _check_end(verifier, head)
        return found

    async def _read_listed(self, verifier: ChainVerifier, head: AuditHead) -> list[Batch]:
        """All batches behind the verifier's point."""
        listing = await self._state.list(BLOCKS)
        before, newest = verifier.point.sequence, head.newest.sequence
        # Archived batches may remain for a moment; later ones are newer than this head.
        texts = [
            entry.value
            for entry in listing.entries
            if before < int(entry.key.removeprefix(BLOCKS)) <= newest
        ]
        found: list[Batch] = []
        for at in range(0, len(texts), _MOST_STEPS):
            part = texts[at : at + _MOST_STEPS]
            found += await asyncio.to_thread(_verify, verifier, part)
        _check_end(verifier, head)
        return found

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


def _verify(verifier: ChainVerifier, texts: Iterable[bytes]) -> list[Batch]:
    """The next batches. A large one takes tens of milliseconds."""
    found: list[Batch] = []
    for each in texts:
        verifier.feed_all(each)
        found.append(read_batch(each))
    return found


def _check_end(verifier: ChainVerifier, head: AuditHead) -> None:
    verifier.finish()
    if verifier.point != head.newest:
        raise ChainBroken(verifier.point.sequence + 1, "the log does not end at its head")


def with_named(keys: tuple[bytes, ...], entries: Iterable[AuditEntry]) -> tuple[bytes, ...]:
    changes = (each for each in entries if each.act is AuditAct.KEY_CHANGE)
    return tuple(dict.fromkeys((*keys, *(key for each in changes for key in named_keys(each)))))
