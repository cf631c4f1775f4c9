"""The archive of the audit log: segments in the object store, each named by what it contains.

    audit/CLUSTER/FIRST-LAST-HASH.zst

    {"cluster":…,"first":…,"previous":…,"keys":…}     the header
    batches as in the state store, their seals included

Moving a segment has three steps, and each may be the last before a crash:

1. The head names the last entry of the segment (`planned`).
2. The segment is written if it does not exist. Every replica would write the same content.
3. One commit removes the batches, and the head counts them as archived.

A batch that remains behind step 3 is older than the head's `archived`: nobody reads it, and it is
removed later.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from lattice.base.errors import Unavailable
from lattice.base.failpoints import failpoint
from lattice.base.zstd import zstd
from lattice.domain.audit_chain import Batch, ChainPoint
from lattice.domain.objects import ObjectStore, key_of
from lattice.domain.state import Delete, Entry, Expect, Put, StateStore
from lattice.features.audit.service.chain import AuditChain, BrokenLog, with_named
from lattice.features.audit.service.head import (
    BLOCKS,
    HEAD,
    AuditHead,
    UnreadableHead,
    block_key,
    head_of,
)

_log = logging.getLogger("lattice.audit")

FOLDER = "audit"
RETAINED_ENTRIES = 2_000
"""At least so many of the newest entries stay in the state store."""
SEGMENT_ENTRIES = 4_000
"""A segment begins when so many more have gathered, and has at most so many, or a batch more."""
EVERY_S = 15.0
_MOST_DELETED = 90
"""In one commit."""
LARGEST_SEGMENT_BYTES = 64 * 1024 * 1024
"""Unpacked. A larger one is not read."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a segment in the archive."""

    first: int
    last: int
    digest: str
    key: str


class BadSegment(Exception):
    """A segment can't be unpacked or has no header."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An unpacked segment, unverified."""

    cluster: str
    before: ChainPoint
    keys: tuple[bytes, ...]
    """Public keys that the chain trusts before its first entry."""
    text: bytes


class AuditArchive:
    """Reads and writes segments of one cluster."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def names(self, cluster: str) -> tuple[SegmentName, ...]:
        """All segments in order of their entries. Raises `Unavailable`."""
        found = [
            name
            async for each in self._objects.listing(f"{key_of(FOLDER, cluster)}/")
            if (name := _name_of(each.key)) is not None
        ]
        return tuple(sorted(found))

    async def read(self, name: SegmentName) -> Segment:
        """Raises `NoObject`, `BadSegment` and `Unavailable`."""
        return await asyncio.to_thread(unpack, await self._objects.read(name.key))

    async def write(self, segment: Segment, end: ChainPoint) -> None:
        """Return when it is stored, by this call or an earlier one. Raises `Unavailable`."""
        key = _key(segment, end)
        body = await asyncio.to_thread(pack, segment)
        if await self._objects.put_new(key, body):
            return
        # Another version of zstd may pack the same text differently.
        stored = await asyncio.to_thread(unpack, await self._objects.read(key))
        if stored != segment:
            raise Unavailable(
                f"The archive has another segment under {key}.",
                hint="Run `lattice audit verify`: it names the first bad entry.",
            )


def pack(segment: Segment) -> bytes:
    header = {
        "cluster": segment.cluster,
        "first": segment.before.sequence + 1,
        "previous": segment.before.link.hex(),
        "keys": [each.hex() for each in segment.keys],
    }
    text = json.dumps(header, separators=(",", ":")).encode() + b"\n" + segment.text
    return zstd.compress(text)


def unpack(body: bytes) -> Segment:
    """Raises `BadSegment`."""
    try:
        unpacked = zstd.ZstdDecompressor().decompress(body, LARGEST_SEGMENT_BYTES)
        first, newline, text = unpacked.partition(b"\n")
        header = json.loads(first)
        before = ChainPoint(int(header["first"]) - 1, bytes.fromhex(header["previous"]))
        keys = tuple(bytes.fromhex(each) for each in header["keys"])
        cluster = str(header["cluster"])
    except (zstd.ZstdError, EOFError, ValueError, KeyError, TypeError) as problem:
        raise BadSegment(f"it can't be unpacked: {type(problem).__name__}") from None
    if not newline:
        raise BadSegment("it has no entries")
    return Segment(cluster, before, keys, text)


class Archiver:
    """Moves older batches into the archive. Every replica may run one."""

    def __init__(
        self,
        state: StateStore,
        archive: AuditArchive,
        chain: AuditChain,
        *,
        retained: int = RETAINED_ENTRIES,
        segment: int = SEGMENT_ENTRIES,
        weakness: Callable[[], Awaitable[str]] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """The chain is this archiver's own; it is not shared with a writer.

        `weakness` says what is missing of the bucket's lock; empty if nothing is.
        """
        self._weakness = weakness
        self._state = state
        self._archive = archive
        self._chain = chain
        self._retained = retained
        self._segment = segment
        self._sleep = sleep
        self._cleaned = False
        """True once batches that a crash left behind are removed."""
        self.segments_total = 0
        self.problem = ""

    async def run(self) -> None:
        """Archive what is due, until cancelled."""
        await self._check_lock()
        while True:
            try:
                while await self.step():
                    pass
                self.problem = ""
            except (Unavailable, BadSegment) as problem:
                self.problem = str(problem)
                _log.warning("the audit log is not archived", extra={"why": str(problem)})
            await self._sleep(EVERY_S)

    async def _check_lock(self) -> None:
        if self._weakness is None:
            return
        try:
            found = await self._weakness()
        except Unavailable as problem:
            # Doctor asks again.
            found = f"could not be asked for its lock: {problem.message}"
        if found:
            _log.warning("the bucket of the audit log %s", found)

    async def step(self) -> bool:
        """Do the next step; False if nothing is due. Raises `Unavailable`."""
        entry = await self._state.get(HEAD)
        if entry is None or not self._is_due(_read_head(entry)):
            return False
        await self._chain.refresh()
        head = self._chain.head
        assert head is not None
        if head.planned:
            await self._move(head)
            return True
        if not self._cleaned:
            await self._remove_rest(head)
            self._cleaned = True
        return await self._plan(head) if self._is_due(head) else False

    def _is_due(self, head: AuditHead) -> bool:
        behind = head.newest.sequence - head.archived.sequence
        return bool(head.planned) or behind >= self._retained + self._segment

    async def _plan(self, head: AuditHead) -> bool:
        most = min(self._segment, head.newest.sequence - head.archived.sequence - self._retained)
        last = head.archived.sequence + most
        end = next(each.end.sequence for each in self._chain.batches if each.end.sequence >= last)
        planned = replace(head, planned=end)
        await self._state.commit(
            [Expect(HEAD, self._chain.revision)], [Put(HEAD, planned.encoded())]
        )
        failpoint("audit.segment.planned")
        return True

    async def _move(self, head: AuditHead) -> None:
        batches = [each for each in self._chain.batches if each.end.sequence <= head.planned]
        if not batches or batches[-1].end.sequence != head.planned:
            raise BrokenLog("the segment to archive is not whole.")
        end = batches[-1].end
        text = b"".join(each.text for each in batches)
        segment = Segment(head.cluster, head.archived, head.archived_keys, text)
        await self._archive.write(segment, end)
        failpoint("audit.segment.written")
        after = replace(
            head,
            archived=end,
            planned=0,
            archived_keys=_keys_after(head.archived_keys, batches),
            retained_bytes=max(0, head.retained_bytes - len(text)),
        )
        revision = self._chain.revision
        changes = [Delete(block_key(each.first)) for each in batches[:_MOST_DELETED]]
        done = await self._state.commit(
            [Expect(HEAD, revision)], [Put(HEAD, after.encoded()), *changes]
        )
        failpoint("audit.segment.recorded")
        if done is not None:
            self.segments_total += 1
            await self._remove_rest(after)

    async def _remove_rest(self, head: AuditHead) -> None:
        listing = await self._state.list(BLOCKS)
        rest = [
            each.key
            for each in listing.entries
            if int(each.key.removeprefix(BLOCKS)) <= head.archived.sequence
        ]
        for at in range(0, len(rest), _MOST_DELETED):
            await self._state.commit([], [Delete(each) for each in rest[at : at + _MOST_DELETED]])


def _read_head(entry: Entry) -> AuditHead:
    try:
        return head_of(entry)
    except UnreadableHead:
        raise BrokenLog("the record of its head can't be read.") from None


def _keys_after(keys: tuple[bytes, ...], batches: list[Batch]) -> tuple[bytes, ...]:
    for batch in batches:
        keys = with_named(keys, batch.entries)
    return keys


def _key(segment: Segment, end: ChainPoint) -> str:
    first = segment.before.sequence + 1
    name = f"{first:020d}-{end.sequence:020d}-{end.link.hex()[:16]}.zst"
    return key_of(FOLDER, segment.cluster, name)


def _name_of(key: str) -> SegmentName | None:
    first, _, rest = key.rpartition("/")[2].removesuffix(".zst").partition("-")
    last, _, digest = rest.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        return None
    return SegmentName(int(first), int(last), digest, key)


async def retained_text(state: StateStore, head: AuditHead) -> AsyncIterator[bytes]:
    """The batches behind the archive, as they are stored."""
    listing = await state.list(BLOCKS)
    for entry in listing.entries:
        first = int(entry.key.removeprefix(BLOCKS))
        if head.archived.sequence < first <= head.newest.sequence:
            yield entry.value
