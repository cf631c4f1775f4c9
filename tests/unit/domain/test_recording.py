"""Recordings: every byte comes back, and every harm to a chunk is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.asciicast import (
    BadCast,
    CastEvent,
    CastHeader,
    CastKind,
    event_line,
    plain_lines,
    read_event,
    read_header,
)
from lattice.domain.recording import (
    Anchor,
    BadRecording,
    ChunkText,
    MissingChunk,
    RecordingName,
    RecordingVerifier,
    closing_text,
    first_position,
    position_after,
    read_chunk,
    verify,
    write_chunk,
)
from lattice.domain.sealed import DataKey

KEY = DataKey(b"k" * 16, b"s" * 32)
NAME = RecordingName("lab", "42@1772366400", "a" * 32)
HEADER = CastHeader(columns=80, rows=24, terminal="xterm", timestamp=1_772_366_400, command="sh")
TIMES = st.integers(min_value=0, max_value=2_000_000)
EVENTS = st.lists(
    st.tuples(TIMES, st.sampled_from(list(CastKind)), st.binary(max_size=60)), max_size=12
)


def _events(raw: list[tuple[int, CastKind, bytes]], begin_us: int = 0) -> tuple[CastEvent, ...]:
    at_us, events = begin_us, []
    for pause_us, kind, data in raw:
        at_us += pause_us
        events.append(CastEvent(at_us, kind, data))
    return tuple(events)


def _recording(parts: list[tuple[CastEvent, ...]], name: RecordingName = NAME) -> list[bytes]:
    position, chunks = first_position(name), []
    for number, events in enumerate(parts):
        text = ChunkText(position.totals, events, None if number else HEADER)
        last = number == len(parts) - 1
        chunk, position = write_chunk(KEY, name, position, text, last=last)
        chunks.append(chunk.data)
    return chunks


def _output(*texts: bytes) -> list[tuple[CastEvent, ...]]:
    return [
        (CastEvent(at * 1000, CastKind.OUTPUT, text),) for at, text in enumerate(texts, start=1)
    ]


CHUNKS = _recording(_output(b"one", b"two", b"three", b"four", b"five"))
ANCHOR = Anchor(5, verify(NAME, enumerate(CHUNKS)).before)


@given(st.lists(EVENTS, min_size=1, max_size=5))
def test_every_byte_and_time_comes_back(raw: list[list[tuple[int, CastKind, bytes]]]) -> None:
    parts, at_us = [], 0
    for each in raw:
        parts.append(_events(each, at_us))
        at_us = parts[-1][-1].at_us if parts[-1] else at_us
    verifier = RecordingVerifier(NAME, key=KEY)
    found = []
    for number, chunk in enumerate(_recording(parts)):
        text = verifier.take(number, chunk)
        assert text is not None
        assert (text.header == HEADER) is (number == 0)
        found.append(text.events)
    verifier.finish()
    assert found == parts
    totals = verifier.position.totals
    everything = [each for part in parts for each in part]
    assert totals.events == len(everything)
    assert totals.output_bytes == sum(
        len(each.data) for each in everything if each.kind is CastKind.OUTPUT
    )


def test_a_chunk_shows_nothing_of_its_text() -> None:
    chunk = _recording(_output(b"marker " * 40))[0]
    assert b"marker" not in chunk
    assert b"xterm" not in chunk


@given(chunk=st.integers(0, len(CHUNKS) - 1), bit=st.integers(min_value=0))
def test_one_changed_bit_names_its_chunk(chunk: int, bit: int) -> None:
    changed = bytearray(CHUNKS[chunk])
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    harmed = [*CHUNKS[:chunk], bytes(changed), *CHUNKS[chunk + 1 :]]
    with pytest.raises(BadRecording) as caught:
        verify(NAME, enumerate(harmed), ANCHOR, KEY)
    assert caught.value.chunk == chunk


@given(chunk=st.integers(0, len(CHUNKS) - 1), bit=st.integers(min_value=0))
def test_without_a_key_a_change_is_found_too(chunk: int, bit: int) -> None:
    changed = bytearray(CHUNKS[chunk])
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    harmed = [*CHUNKS[:chunk], bytes(changed), *CHUNKS[chunk + 1 :]]
    with pytest.raises(BadRecording) as caught:
        verify(NAME, enumerate(harmed), ANCHOR)
    assert caught.value.chunk in {chunk - 1, chunk}


@pytest.mark.parametrize("key", [None, KEY], ids=["chain", "key"])
@pytest.mark.parametrize("anchor", [None, ANCHOR], ids=["alone", "anchored"])
@pytest.mark.parametrize("missing", range(len(CHUNKS)))
def test_a_missing_chunk_is_named(missing: int, anchor: Anchor | None, key: DataKey | None) -> None:
    rest = [(number, each) for number, each in enumerate(CHUNKS) if number != missing]
    with pytest.raises(MissingChunk) as caught:
        verify(NAME, rest, anchor, key)
    assert caught.value.chunk == missing


@given(st.permutations(range(len(CHUNKS))).filter(lambda order: order != list(range(5))))
def test_swapped_chunks_are_named(order: list[int]) -> None:
    first = next(at for at, each in enumerate(order) if each != at)
    with pytest.raises(BadRecording, match="names itself") as caught:
        verify(NAME, enumerate(CHUNKS[each] for each in order), ANCHOR)
    assert caught.value.chunk == first


@given(kept=st.integers(0, len(CHUNKS) - 1), size=st.integers(min_value=0))
def test_a_torn_chunk_is_named(kept: int, size: int) -> None:
    torn = CHUNKS[kept][: size % len(CHUNKS[kept])]
    with pytest.raises(BadRecording) as caught:
        verify(NAME, enumerate([*CHUNKS[:kept], torn]), ANCHOR, KEY)
    assert caught.value.chunk == kept


def test_a_recording_that_was_replaced_as_a_whole_is_not_the_anchored_one() -> None:
    other = _recording(_output(b"one", b"two", b"three", b"four", b"FIVE"))
    verify(NAME, enumerate(other), key=KEY)
    with pytest.raises(BadRecording, match="not the one that the audit log names") as caught:
        verify(NAME, enumerate(other), ANCHOR, KEY)
    assert caught.value.chunk == 4


def test_a_chunk_of_another_writing_does_not_follow() -> None:
    other = _recording(_output(b"one", b"TWO", b"three", b"four", b"five"))
    mixed = [*CHUNKS[:3], other[3], other[4]]
    with pytest.raises(BadRecording, match="does not follow") as caught:
        verify(NAME, enumerate(mixed), ANCHOR, KEY)
    assert caught.value.chunk == 3


@pytest.mark.parametrize(
    "other",
    [
        RecordingName("other", NAME.allocation, NAME.session),
        RecordingName(NAME.cluster, "43@1772366400", NAME.session),
        RecordingName(NAME.cluster, NAME.allocation, "b" * 32),
    ],
    ids=["cluster", "allocation", "session"],
)
@pytest.mark.parametrize("key", [None, KEY], ids=["chain", "key"])
def test_a_recording_under_another_name_is_refused(
    other: RecordingName, key: DataKey | None
) -> None:
    with pytest.raises(BadRecording) as caught:
        verify(other, enumerate(CHUNKS), key=key)
    assert caught.value.chunk == 0


def _after_the_end() -> bytes:
    position = position_after(KEY, NAME, CHUNKS[-1])
    return write_chunk(KEY, NAME, position, ChunkText(position.totals), last=True)[0].data


@pytest.mark.parametrize("chunk", range(len(CHUNKS) - 1))
def test_a_chunk_that_was_made_the_last_one_is_named(chunk: int) -> None:
    changed = bytearray(CHUNKS[chunk])
    changed[16] ^= 1
    with pytest.raises(BadRecording) as caught:
        verify(NAME, enumerate([*CHUNKS[:chunk], bytes(changed), *CHUNKS[chunk + 1 :]]))
    assert caught.value.chunk == chunk


def test_what_follows_the_last_chunk_is_refused() -> None:
    with pytest.raises(BadRecording, match="after the last"):
        verify(NAME, [*enumerate(CHUNKS), (5, _after_the_end())])
    short = Anchor(3, bytes(32))
    with pytest.raises(BadRecording) as caught:
        verify(NAME, enumerate(CHUNKS), short)
    assert caught.value.chunk == 2


def test_a_recorder_that_is_gone_leaves_a_recording_that_can_be_closed() -> None:
    durable = CHUNKS[:3]
    position = position_after(KEY, NAME, durable[-1])
    text = closing_text(position, HEADER, "agent_lost")
    last, end = write_chunk(KEY, NAME, position, text, last=True)
    assert verify(NAME, enumerate([*durable, last.data]), Anchor(4, end.before), KEY) == end
    assert read_chunk(KEY, NAME, last.data).reason == "agent_lost"
    assert end.totals.output_bytes == len(b"onetwothree")


def test_a_recording_without_a_durable_chunk_can_be_closed() -> None:
    position = first_position(NAME)
    text = closing_text(position, HEADER, "agent_lost")
    last, end = write_chunk(KEY, NAME, position, text, last=True)
    assert verify(NAME, [(0, last.data)], Anchor(1, end.before), KEY) == end


def test_a_session_that_never_began_is_anchored_with_no_chunk() -> None:
    verify(NAME, [], Anchor(0, NAME.first_link))


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_the_plain_recording_is_text_for_any_player(texts: list[bytes]) -> None:
    events = [CastEvent(at, CastKind.OUTPUT, text) for at, text in enumerate(texts)]
    first, *lines = plain_lines(HEADER, events)
    assert read_header(first) == HEADER
    shown = "".join(json.loads(line)[2] for line in lines)
    assert shown.encode().decode() == b"".join(texts).decode("utf-8", "replace")


def test_a_character_that_two_events_share_is_joined() -> None:
    halves = "é".encode()
    events = [CastEvent(at, CastKind.OUTPUT, halves[at : at + 1]) for at in range(2)]
    assert json.loads(list(plain_lines(HEADER, events))[1])[2] == "é"


NO_EVENTS = (
    *(b"", b"{}", b"[1]", b'[-1,"o",""]', b'[true,"o",""]', b'[1,"z",""]', b'[1,"oi",""]'),
    *(b'[1,"",""]', b'[1,"o",2]', b'[1e300,"o",""]', b'[1,"o","\\ud800"]', b"[" * 5000),
)


@pytest.mark.parametrize("line", NO_EVENTS, ids=range(len(NO_EVENTS)))
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(BadCast):
        read_event(line, 0)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"version":2,"term":{"cols":1,"rows":1},"timestamp":0}',
     b'{"version":3,"term":{"cols":0,"rows":1},"timestamp":0}',
     b'{"version":3,"term":{"cols":1,"rows":1},"timestamp":-1}',
     b'{"version":3,"term":[],"timestamp":1}',
     b'{"version":3,"term":{"cols":1,"rows":1,"type":7},"timestamp":1}'],
    ids=range(8),
)  # fmt: skip
def test_a_line_that_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(BadCast):
        read_header(line)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with pytest.raises(BadRecording):
        read_chunk(KEY, NAME, data)
    with pytest.raises(BadCast):
        read_event(b"!" + data, 0)


@given(TIMES, TIMES, st.binary(max_size=20))
def test_a_clock_that_goes_back_adds_no_time(at: int, before: int, data: bytes) -> None:
    event = CastEvent(at, CastKind.OUTPUT, data)
    assert read_event(event_line(event, before), before) == event._replace(at_us=max(at, before))
