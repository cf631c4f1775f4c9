"""The chunks of recordings in the bucket of sensitive work. A chunk is written once.

TENANT/ACCOUNT/JOB/recordings/SESSION/NUMBER
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from lattice.base.errors import DataUnavailable
from lattice.domain.objects import NoObject, ObjectStore, key_of
from lattice.domain.recording import ChunkHead, RecordingName, link_of

_NONE = "-"
_FOLDER = "recordings"


class RecordingConflict(DataUnavailable):
    """The bucket has another chunk under this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPath:
    """A recording, and the parts of its keys."""

    name: RecordingName
    tenant: str
    account: str

    @property
    def prefix(self) -> str:
        job = self.name.allocation.partition("@")[0]
        return key_of(
            self.tenant or _NONE,
            self.account or _NONE,
            job,
            _FOLDER,
            f"{self.name.allocation}",
            self.name.session,
        )

    def key(self, number: int) -> str:
        return f"{self.prefix}/{number:010d}"


class RecordingStore:
    """Every method raises `Unavailable` while the bucket does not answer."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, path: RecordingPath, chunk: bytes, before: bytes | None) -> bytes:
        """Store a chunk, and return its link. `before` is the link of the last one, if known.

        Raises `RecordingConflict` unless it follows the chunk that is stored before it.
        """
        try:
            head = ChunkHead.parse(chunk)
        except ValueError as problem:
            raise RecordingConflict(f"A chunk can't be parsed: {problem}.") from None
        if before is None:
            before = await self._link_before(path, head.number)
        if head.before != before:
            raise RecordingConflict(f"Chunk {head.number} does not follow the one before.")
        key, link = path.key(head.number), link_of(chunk)
        # The same chunk may come again after an answer was lost.
        if not await self._objects.put_new(key, chunk) and link_of(await self._read(key)) != link:
            raise RecordingConflict(f"The bucket has another chunk {head.number}.")
        return link

    async def chunks(self, path: RecordingPath, begin: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """The stored chunks in order, from this number on."""
        prefix = f"{path.prefix}/"
        after = path.key(begin - 1) if begin else ""
        async for each in self._objects.listing(prefix, after=after):
            number = each.key.removeprefix(prefix)
            if number.isdecimal():
                yield int(number), await self._read(each.key)

    async def chunk(self, path: RecordingPath, number: int) -> bytes:
        """One chunk. Raises `RecordingConflict` if it is missing."""
        return await self._read(path.key(number))

    async def last(self, path: RecordingPath) -> tuple[int, bytes] | None:
        """The chunk with the highest number; None if there is none."""
        prefix, last = f"{path.prefix}/", ""
        async for each in self._objects.listing(prefix):
            if each.key.removeprefix(prefix).isdecimal():
                last = each.key
        if not last:
            return None
        return int(last.removeprefix(prefix)), await self._read(last)

    async def _link_before(self, path: RecordingPath, number: int) -> bytes:
        if number == 0:
            return path.name.first_link
        try:
            return link_of(await self._read(path.key(number - 1)))
        except RecordingConflict:
            raise RecordingConflict(f"Chunk {number - 1} is missing.") from None

    async def _read(self, key: str) -> bytes:
        try:
            return await self._objects.read(key)
        except NoObject:
            raise RecordingConflict("A chunk is missing.") from None
