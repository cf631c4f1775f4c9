"""While a node may keep no more the file is the buffer; what is cut from it then is told of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.features.logs.node.capture import JobCapture, Stream
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import FileTail
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.logs.test_spool import HEAD, Writer


class Narrow:
    """A stream on a node whose room comes and goes."""

    def __init__(self, folder: Path) -> None:
        self.writer = Writer(folder)
        self.spool = StreamSpool(folder / "spool", HEAD)
        tail = FileTail(os.open(self.writer.path, os.O_RDONLY), None, 0)
        self.stream = Stream(tail, self.spool, late=False)
        self.full = False
        self.capture = JobCapture("7", ManualClock(), lambda: not self.full, lambda: None)
        self.capture.add(self.stream)

    def look(self) -> None:
        while self.capture._round():
            pass


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Narrow]:
    narrow = Narrow(tmp_path)
    yield narrow
    narrow.stream.tail.close()
    narrow.spool.close()


@pytest.mark.spec("LOG-3")
def test_what_waits_in_the_file_is_read_when_there_is_room(job: Narrow) -> None:
    job.full = True
    job.writer.write(b"a\nb\n")
    job.look()
    assert job.spool.end.offset == 0
    assert job.stream.trouble == "the spool is full"
    assert job.capture._written_bytes() == 4, "which is no quiet job"
    job.full = False
    job.look()
    assert (job.spool.end.offset, job.stream.trouble, job.spool.gaps()) == (4, "", ())


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("after", [b"", b"x\n", b"much longer than it was before\n"])
def test_a_file_cut_while_there_was_no_room(job: Narrow, after: bytes) -> None:
    """The gap has the size of what was seen and never read, and stands where it is missing."""
    job.writer.write(b"first\n")
    job.look()
    job.full = True
    job.writer.write(b"never read\n")
    job.look()
    os.truncate(job.writer.path, 0)
    job.look()
    job.writer.write(after)
    job.look()
    job.full = False
    job.look()
    (gap,) = job.spool.gaps()
    assert (gap.at.offset, gap.lost_bytes) == (6, 11)
    assert job.spool.end.offset == 6 + len(after)
