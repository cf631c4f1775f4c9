"""The open chunk: text is on disk first, and a frame that is being compressed is never lost."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lattice.domain.logchunk import FRAME_BYTES
from lattice.domain.logs import Position
from lattice.features.logs.node import openchunk
from lattice.features.logs.node.feedmessages import TEXT_BYTES
from lattice.features.logs.node.openchunk import OpenChunk
from lattice.features.logs.node.tail import MOST_AT_ONCE
from tests.unit.features.logs.test_spool import PLAIN, LateFrame


def lines(mark: bytes, size: int = MOST_AT_ONCE) -> bytes:
    line = mark * 15 + b"\n"
    return line * (size // len(line))


def text_of(chunk: OpenChunk) -> bytes:
    text = b""
    while pieces := chunk.pieces(len(text)):
        assert pieces[0].at == Position(len(text), text.count(b"\n"))
        text += b"".join(each.text for each in pieces)
    return text


def killed(folder: Path) -> OpenChunk:
    """The chunk as the next process finds it, if this one were killed now."""
    copy = folder.with_name(folder.name + "+")
    shutil.copytree(folder, copy)
    return OpenChunk(copy, Position(), PLAIN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "spool"
    made.mkdir()
    return made


def test_a_read_fits_in_a_frame_and_in_a_message() -> None:
    assert min(FRAME_BYTES, TEXT_BYTES) >= MOST_AT_ONCE


@pytest.mark.spec("LOG-3")
def test_text_that_is_being_compressed_survives_a_kill(folder: Path) -> None:
    first, second, third = lines(b"a"), lines(b"b"), lines(b"c", 1000)
    with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
        chunk.add(first, 1)
        chunk.start_frame(LateFrame)
        chunk.add(second, 2)
        assert chunk.frames == []
        with closing(killed(folder)) as next_chunk:
            assert text_of(next_chunk) == first + second
            next_chunk.add(third, 3)
            next_chunk.make_frame()
            assert text_of(next_chunk) == first + second + third
            assert max(each.plain_bytes for each in next_chunk.frames) <= FRAME_BYTES
        assert text_of(chunk) == first + second
        assert chunk.end == Position(len(first + second), (first + second).count(b"\n"))


@pytest.mark.spec("LOG-3")
def test_tails_take_turns_and_stay_small(folder: Path) -> None:
    written = b""
    with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
        for number in range(10):
            text = lines(b"%d" % number)
            chunk.add(text, number + 1)
            chunk.start_frame(LateFrame)
            written += text
            for name in ("tail", "tail2"):
                assert (folder / f"open.{name}").stat().st_size < FRAME_BYTES + 100
        assert len(chunk.frames) == 9
        chunk.write_frame()
        assert len(chunk.frames) == 10
        assert text_of(chunk) == written
        assert [(folder / f"open.{name}").stat().st_size for name in ("tail", "tail2")] == [0, 0]


def test_a_piece_that_does_not_fit_begins_the_next_frame(folder: Path) -> None:
    sizes = (100_000, 100_000, 100_000, 200_000, 16)
    with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
        for number, size in enumerate(sizes):
            chunk.add(lines(b"%d" % number, size), number)
        chunk.make_frame()
        assert [len(each.marks) // 2 for each in chunk.frames] == [2, 1, 2]


def test_late_text_has_frames_of_its_own(folder: Path) -> None:
    with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
        chunk.add(b"late\n", 1, late=True)
        chunk.add(b"live\n", 2)
        chunk.make_frame()
        assert [each.late for each in chunk.frames] == [True, False]


@pytest.mark.spec("LOG-3")
def test_a_frame_that_finds_no_room_is_written_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = openchunk.append
    first, second = lines(b"a"), lines(b"b")

    def full(file: Any, *parts: bytes) -> None:
        if file.name.endswith("open.frames"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(file, *parts)

    with closing(OpenChunk(folder, Position(), PLAIN)) as chunk:
        chunk.add(first, 1)
        monkeypatch.setattr(openchunk, "append", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                chunk.make_frame()
        chunk.add(second, 2)
        with pytest.raises(OSError, match="No space"):
            chunk.add(b"there is no third frame\n" * 2000, 3)
        assert text_of(chunk) == first + second, "what is not kept is read again"
        monkeypatch.undo()
        with closing(killed(folder)) as next_chunk:
            assert text_of(next_chunk) == first + second
        chunk.make_frame()
        assert [each.plain_bytes for each in chunk.frames] == [len(first), len(second)]
        assert text_of(chunk) == first + second
