"""Compares stored objects with their seal: which are missing, changed or added.

One instance for each query. Without a seal every object is accepted.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from lattice.base.turns import in_few_threads
from lattice.domain.logchunk import BadChunk, PlacedFrame
from lattice.domain.logs import StreamName
from lattice.domain.objects import ObjectInfo, ObjectStore
from lattice.features.logs.service.indexes import Indexes
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.ranges import ChunkRange, LostRange
from lattice.features.logs.service.seal import SealedChunk, Seals

_SINCE = "in the object store since these logs were sealed"
_MAX_CACHE_BYTES = 16 * 1024 * 1024
"""For digests of frames, 32 bytes each."""


class Checks:
    """The chunks of one attempt, compared with its seal."""

    def __init__(
        self,
        name: AttemptName | None = None,
        seals: Seals | None = None,
        sealed: Mapping[str, SealedChunk] | None = None,
    ) -> None:
        self._name = name
        self._seals = seals
        self._chunks = sealed or {}
        self._folders: dict[str, list[SealedChunk]] = {}
        for each in self._chunks.values():
            self._folders.setdefault(each.key.rpartition("/")[0], []).append(each)
        self.is_sealed = sealed is not None
        self._late: set[str] = set()
        self._removed: list[SealedChunk] = []
        self._changed: set[str] = set()
        self._added: set[str] = set()

    def folders(self, prefixes: Sequence[str]) -> set[str]:
        """The folders below these prefixes that have sealed chunks."""
        return {each for each in self._folders if f"{each}/".startswith(tuple(prefixes))}

    async def expected(
        self, folder: str, objects: Iterable[ObjectInfo], indexes: Indexes
    ) -> list[ObjectInfo]:
        """The objects that were sealed, or noted later by a server; added ones are left out."""
        found = list(objects)
        if not self.is_sealed:
            return found
        expected = []
        for each in found:
            if each.key in self._chunks or await self._is_late(each, indexes):
                expected.append(each)
            else:
                self._added.add(each.key)
        there = {each.key for each in found}
        gone = (each for each in self._folders.get(folder, ()) if each.key not in there)
        self._removed += gone
        return expected

    async def _is_late(self, info: ObjectInfo, indexes: Indexes) -> bool:
        assert self._seals is not None
        assert self._name is not None
        found = await indexes.read(info)
        if found is None or not await self._seals.is_late(self._name, info.key, found[1]):
            return False
        self._late.add(info.key)
        return True

    def holds(self, key: str, digest: str) -> bool:
        """True if this is the sealed index, or there is no seal for it."""
        sealed = self._chunks.get(key)
        if sealed is None or sealed.digest == digest:
            return True
        self._changed.add(key)
        return False

    def is_missing(self, key: str, *, is_changed: bool = False) -> None:
        """Note that the object is not a chunk any more, or that its own seal shows a change."""
        if is_changed or key in self._chunks:
            self._changed.add(key)

    def covers(self, key: str) -> bool:
        """True if the text of this chunk must be verified."""
        return key in self._chunks or key in self._late

    def lost(self, folder: str, intact: Iterable[ChunkRange]) -> dict[StreamName, list[LostRange]]:
        """Sealed chunks of a folder that can't be read, by stream; each sealed stream is a key."""
        there = {each.key for each in intact}
        found: dict[StreamName, list[LostRange]] = {}
        for chunk in self._folders.get(folder, ()):
            lost = found.setdefault(chunk.stream, [])
            if chunk.key not in there:
                lost.append(LostRange(chunk.begin, chunk.end, tampered=True))
        return found

    def has_sealed(self, folder: str, stream: StreamName) -> bool:
        """True if the stream was sealed, so all its chunks are known."""
        return any(each.stream == stream for each in self._folders.get(folder, ()))

    def faults(self) -> tuple[str, ...]:
        """The differences found so far, as text."""
        faults = []
        for keys, what in (
            ([each.key for each in self._removed], f"removed {_SINCE}"),
            (sorted(self._changed), f"changed {_SINCE}"),
            (sorted(self._added), f"added {_SINCE}; they are not shown"),
        ):
            if keys:
                count = "1 object was" if len(keys) == 1 else f"{len(keys)} objects were"
                example = "/".join(keys[0].split("/")[-3:])
                text = what.replace("they are", "it is") if len(keys) == 1 else what
                faults.append(f"{count} {text} ({example})")
        return tuple(faults)


class CheckedFrames:
    """Reads frames of sealed chunks and verifies each. The first read fetches the whole chunk.

    That gives the digests of its frames, which are cached. A later range fetches its frames alone.
    """

    def __init__(self, objects: ObjectStore, most_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._objects = objects
        self._most_bytes = most_bytes
        self._digests: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    async def read(self, chunk: ChunkRange, run: Sequence[PlacedFrame]) -> bytes:
        """The frames of a run as stored. Raises `BadChunk`, `NoObject`, `Unavailable`."""
        begin, end = run[0].stored_at, run[-1].stored_at + run[-1].frame.stored_bytes
        known = self._digests.get(chunk.digest)
        if known is None:
            whole = await self._objects.read(chunk.key, 0, chunk.index.stored_bytes)
            self._keep(chunk, await in_few_threads(_frame_digests, chunk, whole))
            return whole[begin:end]
        self._digests.move_to_end(chunk.digest)
        stored = await self._objects.read(chunk.key, begin, end)
        await in_few_threads(_check, chunk, run, stored, known)
        return stored

    def _keep(self, chunk: ChunkRange, digests: bytes) -> None:
        if chunk.digest not in self._digests:
            self._digests[chunk.digest] = digests
            self._size += len(digests)
        while self._size > self._most_bytes and len(self._digests) > 1:
            self._size -= len(self._digests.popitem(last=False)[1])


def _check(chunk: ChunkRange, run: Sequence[PlacedFrame], stored: bytes, known: bytes) -> None:
    """Raise `BadChunk` if the digest of a frame differs from the known one."""
    view, begin = memoryview(stored), run[0].stored_at
    numbers = {each.stored_at: number for number, each in enumerate(chunk.index.placed())}
    for each in run:
        at, at_digest = each.stored_at - begin, 32 * numbers[each.stored_at]
        digest = hashlib.sha256(view[at : at + each.frame.stored_bytes]).digest()
        if digest != known[at_digest : at_digest + 32]:
            raise BadChunk("a frame is not what was sealed")


def _frame_digests(chunk: ChunkRange, whole: bytes) -> bytes:
    """The digests, joined. Raises `BadChunk` if the frames differ from the index."""
    if hashlib.sha256(whole).hexdigest() != chunk.index.sha256:
        raise BadChunk("the text is not what was sealed")
    view = memoryview(whole)
    return b"".join(
        hashlib.sha256(view[each.stored_at :][: each.frame.stored_bytes]).digest()
        for each in chunk.index.placed()
    )
