"""Beyond its quota a job's output is counted and not kept; the count is exact, whatever happens.

The law: what is kept is the beginning of what was written, as long as the quota; and what is kept
and the largest gap told of together are all that was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lattice.base import failpoints
from lattice.domain.logchunk import ChunkIndex, frames_of, verify
from lattice.domain.logs import GapCause
from lattice.features.logs.node import openchunk, quota, spool
from lattice.features.logs.node.capture import JobCapture, Stream
from lattice.features.logs.node.quota import JobQuota
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import FileTail
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.logs.test_spool import FAILPOINTS, HEAD, Killed, Writer

QUOTA = 1000


class Bounded:
    """A job's stream and its quota, as the capture's thread has them, step by step."""

    def __init__(self, folder: Path, most_bytes: int = QUOTA) -> None:
        self.folder = folder
        self.writer = Writer(folder)
        self.most_bytes = most_bytes
        self.start()

    def start(self) -> None:
        kept = StreamSpool(self.folder / "spool", HEAD)
        tail = FileTail(os.open(self.writer.path, os.O_RDONLY), kept.mark, kept.end.offset)
        self.capture = JobCapture(
            "7", ManualClock(), lambda: True, lambda: None, JobQuota(self.most_bytes)
        )
        self.stream = Stream(tail, kept, late=False)
        self.capture.add(self.stream)

    def stop(self) -> None:
        self.stream.tail.close()
        self.stream.spool.close()

    def look(self) -> None:
        while self.capture._round():
            pass

    def end(self) -> None:
        self.look()
        assert self.capture._finish_streams()

    @property
    def chunks(self) -> list[tuple[ChunkIndex, bytes]]:
        found = []
        for _, path in self.stream.spool.closed():
            content = path.read_bytes()
            index = verify(content)
            found.append((index, b"".join(text for _, text in frames_of(content, index))))
        return found

    @property
    def kept(self) -> bytes:
        return b"".join(text for _, text in self.chunks)

    @property
    def told(self) -> list[int | None]:
        return [
            gap.lost_bytes
            for index, _ in self.chunks
            for gap in index.gaps
            if gap.cause is GapCause.QUOTA
        ]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Bounded]:
    bounded = Bounded(tmp_path)
    yield bounded
    bounded.stop()


@pytest.mark.spec("LOG-3")
def test_what_is_beyond_it_is_a_gap_of_its_size(job: Bounded) -> None:
    job.writer.write(b"x" * 1700)
    job.end()
    assert job.kept == b"x" * QUOTA
    assert job.told == [700]
    last, _ = job.chunks[-1]
    assert (last.last, last.end.offset) == (True, QUOTA)


def test_what_is_not_kept_counts_as_written(job: Bounded) -> None:
    """A flood beyond the quota is one still: it must not be watched as if it were quiet."""
    for written in (1700, 3400):
        job.writer.write(b"x" * 1700)
        job.look()
        assert job.capture._written_bytes() == written


@pytest.mark.spec("LOG-3")
def test_a_job_that_writes_as_much_as_it_may_has_no_gap(job: Bounded) -> None:
    job.writer.write(b"x" * QUOTA)
    job.end()
    assert (len(job.kept), job.told) == (QUOTA, [])


@pytest.mark.spec("LOG-3")
def test_it_is_told_at_once_and_when_it_has_doubled_and_at_the_end(job: Bounded) -> None:
    job.writer.write(b"x" * (QUOTA + 100))
    job.look()
    assert job.told == [100]
    for _ in range(95):
        job.writer.write(b"x" * 10)
        job.look()
    assert job.told == [100, 200, 400, 800]
    job.end()
    assert job.told == [100, 200, 400, 800, 1050]


@pytest.mark.spec("LOG-3")
def test_what_its_owner_truncates_meanwhile_stays_counted(job: Bounded) -> None:
    job.writer.write(b"a" * 1600)
    job.look()
    os.truncate(job.writer.path, 0)
    job.look()
    for _ in range(3):
        job.writer.write(b"b" * 50)
        job.look()
        os.truncate(job.writer.path, 0)
        job.look()
    job.writer.write(b"c" * 7)
    job.end()
    assert (job.kept, job.told[-1]) == (b"a" * QUOTA, 600 + 150 + 7)


@pytest.mark.spec("LOG-3")
def test_a_larger_quota_later_makes_no_gap_untrue(job: Bounded) -> None:
    job.writer.write(b"x" * 1500)
    job.look()
    job.stop()
    job.most_bytes = 10 * QUOTA
    job.start()
    job.writer.write(b"x" * 300)
    job.end()
    assert (len(job.kept), job.told[-1]) == (QUOTA, 800)


@pytest.mark.spec("LOG-3")
def test_all_streams_of_a_job_share_it(job: Bounded, tmp_path: Path) -> None:
    second = tmp_path / "err"
    second.write_bytes(b"e" * 600)
    kept = StreamSpool(tmp_path / "second", HEAD)
    stream = Stream(FileTail(os.open(second, os.O_RDONLY), None, 0), kept, late=False)
    job.capture.add(stream)
    job.writer.write(b"o" * 600)
    job.end()
    assert (job.stream.spool.end.offset, kept.end.offset) == (600, 400)
    stream.tail.close()
    kept.close()


@pytest.mark.spec("LOG-3")
def test_without_one_everything_is_kept(tmp_path: Path) -> None:
    job = Bounded(tmp_path, quota.NO_QUOTA)
    job.writer.write(b"x" * 5_000_000)
    job.end()
    assert (len(job.kept), job.told) == (5_000_000, [])
    job.stop()


class Overrunning(RuleBasedStateMachine):
    """Writes, truncations, looks and kills in any order, beyond the quota and around it."""

    def __init__(self) -> None:
        super().__init__()
        self._room = TemporaryDirectory()
        self.armed = ""
        self._before = failpoints.failpoint
        for module in (openchunk, spool, quota):
            module.failpoint = self._failpoint  # type: ignore[attr-defined]
        self.written = b""

    def teardown(self) -> None:
        for module in (openchunk, spool, quota):
            module.failpoint = self._before  # type: ignore[attr-defined]
        self.job.stop()
        self._room.cleanup()

    def _failpoint(self, name: str) -> None:
        if name == self.armed:
            self.armed = ""
            raise Killed

    @initialize()
    def begin(self) -> None:
        self.job = Bounded(Path(self._room.name))

    def _look(self) -> None:
        while True:
            try:
                self.job.look()
            except Killed:
                self._restart()
                continue
            return

    def _restart(self) -> None:
        self.job.stop()
        while True:
            try:
                self.job.start()
            except Killed:
                continue
            return

    @rule(size=st.sampled_from([1, 99, 400, 999, 1000, 1001, 3000]))
    def write(self, size: int) -> None:
        text = b"%04d" % (len(self.written) % 10_000) * (size // 4 + 1)
        self.job.writer.write(text[:size])
        self.written += text[:size]

    @rule()
    def look(self) -> None:
        self._look()

    @precondition(lambda self: not self.armed)
    @rule()
    def look_and_truncate(self) -> None:
        """The agent saw all that was there, and sees that it is gone, without a kill between."""
        self._look()
        self.job.writer.path.write_bytes(b"")
        self._look()

    @rule(name=st.sampled_from((*FAILPOINTS, "quota.gap.closed", "quota.anew.written")))
    def arm(self, name: str) -> None:
        self.armed = name

    @rule()
    def kill(self) -> None:
        self._restart()

    @precondition(lambda self: not self.armed)
    @rule()
    def count(self) -> None:
        self._look()
        if self.job.stream.overrun:
            self.job.stream.pass_over(1, end=True)
        self.job.stream.spool.close_chunk()
        told = [each or 0 for each in self.job.told]
        assert self.job.kept == self.written[:QUOTA]
        assert told == sorted(told)
        assert (told[-1] if told else 0) == max(0, len(self.written) - QUOTA)


TestOverrunning = Overrunning.TestCase
