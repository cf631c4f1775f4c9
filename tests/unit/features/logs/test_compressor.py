"""Frames are compressed in another thread than the one that reads, while somebody listens."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from lattice.base.zstd import zstd
from lattice.features.logs.node import compressor as compressing
from lattice.features.logs.node.capture import Added, JobCapture, Stream
from lattice.features.logs.node.compressor import FrameCompressor
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import MOST_AT_ONCE, FileTail
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.logs.test_spool import HEAD, LateFrame, Writer, text_of


class Job:
    """A job's file, its capture and one listener."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = Writer(folder)
        self.spool = StreamSpool(folder / "spool", HEAD)
        tail = FileTail(os.open(self.writer.path, os.O_RDONLY), None, 0)
        self.stream = Stream(tail, self.spool, late=False)
        self.events: list[str] = []
        self.capture = JobCapture(
            "7", ManualClock(), lambda: True, lambda: None, start_compression=self._start
        )
        self.capture.add(self.stream)

    def _start(self, text: bytes, *, sensitive: bool = False) -> Future[bytes]:
        assert not sensitive
        self.events.append("compressed")
        return LateFrame(text)

    def read(self) -> None:
        while self.capture._round():
            pass


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.stream.close()


@pytest.mark.spec("LOG-1")
def test_listeners_get_text_before_it_is_compressed(job: Job) -> None:
    job.capture.listen(lambda added: job.events.append("text" if added else "streams"))
    for _ in range(3):
        job.writer.write(b"0123456789abcde\n" * (MOST_AT_ONCE // 48))
        job.read()
    assert job.events == ["text"] * 3


@pytest.mark.spec("LOG-1")
def test_listeners_get_a_large_read_with_its_frame(job: Job) -> None:
    found: list[Added] = []
    job.capture.listen(lambda added: found.append(added) if added else None)
    text = b"0123456789abcde\n" * (3 * MOST_AT_ONCE // 16)
    job.writer.write(text)
    job.read()
    frames = [each.packed.result() for each in found if each.packed is not None]
    assert [zstd.decompress(each) for each in frames] == [each.text for each in found]
    assert b"".join(each.text for each in found) == text


@pytest.mark.spec("LOG-1")
def test_a_frame_with_text_of_two_reads_is_not_sent_for_one_of_them(job: Job) -> None:
    found: list[Added] = []
    job.capture.listen(lambda added: found.append(added) if added else None)
    job.writer.write(b"0123456789abcde\n" * 1000)
    job.read()
    job.writer.write(b"0123456789abcde\n" * (MOST_AT_ONCE // 16 - 500))
    job.read()
    assert [each.packed for each in found] == [None, None]
    assert len(job.spool._open.frames) == 1


@pytest.mark.spec("LOG-3")
def test_text_is_on_disk_before_listeners_get_it(job: Job) -> None:
    """Otherwise a kill and a truncation could change text that somebody has seen."""
    found: list[bytes] = []

    def listener(added: Added | None) -> None:
        assert added is not None
        copy = job.folder / f"copy-{len(found)}"
        shutil.copytree(job.spool.folder, copy)
        with closing(StreamSpool(copy, HEAD)) as next_spool:
            assert next_spool.end.offset == added.at.offset + len(added.text)
            assert next_spool.end.line == added.at.line + added.lines
            (piece,) = next_spool.pieces(added.at.offset)
            found.append(piece.text)

    job.capture.listen(listener)
    text = b"0123456789abcde\n" * (3 * MOST_AT_ONCE // 16) + b"the last line"
    job.writer.write(text)
    job.read()
    assert b"".join(found) == text


def test_without_listeners_the_capture_compresses_by_itself(job: Job) -> None:
    """Its thread may run at a lower priority, the other one does not."""
    job.writer.write(b"0123456789abcde\n" * (3 * MOST_AT_ONCE // 16))
    job.read()
    assert job.events == []
    assert len(job.spool._open.frames) == 3


def test_nothing_is_left_to_write_when_a_job_is_quiet(job: Job) -> None:
    job.capture.listen(lambda _: None)
    text = b"0123456789abcde\n" * (2 * MOST_AT_ONCE // 16)
    job.writer.write(text)
    job.read()
    assert len(job.spool._open.frames) == 2
    assert text_of(job.stream) == text


def test_frames_are_compressed_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    compress = compressing.compress

    def noted(text: bytes) -> bytes:
        threads.append(threading.current_thread())
        return compress(text)

    monkeypatch.setattr(compressing, "compress", noted)
    made = FrameCompressor()
    assert zstd.decompress(made.start(b"one\n").result()) == b"one\n"
    made.close()
    assert zstd.decompress(made.start(b"two\n").result()) == b"two\n"
    assert threads[0] is not threading.current_thread()
    assert threads[1] is threading.current_thread(), "it is closed"
