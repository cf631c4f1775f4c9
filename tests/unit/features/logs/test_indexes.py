"""Indexes of chunks are read once, as long as there is room for them."""

from __future__ import annotations

import pytest

from lattice.domain.objects import ObjectInfo
from lattice.features.logs.service.indexes import Indexes
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import ManualClock
from tests.unit.domain.test_logchunk import chunk_of


@pytest.fixture
def objects() -> InMemoryObjectStore:
    return InMemoryObjectStore(ManualClock())


async def put(objects: InMemoryObjectStore, key: str, content: bytes) -> ObjectInfo:
    await objects.put(key, content)
    return ObjectInfo(key, len(content), ManualClock().now())


async def test_one_that_was_read_is_kept(objects: InMemoryObjectStore) -> None:
    info = await put(objects, "a", chunk_of(b"text\n"))
    indexes = Indexes(objects)
    first = await indexes.of(info)
    assert first is not None
    assert first.end.line == 1
    assert await indexes.of(info) is first
    assert objects.reads == 1


async def test_the_one_not_used_for_longest_gives_way(objects: InMemoryObjectStore) -> None:
    infos = [await put(objects, key, chunk_of(b"text\n")) for key in ("a", "b", "c")]
    indexes = Indexes(objects, most_numbers=30)
    for number in (0, 1, 0, 2, 0):
        await indexes.of(infos[number])
    assert objects.reads == 3
    await indexes.of(infos[1])
    assert objects.reads == 4


async def test_a_large_index_is_read_whole(objects: InMemoryObjectStore) -> None:
    texts = [b"%d" % number * (1 + number % 977) for number in range(3000)]
    chunk = chunk_of(*texts)
    index = await Indexes(objects).of(await put(objects, "a", chunk))
    assert index is not None
    assert len(index.frames) == 3000
    assert objects.reads == 2


async def test_what_is_no_chunk_has_none(objects: InMemoryObjectStore) -> None:
    assert await Indexes(objects).of(await put(objects, "a", b"noise" * 100)) is None
    assert await Indexes(objects).of(ObjectInfo("gone", 5, ManualClock().now())) is None
