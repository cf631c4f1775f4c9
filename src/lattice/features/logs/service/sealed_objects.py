"""The bucket of sensitive work as an object store of plain text, and the choice of the bucket.

Each object is sealed with the data key of its allocation, and bound to the cluster and its whole
key. Sizes and ranges are those of the text; a range costs the segments that it touches. An object
that was changed, cut, moved or renamed raises `ChangedObject`, and none of its text is returned.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

from lattice.base.errors import Unavailable
from lattice.domain.logchunk import BadChunk
from lattice.domain.objects import ObjectInfo, ObjectStore, unescaped
from lattice.domain.sealed import (
    FOOT_BYTES,
    SEGMENT_BYTES,
    BadSealed,
    DataKey,
    Foot,
    SealedRange,
    binding,
    plain_bytes,
    seal_object,
)
from lattice.features.logs.service.retention import REMOVED
from lattice.foundation.data_keys import DataKeys

_LOGS = "logs"
_FIRST_READ_BYTES = SEGMENT_BYTES + 4096
"""A foot with the last segment: nearly always one read shows the end of an object."""
_MOST_FEET = 50_000


class ChangedObject(BadChunk):
    """A sealed object does not open."""


def allocation_of(key: str) -> str:
    """The identity of the allocation of a key, or of the beginning of one; empty if it has none.

    Its keys are TENANT/PROJECT/ALLOCATION/logs/FIRST-ATTEMPT/….
    """
    parts = key.split("/")
    if len(parts) < 5 or parts[3] != _LOGS:
        return ""
    first, _, attempt = parts[4].partition("-")
    return f"{unescaped(parts[2])}@{first}" if first.isdigit() and attempt else ""


class AllocationKeys(Protocol):
    """The data keys of allocations, as `DataKeys` has them."""

    async def existing(self, ref: str) -> DataKey: ...

    async def cluster(self) -> str: ...


class SealedObjects:
    """The port `ObjectStore`. Also raises `DataUnavailable` once a key was destroyed."""

    def __init__(self, objects: ObjectStore, keys: AllocationKeys) -> None:
        self._objects = objects
        self._keys = keys
        self._feet: OrderedDict[str, Foot] = OrderedDict()
        """Chunks never change, so theirs stay valid."""

    async def put_new(self, key: str, body: bytes) -> bool:
        return await self._objects.put_new(key, await self._sealed(key, body))

    async def put(self, key: str, body: bytes) -> None:
        sealed = await self._sealed(key, body)
        self._feet.pop(key, None)
        await self._objects.put(key, sealed)
        self._feet.pop(key, None)

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        known = key in self._feet
        try:
            return await self._read(key, begin, end)
        except ChangedObject:
            # Replaced since its foot was read, as metadata may be.
            if not known:
                raise
        self._feet.pop(key, None)
        return await self._read(key, begin, end)

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        self._feet.pop(key, None)
        tail, size = await self._objects.read_end(key, FOOT_BYTES + _FIRST_READ_BYTES)
        foot = self._know(key, tail, size)
        begin = max(0, foot.plain_bytes - most_bytes)
        part = SealedRange.of(foot.plain_bytes, begin, foot.plain_bytes)
        read_from = size - len(tail)
        if part.begin >= read_from:
            stored = tail[part.begin - read_from : part.end - read_from]
        else:
            stored = await self._objects.read(key, part.begin, part.end)
        return await self._opened(key, foot, part, stored), foot.plain_bytes

    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for each in self._objects.listing(prefix, after=after):
            yield replace(each, size_bytes=max(0, plain_bytes(each.size_bytes)))

    async def folders(self, prefix: str) -> tuple[str, ...]:
        return await self._objects.folders(prefix)

    async def delete(self, key: str) -> None:
        self._feet.pop(key, None)
        await self._objects.delete(key)

    async def _read(self, key: str, begin: int, end: int | None) -> bytes:
        foot = await self._foot(key)
        part = SealedRange.of(foot.plain_bytes, begin, foot.plain_bytes if end is None else end)
        stored = await self._objects.read(key, part.begin, part.end)
        return await self._opened(key, foot, part, stored)

    async def _foot(self, key: str) -> Foot:
        known = self._feet.get(key)
        if known is not None:
            self._feet.move_to_end(key)
            return known
        tail, size = await self._objects.read_end(key, FOOT_BYTES)
        return self._know(key, tail, size)

    def _know(self, key: str, tail: bytes, size: int) -> Foot:
        try:
            foot = Foot.parse(tail, size)
        except BadSealed as fault:
            raise _changed(key, fault) from None
        self._feet[key] = foot
        while len(self._feet) > _MOST_FEET:
            self._feet.popitem(last=False)
        return foot

    async def _opened(self, key: str, foot: Foot, part: SealedRange, stored: bytes) -> bytes:
        data_key, bound = await self._data_key(key)
        try:
            return await asyncio.to_thread(part.open, data_key, bound, foot, stored)
        except BadSealed as fault:
            raise _changed(key, fault) from None

    async def _sealed(self, key: str, body: bytes) -> bytes:
        data_key, bound = await self._data_key(key)
        return await asyncio.to_thread(seal_object, data_key, bound, body)

    async def _data_key(self, key: str) -> tuple[DataKey, bytes]:
        data_key = await self._keys.existing(allocation_of(key))
        return data_key, binding("object", await self._keys.cluster(), key)


class ObjectsByAllocation:
    """The port `ObjectStore`: allocations with a data key in one store, all others in another.

    While nobody can say whether there is a key, nothing is written.
    """

    def __init__(self, ordinary: ObjectStore, sealed: SealedObjects, keys: DataKeys) -> None:
        self._ordinary = ordinary
        self._sealed = sealed
        self._keys = keys

    async def put_new(self, key: str, body: bytes) -> bool:
        return await (await self._for_writing(key)).put_new(key, body)

    async def put(self, key: str, body: bytes) -> None:
        await (await self._for_writing(key)).put(key, body)

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        return await (await self._for_reading(key)).read(key, begin, end)

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        return await (await self._for_reading(key)).read_end(key, most_bytes)

    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        store = await self._for_reading(prefix)
        async for each in store.listing(prefix, after=after):
            yield each

    async def folders(self, prefix: str) -> tuple[str, ...]:
        return await (await self._for_reading(prefix)).folders(prefix)

    async def delete(self, key: str) -> None:
        await (await self._for_writing(key)).delete(key)

    async def _for_writing(self, key: str) -> ObjectStore:
        ref = allocation_of(key)
        # The note of a removal outlives the data key.
        if not ref or key.endswith(f"/{REMOVED}"):
            return self._ordinary
        return self._sealed if await self._keys.is_sealed(ref) else self._ordinary

    async def _for_reading(self, key: str) -> ObjectStore:
        try:
            return await self._for_writing(key)
        except Unavailable:
            # Reads of sensitive work were refused before: they are not audited now.
            return self._ordinary


def _changed(key: str, fault: BadSealed) -> ChangedObject:
    return ChangedObject(f"{key.rpartition('/')[2]}: {fault}")
