"""Chunks: what is written is read back, by anyone with zstd; what is torn or forged is refused."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.zstd import zstd
from lattice.domain.logchunk import (
    FRAME_BYTES,
    MOST_MARKS,
    BadChunk,
    ChunkIndex,
    Frame,
    compress,
    expand,
    frames_of,
    gap_records,
    index_frame,
    pack_marks,
    pieces_of,
    read_index,
    unpack_marks,
    verify,
)
from lattice.domain.logs import Gap, GapCause, LogKind, Position

TEXTS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def chunk_of(
    *texts: bytes, offset: int = 0, line: int = 0, gaps: tuple[Gap, ...] = (), last: bool = False
) -> bytes:
    frames, stored = [], b""
    for number, text in enumerate(texts):
        packed = compress(text)
        marks = pack_marks([(len(text), 1000 + number)])
        frames.append(Frame(len(packed), len(text), text.count(b"\n"), marks))
        stored += packed
    index = ChunkIndex(
        node="n1",
        job_id=7,
        started=1.5,
        kind=LogKind.STDOUT,
        source="batch",
        offset=offset,
        line=line,
        frames=tuple(frames),
        gap_records=gap_records(gaps),
        last=last,
        sha256=hashlib.sha256(stored).hexdigest(),
    )
    return stored + index_frame(index)


@pytest.mark.spec("LOG-1")
@given(TEXTS)
def test_what_is_written_is_read_back_and_any_zstd_reads_it(texts: list[bytes]) -> None:
    chunk = chunk_of(*texts, offset=5, line=2)
    index = verify(chunk)
    whole = b"".join(texts)
    assert b"".join(text for _, text in frames_of(chunk, index)) == whole
    assert zstd.decompress(chunk) == whole
    assert index.end == Position(5 + len(whole), 2 + whole.count(b"\n"))


@given(TEXTS)
def test_pieces_join_and_count(texts: list[bytes]) -> None:
    chunk = chunk_of(*texts)
    index = verify(chunk)
    at = index.begin
    for placed, text in frames_of(chunk, index):
        for piece in pieces_of(placed, text):
            assert piece.at == at
            at = piece.end
    assert at == index.end


def test_gaps_are_kept() -> None:
    gap = Gap(Position(3, 1), GapCause.TRUNCATED, None, 1000)
    assert verify(chunk_of(b"a\nb", gaps=(gap,))).gaps == (gap,)


@pytest.mark.spec("LOG-1")
@given(TEXTS, st.data())
def test_a_chunk_with_anything_changed_is_refused_or_the_same(
    texts: list[bytes], data: st.DataObject
) -> None:
    chunk = bytearray(chunk_of(*texts))
    place = data.draw(st.integers(0, len(chunk) - 1))
    chunk[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        index = verify(bytes(chunk))
    except BadChunk:
        return
    assert b"".join(text for _, text in frames_of(bytes(chunk), index)) == b"".join(texts)


@given(TEXTS, st.integers(0, 400))
def test_a_torn_chunk_is_refused(texts: list[bytes], missing: int) -> None:
    chunk = chunk_of(*texts)
    torn = chunk[: len(chunk) - 1 - missing]
    with pytest.raises(BadChunk):
        verify(torn)


@given(st.binary(max_size=300))
def test_whatever_is_read_only_bad_chunk_is_raised(noise: bytes) -> None:
    with pytest.raises(BadChunk):
        read_index(noise, len(noise))


@pytest.mark.spec("LOG-1")
def test_nothing_is_unpacked_beyond_what_the_index_admits() -> None:
    """Attack 24: a small frame of very many zeros."""
    bomb = zstd.compress(b"\0" * (64 * 1024 * 1024))
    with pytest.raises(BadChunk):
        expand(bomb, Frame(len(bomb), FRAME_BYTES, 0, (FRAME_BYTES, 1)))


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=2000))
def test_marks_cover_the_text_and_never_say_too_early(steps: list[tuple[int, int]]) -> None:
    marks, size, time_ms = [], 0, 1_700_000_000_000
    for more, later in steps:
        size, time_ms = size + more, time_ms + later
        marks.append((size, time_ms))
    read = unpack_marks(pack_marks(marks))
    assert len(read) <= MOST_MARKS + 1
    assert read[-1] == marks[-1]

    def time_of(place: int, among: list[tuple[int, int]]) -> int:
        return next(time for end, time in among if place < end)

    for place in range(0, size, max(1, size // 20)):
        assert time_of(place, read) >= time_of(place, marks)
