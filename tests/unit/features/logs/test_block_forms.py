"""One stream in each of its forms: the same records, whatever is stored and asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.call import StreamCall
from lattice.base.events import BadEvents
from lattice.client.record_stream import StreamReconnect
from lattice.domain.logs import LONGEST_LINE_BYTES, Gap, GapCause, LogKind, Position
from lattice.features.logs import operations
from lattice.features.logs.block_reader import best_format
from lattice.features.logs.blocks import MEDIA_TYPE, BlockWriter, LinesFrame, PackedLines
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogQuery, NoteKind
from lattice.features.logs.service import frames
from lattice.features.logs.service.records import BLOCKS, DECODED, PACKED_BLOCKS, RecordForm
from lattice.wire.events import EventStream
from tests.unit.features.logs.test_reading import ALICE, Site, numbered

FORMS = {"events": DECODED, "blocks": BLOCKS, "packed": PACKED_BLOCKS}
Lines = Sequence[tuple[float, bytes]]


async def sent(site: Site, form: RecordForm, *, step_s: float = 0.0, **query: Any) -> list[bytes]:
    """What a server sends; `step_s` passes with each record."""
    records = await site.reading.stream(ALICE, "7", LogQuery(**query), form)

    async def passing() -> AsyncIterator[tuple[Any, str]]:
        async for each in records:
            yield each
            site.clock.advance(step_s)

    async def fine() -> None:
        pass

    body: list[bytes] = []

    async def send(message: Any) -> None:
        body.append(message.get("body", b""))

    writer = None if form is DECODED else BlockWriter(msgspec.json.encode)
    defects: list[BaseException] = []
    stream = EventStream(passing(), "r-1", fine, defects.append, writer=writer)
    await stream.stream_response(send)
    assert not defects
    return body


def call(**changes: Any) -> StreamCall[Any]:
    return operations.stream_logs("7", signs_of_life=True)._replace(**changes)


def opened(form: RecordForm, **changes: Any) -> StreamReconnect[Any]:
    one = StreamReconnect(call(**changes))
    one.opened("text/event-stream" if form is DECODED else MEDIA_TYPE)
    return one


def taken(one: StreamReconnect[Any], body: list[bytes]) -> list[Any]:
    found = [each for piece in body for each in one.feed(piece, "u")]
    # The server's sign of life has the time of the client.
    return [each for each in found if not (isinstance(each, LogNote) and "server" in each.words)]


async def in_all_forms(site: Site, **query: Any) -> list[Any]:
    """The records, after a check that every form has the same."""
    found = {}
    for name, form in FORMS.items():
        one = opened(form)
        found[name] = taken(one, await sent(site, form, **query))
        assert one.ended, name
    assert found["blocks"] == found["events"]
    assert found["packed"] == found["events"]
    return found["events"]


def text_of(records: Sequence[Any]) -> str:
    return "".join(each.text for each in records if isinstance(each, LogBlock))


def cut_anywhere(text: bytes, size: int) -> Lines:
    """A read each second, wherever a line ends."""
    return [(at // size, text[at : at + size]) for at in range(0, len(text), size)]


TEXT = st.lists(
    st.sampled_from(
        [b"a", b"bc", b"\n", b"\n\n", b"10%\r20%\r", b"\xff\xfe", "日".encode(), b"\t"]
    ),
    max_size=120,
).map(b"".join)


@pytest.mark.spec("LOG-4", "LOG-6")
@given(text=TEXT, size=st.integers(1, 5))
async def test_text_that_was_cut_anywhere(text: bytes, size: int) -> None:
    site = Site()
    await site.put("n1", cut_anywhere(text, size))
    records = await in_all_forms(site)
    assert text_of(records) == text.decode("utf-8", "backslashreplace")


@pytest.mark.spec("LOG-4", "LOG-6")
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"tail": 25},
        {"tail": 1},
        {"offset": 100},
        {"grep": "7"},
        {"exclude": "[1-8]$"},
        {"limit": 0, "nodes": ("n1",)},
        {"since": 12.0},
        {"until": 47.5},
        {"since": 12.5, "until": 13.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [9, 35])
async def test_every_choice_of_lines(query: dict[str, Any], size: int) -> None:
    site = Site()
    text = b"".join(line for _, line in numbered(95))
    await site.put("n1", cut_anywhere(text, size))
    for name in ("since", "until"):
        if name in query:
            query = query | {name: site.began + timedelta(seconds=query[name])}
    assert text_of(await in_all_forms(site, **query))


@pytest.mark.spec("LOG-6")
async def test_a_range_without_filters_is_sent_as_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, expanded = Site(), 0
    await site.put("n1", numbered(95))
    expand = frames.expand

    def counted(*given: Any) -> bytes:
        nonlocal expanded
        expanded += 1
        return expand(*given)

    monkeypatch.setattr(frames, "expand", counted)

    async def packed(**query: Any) -> int:
        records = await site.reading.stream(ALICE, "7", LogQuery(**query), PACKED_BLOCKS)
        return sum([isinstance(record, PackedLines) async for record, _ in records])

    assert await packed() == 10
    assert expanded <= 2, "only where a cursor needs the end of a line"
    assert await packed(since=site.began + timedelta(seconds=35)) == 6
    assert await packed(until=site.began + timedelta(seconds=35)) == 3
    assert await packed(grep="line") == 0
    await site.put("n2", numbered(5))
    assert await packed() == 0, "merged by the times of their reads"


@pytest.mark.spec("LOG-7")
async def test_streams_that_are_merged() -> None:
    site = Site()
    await site.put("n1", numbered(50, "a", step_s=2.0))
    await site.put("n2", numbered(50, "b", step_s=3.0), source="0.4")
    await site.put("n1", numbered(9, "err"), kind=LogKind.STDERR)
    records = await in_all_forms(site)
    times = [each.time for each in records if isinstance(each, LogBlock)]
    assert times == sorted(times)
    for query in ({"tail": 7}, {"ranks": (4,)}, {"stream": (LogKind.STDERR,)}):
        assert await in_all_forms(site, **query)


@pytest.mark.spec("LOG-2")
async def test_labelled_lines() -> None:
    site = Site()
    lines = [(n, b"%d: line %d\n" % (n % 3, n)) for n in range(40)]
    await site.put("n1", lines, labelled=True)
    assert {each.rank for each in await in_all_forms(site) if isinstance(each, LogBlock)} == {
        0,
        1,
        2,
    }
    assert await in_all_forms(site, ranks=(1,))


async def test_late_lines() -> None:
    site = Site()
    await site.put("n1", numbered(25), late=True)
    blocks = [each for each in await in_all_forms(site) if isinstance(each, LogBlock)]
    assert all(each.late for each in blocks)


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("at", [0, 3, 70, 73, 140, 210])
async def test_a_gap_breaks_lines_in_every_form(at: int) -> None:
    """Within a frame, at its end, and at the end of a chunk."""
    site = Site()
    text = b"".join(b"lin %02d\n" % number for number in range(40))
    gap = Gap(Position(at, text.count(b"\n", 0, at)), GapCause.TRUNCATED, 1234, site.ms(at // 7))
    await site.put("n1", cut_anywhere(text, 7), gaps=(gap,))
    records = await in_all_forms(site)
    assert text_of(records) == text.decode()
    assert [each.offset for each in records if isinstance(each, LogGap)] == [at]


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("size", [LONGEST_LINE_BYTES // 4, LONGEST_LINE_BYTES + 77])
async def test_very_long_lines_are_cut(size: int) -> None:
    site = Site()
    text = b"short\n" + b"x" * (3 * LONGEST_LINE_BYTES) + b"\nlast\n"
    await site.put("n1", cut_anywhere(text, size), chunk_lines=3)
    blocks = [each for each in await in_all_forms(site) if isinstance(each, LogBlock)]
    assert sum(each.cut for each in blocks) == 1
    assert text_of(blocks) == "short\n" + "x" * LONGEST_LINE_BYTES + "\nlast\n"


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("frame_lines", [b"", b"no end", b"one\nno end"])
async def test_a_last_line_without_its_feed(frame_lines: bytes) -> None:
    site = Site()
    await site.put("n1", [*cut_anywhere(b"line 1\nline 2\n" * 20, 9), (99.0, frame_lines or b"x")])
    records = await in_all_forms(site)
    assert text_of(records).endswith("x" if not frame_lines else "no end")


@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_every_cursor_continues_without_a_lost_or_torn_line(form: RecordForm) -> None:
    site = Site()
    text = b"".join(line for _, line in numbered(95))
    await site.put("n1", cut_anywhere(text, 9))
    body = await sent(site, form, step_s=2.0)
    one = opened(form)
    cursors: dict[str, int] = {}
    lines = 0
    for piece in body:
        for each in one.feed(piece, "u"):
            lines += each.count if isinstance(each, LogBlock) else 0
        cursors[one.cursor] = lines
    del cursors[""]
    assert len(cursors) > (3 if form is not DECODED else 30)
    for cursor, had in cursors.items():
        again = taken(opened(form), await sent(site, form, cursor=cursor))
        blocks = [each for each in again if isinstance(each, LogBlock)]
        seqs = [each.seq for each in blocks]
        assert not seqs or seqs[0] <= had, "no line is left out"
        whole = b"".join(text.splitlines(keepends=True)[seqs[0] :]) if seqs else b""
        assert text_of(blocks).encode() == whole, "and none is torn"


@pytest.mark.spec("LOG-3")
async def test_a_stored_frame_that_is_damaged_is_read_again_expanded_and_shown_as_a_gap() -> None:
    site = Site()
    await site.put("n1", numbered(95))
    key = next(key for key in site.objects._objects if key.endswith("000002.log.zst"))
    content, _ = site.objects._objects[key]
    damaged = bytearray(content)
    damaged[20] ^= 0xFF
    await site.objects.delete(key)
    await site.objects.put(key, bytes(damaged))
    one = opened(PACKED_BLOCKS)
    assert ";zstd=1" in one.request.accept
    first: list[Any] = []
    body = b"".join(await sent(site, PACKED_BLOCKS))
    with pytest.raises(BadEvents):
        first.extend(one.feed(body, "u"))
    assert "zstd" not in one.request.accept
    assert MEDIA_TYPE in one.request.accept
    one.opened(MEDIA_TYPE)
    again = dict(one.request.params).get("cursor", "")
    records = [*first, *taken(one, await sent(site, BLOCKS, cursor=again))]
    gaps = [each for each in records if isinstance(each, LogGap)]
    assert [each.cause for each in gaps] == [GapCause.UNREADABLE]
    assert text_of(records).count("\n") == 65
    assert text_of(records).endswith("line 94\n")


async def test_a_form_that_can_not_be_read_at_all_gives_way_to_events() -> None:
    one = opened(PACKED_BLOCKS)
    for accept in (f"{MEDIA_TYPE}, text/event-stream", "text/event-stream"):
        with pytest.raises(BadEvents):
            list(one.feed(b"B\xff\xff\xff\xff", "u"))
        assert one.request.accept == accept
        one.opened(MEDIA_TYPE)


@pytest.mark.spec("LOG-4")
@given(text=TEXT, size=st.integers(1, 5))
async def test_blocks_of_bytes_hold_the_same_lines(text: bytes, size: int) -> None:
    site = Site()
    await site.put("n1", cut_anywhere(text, size))
    for form in (BLOCKS, PACKED_BLOCKS):
        one = opened(form, binary=best_format(is_decoding=False))
        found = taken(one, await sent(site, form))
        blocks = [each for each in found if isinstance(each, LinesFrame)]
        assert b"".join(each.text for each in blocks) == text
        decoded = [each for block in blocks for each in block.records()]
        events = taken(opened(DECODED), await sent(site, DECODED))
        assert decoded == [each for each in events if isinstance(each, LogBlock)]


@pytest.mark.spec("LOG-4")
@given(text=TEXT, size=st.integers(1, 9), cuts=st.lists(st.floats(0, 1), max_size=4))
async def test_connections_that_are_cut_anywhere(text: bytes, size: int, cuts: list[float]) -> None:
    site = Site()
    await site.put("n1", cut_anywhere(text, size))
    one = opened(PACKED_BLOCKS)
    found: list[Any] = []
    left = list(cuts)
    while not one.ended:
        cursor = dict(one.request.params).get("cursor", "")
        body = b"".join(await sent(site, PACKED_BLOCKS, step_s=2.0, cursor=cursor))
        body = body[: int(len(body) * left.pop())] if left else body
        found += taken(one, [body])
        if not one.ended:
            found += one.lost("cut", "u")
            one.opened(MEDIA_TYPE)
    assert text_of(found) == text.decode("utf-8", "backslashreplace")
    kinds = [each.kind for each in found if isinstance(each, LogNote)]
    assert kinds.count(NoteKind.DISCONNECTED) <= len(cuts)
