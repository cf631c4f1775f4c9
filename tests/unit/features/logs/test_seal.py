"""The seal of finished logs: what was changed, exchanged, removed or added is shown, always."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.grants import GrantSigner
from lattice.base.errors import DataUnavailable
from lattice.base.signatures import SigningKey
from lattice.domain.attempts import attempts_of
from lattice.domain.logchunk import compress, expand, read_index
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.model import LogGap, LogNote, LogPage, LogQuery, NoteKind
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.metadata import Summaries
from lattice.features.logs.service.seal import METADATA, BrokenSeal, Seals
from tests.fakes.manual_clock import ManualClock
from tests.nesting import DEEP
from tests.unit.domain.test_logchunk import chunk_of
from tests.unit.features.logs.test_reading import ALICE, Site, noise, numbered, texts_of

SIGNER = GrantSigner(SigningKey.generate(), ManualClock())
OTHER = GrantSigner(SigningKey.generate(), ManualClock())
LINES = [f"line {number}" for number in range(150)]


class Sealed(Site):
    """A finished attempt of five chunks on n1, complete and sealed."""

    def __init__(self) -> None:
        super().__init__(SIGNER)
        self.seals = Seals(self.objects, SIGNER, SIGNER.public_keys)
        self.summaries = Summaries(self.objects, self.scheduler, self.clock, self.seals)

    @property
    def name(self) -> AttemptName:
        (job,) = self.scheduler.allocations
        return AttemptName(job, attempts_of(job)[0])

    def key(self, number: int, node: str = "n1") -> str:
        return self.name.chunk_key(LogKind.STDOUT, node, number)

    @property
    def metadata_key(self) -> str:
        return f"{self.name.prefix}/{METADATA}"

    async def sealed(self) -> Sealed:
        await self.put("n1", numbered(150))
        assert await self.summaries.write(self.name)
        return self

    async def change(self, key: str, content: bytes | None) -> None:
        """As whoever has the object store would."""
        if content is None:
            await self.objects.delete(key)
        else:
            await self.objects.put(key, content)

    def forget(self) -> Sealed:
        """The same store, read by a server that has seen nothing of it."""
        fresh = Sealed()
        fresh.objects._objects.update(self.objects._objects)
        return fresh


@pytest.fixture
async def site() -> Sealed:
    return await Sealed().sealed()


def tampering(page: LogPage) -> tuple[list[str], list[tuple[int, int | None]]]:
    """Notes and gaps that say that something was tampered with."""
    notes = [
        each.words
        for each in page.records
        if isinstance(each, LogNote) and each.kind is NoteKind.TAMPERED
    ]
    gaps = [
        (each.offset, each.lost_bytes)
        for each in page.records
        if isinstance(each, LogGap) and each.cause is GapCause.TAMPERED
    ]
    return notes, gaps


@pytest.mark.spec("LOG-3")
async def test_what_is_complete_is_sealed_and_read_without_a_note(site: Sealed) -> None:
    metadata = json.loads(await site.objects.read(site.metadata_key))
    assert metadata["seal"]["key"] == SIGNER._key.name
    page = await site.page()
    assert texts_of(page) == LINES
    assert tampering(page) == ([], [])
    assert (await site.seals.of(site.name)) is not None


def _offset(lines: int) -> int:
    return sum(len(line) + 1 for line in LINES[:lines])


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
@pytest.mark.parametrize("number", [1, 3, 5])
async def test_a_chunk_that_was_removed_is_shown_where_it_was(site: Sealed, number: int) -> None:
    await site.change(site.key(number), None)
    page = await site.page()
    begin, end = 30 * (number - 1), 30 * number
    assert texts_of(page) == LINES[:begin] + LINES[end:]
    (note,), gaps = tampering(page)
    assert note == (
        "1 object was removed in the object store since these logs were sealed "
        f"(stdout/n1/chunk_{number:06d}.log.zst)"
    )
    assert gaps == [(_offset(begin), _offset(end) - _offset(begin))]


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
async def test_streams_that_were_removed_whole_are_shown_too(site: Sealed) -> None:
    for number in range(1, 6):
        await site.change(site.key(number), None)
    page = await site.page()
    notes, gaps = tampering(page)
    assert texts_of(page) == []
    assert len(notes) == 1
    assert sum(lost or 0 for _, lost in gaps) == _offset(150)


def _flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def _other_text(content: bytes) -> bytes:
    """A whole chunk that fits in every way, with other text."""
    index = read_index(content, len(content))
    text = b"".join(b"l1ne %d\n" % (index.line + each) for each in range(30))
    return chunk_of(text, offset=index.offset, line=index.line)


def _garbage(content: bytes) -> bytes:
    return b"x" * len(content)


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("change", [_flipped, _other_text, _garbage])
async def test_a_chunk_that_was_changed_is_never_shown_as_the_jobs(
    site: Sealed, change: Callable[[bytes], bytes], restarted: bool
) -> None:
    """Attack 35, by whoever has the object store."""
    assert texts_of(await site.page()) == LINES
    await site.change(site.key(2), change(await site.objects.read(site.key(2))))
    page = await (site.forget() if restarted else site).page()
    assert texts_of(page) == LINES[:30] + LINES[60:]
    _, gaps = tampering(page)
    assert gaps == [(_offset(30), _offset(60) - _offset(30))]


def _other_frame(content: bytes) -> bytes:
    """The same index, and a first frame of the same size with other text and a sound checksum."""
    index = read_index(content, len(content))
    first = index.frames[0]
    text = expand(content[: first.stored_bytes], first)
    for offset, letter in product(range(len(text)), b"0123456789"):
        other = text[:offset] + bytes([letter]) + text[offset + 1 :]
        packed = compress(other)
        fits = len(packed) == first.stored_bytes and other.count(b"\n") == first.lines
        if fits and other != text:
            return packed + content[first.stored_bytes :]
    raise AssertionError("no text of that size was found")


@pytest.mark.spec("LOG-3")
async def test_a_frame_that_fits_is_not_shown_after_its_chunk_was_read_once(site: Sealed) -> None:
    """Its checksum holds, and the digests of the chunk are known by then."""
    assert texts_of(await site.page()) == LINES
    await site.change(site.key(2), _other_frame(await site.objects.read(site.key(2))))
    page = await site.page()
    assert texts_of(page) == LINES[:30] + LINES[60:]
    assert tampering(page)[1] == [(_offset(30), _offset(60) - _offset(30))]


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
async def test_chunks_that_were_exchanged_are_not_taken_for_each_other(site: Sealed) -> None:
    first, second = [await site.objects.read(site.key(number)) for number in (2, 3)]
    await site.change(site.key(2), second)
    await site.change(site.key(3), first)
    page = await site.forget().page()
    assert texts_of(page) == LINES[:30] + LINES[90:]
    (note,), gaps = tampering(page)
    assert note.startswith("2 objects were changed in the object store")
    assert sum(lost or 0 for _, lost in gaps) == _offset(90) - _offset(30)


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
async def test_an_object_that_was_added_is_not_shown_and_is_reported(site: Sealed) -> None:
    await site.change(site.key(6), chunk_of(b"forged\n", offset=_offset(150), line=150, last=True))
    await site.change(site.key(1, "n2"), chunk_of(b"forged\n", last=True))
    page = await site.page()
    assert texts_of(page) == LINES
    (note,), gaps = tampering(page)
    assert note.startswith("2 objects were added in the object store")
    assert note.endswith("they are not shown (stdout/n1/chunk_000006.log.zst)")
    assert gaps == []


@pytest.mark.spec("LOG-3")
async def test_a_missing_chunk_outside_of_the_range_is_reported_too(
    site: Sealed,
) -> None:
    await site.change(site.key(3), None)
    for query in ({"tail": 5}, {"offset": _offset(100)}, {"limit": 7}):
        notes, _ = tampering(await site.page(**query))
        assert len(notes) == 1


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(b'"lines": 30', b'"lines": 31', 1),
        lambda content: content.replace(b'"digest": "', b'"digest": "0', 1),
        lambda content: content.replace(b'"signature": "', b'"signature": "00', 1),
        lambda content: content.replace(SIGNER._key.name.encode(), OTHER._key.name.encode()),
        lambda content: content[:-9],
    ],
)
async def test_a_seal_that_was_changed_is_reported(
    site: Sealed, change: Callable[[bytes], bytes]
) -> None:
    await site.change(site.metadata_key, change(await site.objects.read(site.metadata_key)))
    page = await site.page()
    (note,), _ = tampering(page)
    assert note.startswith("the seal of these logs does not hold: ")
    assert texts_of(page) == LINES


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
async def test_the_seal_of_another_attempt_does_not_hold_here(site: Sealed) -> None:
    content = await site.objects.read(site.metadata_key)
    other = AttemptName(site.name.allocation, replace(site.name.attempt, number=2))
    await site.objects.put(f"{other.prefix}/{METADATA}", content)
    assert await site.seals.of(site.name) is not None
    with pytest.raises(BrokenSeal):
        await site.seals.of(other)


@pytest.mark.spec("LOG-3")
async def test_logs_that_were_never_sealed_are_read_as_before(site: Sealed) -> None:
    metadata: dict[str, Any] = json.loads(await site.objects.read(site.metadata_key))
    del metadata["seal"]
    for chunk in metadata["streams"][0]["chunks"]:
        del chunk["index_sha256"]
    await site.objects.put(site.metadata_key, json.dumps(metadata).encode())
    page = await site.page()
    assert (texts_of(page), tampering(page)) == (LINES, ([], []))
    assert await site.seals.of(site.name) is None
    await site.summaries.write(site.name)
    again = json.loads(await site.objects.read(site.metadata_key))
    assert again["seal"] is None, "what was found later is not called sealed"


@pytest.mark.spec("LOG-3")
async def test_a_chunk_that_a_server_took_after_the_seal_is_shown_and_sealed(site: Sealed) -> None:
    """Its node was away for hours."""
    await site.put("n2", numbered(3, "late"))
    key = site.key(1, "n2")
    await site.seals.note_late(site.name, key, await site.objects.read(key))
    page = await site.page()
    assert sorted(texts_of(page)) == sorted([*LINES, "late 0", "late 1", "late 2"])
    assert tampering(page) == ([], [])
    await site.summaries.write(site.name)
    metadata = json.loads(await site.objects.read(site.metadata_key))
    assert metadata["nodes"] == ["n1", "n2"]
    await site.change(key, chunk_of(b"forged\n"))
    notes, gaps = tampering(await site.forget().page())
    assert (len(notes), len(gaps)) == (1, 1)


@pytest.mark.spec("LOG-3")
async def test_what_was_tampered_with_is_never_sealed_anew(site: Sealed) -> None:
    before = await site.objects.read(site.metadata_key)
    await site.change(site.key(2), _other_text(await site.objects.read(site.key(2))))
    await site.change(site.key(1, "n2"), chunk_of(b"forged\n", last=True))
    fresh = site.forget()
    fresh.summaries.note_remembered()
    fresh.clock.advance(60)
    await fresh.summaries.process_due()
    assert await fresh.objects.read(site.metadata_key) == before


@pytest.mark.spec("LOG-9")
async def test_a_download_breaks_off_rather_than_be_short(site: Sealed) -> None:
    query = LogQuery(nodes=("n1",), stream=(LogKind.STDOUT,))
    end, pieces = await site.reading.raw(ALICE, "7", query, "batch")
    assert len(b"".join([each async for each in pieces])) == end
    changed = site.objects._objects[site.key(3)]
    await site.change(site.key(3), _flipped(changed[0]))
    _, pieces = await site.reading.raw(ALICE, "7", query, "batch")
    with pytest.raises(DataUnavailable, match="changed or removed in the object store"):
        [each async for each in pieces]
    await site.change(site.key(3), None)
    with pytest.raises(DataUnavailable, match="not what was sealed"):
        await site.reading.raw(ALICE, "7", query, "batch")


@pytest.mark.spec("LOG-6")
async def test_a_second_range_of_a_chunk_reads_its_frames_alone() -> None:
    site = Sealed()
    await site.put("n1", [(1.0, noise(number) + b"\n") for number in range(3000)], chunk_lines=3000)
    await site.summaries.write(site.name)
    whole = len(await site.objects.read(site.key(1)))
    await site.page(offset=1000, limit=1)
    site.objects.read_bytes = 0
    await site.page(offset=570_000, limit=1)
    assert site.objects.read_bytes < whole / 2


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
@given(st.integers(1, 5), st.data())
async def test_whatever_byte_is_changed_no_line_is_shown_that_was_not_written(
    number: int, data: st.DataObject
) -> None:
    site = await Sealed().sealed()
    content = bytearray(await site.objects.read(site.key(number)))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    await site.change(site.key(number), bytes(content))
    page = await site.page()
    shown = texts_of(page)
    begin, end = 30 * (number - 1), 30 * number
    assert shown == LINES[:begin] + LINES[end:]
    assert tampering(page)[1] == [(_offset(begin), _offset(end) - _offset(begin))]


async def test_a_seal_with_a_node_that_no_key_can_name_does_not_hold() -> None:
    site = await Sealed().sealed()
    told = json.loads(await site.objects.read(site.metadata_key))
    told["streams"][0]["node"] = "n" * 5000
    await site.change(site.metadata_key, json.dumps(told).encode())
    with pytest.raises(BrokenSeal):
        await site.seals.of(site.name)


@pytest.mark.parametrize("text", [b'{"x":%s,"streams":[]}', b'{"streams":[%s]}', b'{"key":%s}'])
async def test_a_seal_that_nests_too_deeply_does_not_hold(text: bytes) -> None:
    site = await Sealed().sealed()
    content = text % DEEP
    await site.change(site.metadata_key, content)
    with pytest.raises(BrokenSeal):
        await site.seals.of(site.name)
    late = f"{site.name.prefix}/late/stdout/n1/chunk_000000.log.zst"
    await site.objects.put(late, content)
    assert not await site.seals.is_late(site.name, site.key(0), "d")
