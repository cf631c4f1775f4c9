"""Lines of a job's file, that are there and that come, for one who has no server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import DataUnavailable, NotFound, Unavailable, UsageError
from lattice.domain.allocation import Allocation, ExitCode, State
from lattice.domain.logs import LogKind
from lattice.domain.outputs import NamedOutputs
from lattice.features.allocations.model import AllocationCard
from lattice.features.logs.model import LogBlock, LogGap, LogNote, NoteKind
from lattice.features.logs.operations import READ_LOGS, ReadLogsRequest, stream_logs
from lattice.local.log_files import JobLogs
from lattice.local.output_files import OutputFinder
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock


class Job:
    """A job with files, what was noted, and what happens while nothing comes."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.path = folder / "slurm-1.out"
        self.files: dict[LogKind, str] = {LogKind.STDOUT: str(self.path)}
        self.known = True
        self.allocation: Allocation = allocation(
            1, "alice", "research", started=self.clock.now() - timedelta(hours=1), nodes="n1"
        )
        self.notes: list[str] = []
        self.events: list[Callable[[], None]] = []
        self.away = False

    async def of(self, allocation: Allocation) -> NamedOutputs:
        if not self.known:
            raise NotFound(f"no {allocation.id}")
        return NamedOutputs("n1", self.files)

    async def card(self, reference: str) -> AllocationCard:  # noqa: ARG002
        if self.away:
            raise Unavailable("slurmctld does not answer")
        return AllocationCard(allocation=self.allocation, sources=())

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.events:
            self.events.pop(0)()

    def end(self) -> None:
        self.allocation = replace(
            self.allocation, state=State.COMPLETED, ended=self.clock.now(), exit_code=ExitCode(0)
        )

    @property
    def logs(self) -> JobLogs:
        return JobLogs(
            self.card,
            OutputFinder(self),
            self.clock,
            lambda work: asyncio.run(_awaited(work)),
            self.notes.append,
            sleep=self.sleep,
        )

    def write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text)
        moment = self.clock.now().timestamp()
        os.utime(self.path, (moment, moment))

    def read(self, **asked: Any) -> list[Any]:
        call = stream_logs("1", **asked)
        assert call.request is not None
        return list(self.logs.follow(call.request, call.reading()))  # type: ignore[arg-type]

    def text(self, **asked: Any) -> str:
        return "".join(each.text for each in self.read(**asked) if isinstance(each, LogBlock))


async def _awaited(work: Any) -> Any:
    return await work


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.spec("TRY-3")
def test_all_of_it_with_numbers_and_a_time_that_is_an_upper_bound(job: Job) -> None:
    job.write(b"one\ntwo\nbegun")
    whole, begun = job.read()
    assert (whole.text, whole.seq, whole.count, whole.late) == ("one\ntwo\n", 0, 2, True)
    assert (begun.text, begun.seq, begun.unfinished) == ("begun", 2, True)
    assert "srun --output" in job.notes[0]


@pytest.mark.parametrize(
    ("tail", "text", "seq"),
    [(0, "", 0), (1, "d\n", 3), (3, "b\nc\nd\n", 1), (9, "a\nb\nc\nd\n", 0)],
)
def test_the_last_lines(job: Job, tail: int, text: str, seq: int) -> None:
    job.write(b"a\nb\nc\nd\n")
    found = job.read(tail=tail)
    assert "".join(each.text for each in found) == text
    assert not found or found[0].seq == seq


def test_the_last_lines_of_a_large_file(job: Job) -> None:
    job.write(b"".join(b"%07d\n" % number for number in range(200_000)))
    assert job.text(tail=50_000).split("\n")[0] == "0150000"


def test_patterns(job: Job) -> None:
    job.write(b"loss=1\nok\nloss=nan\nloss=2\n")
    assert job.text(grep="loss", exclude="nan") == "loss=1\nloss=2\n"
    assert [each.seq for each in job.read(grep="loss", exclude="nan")] == [0, 3]
    assert job.text(grep="loss", tail=1) == "loss=2\n"
    with pytest.raises(UsageError, match="no regular expression"):
        job.read(grep="(")


def test_a_labelled_file_knows_its_ranks_and_another_does_not(job: Job) -> None:
    job.write(b"0: a\n1: b\n0: c\n")
    assert job.text(ranks=(0,)) == "0: a\n0: c\n"
    assert [each.rank for each in job.read()] == [0, 1, 0]
    job.path.write_bytes(b"0: a\nplain\n")
    with pytest.raises(UsageError, match="Which rank"):
        job.read(ranks=(0,))


@pytest.mark.spec("TRY-3")
def test_times_are_answered_only_where_the_file_decides(job: Job) -> None:
    job.write(b"old\n")
    written, hour = job.clock.now(), timedelta(hours=1)
    assert job.text(since=written - 2 * hour) == "old\n"
    assert job.text(until=written + hour) == "old\n"
    assert job.text(since=written + hour) == ""
    assert job.text(until=written - 2 * hour) == ""
    for asked in ({"since": written - hour / 2}, {"until": written - hour / 2}):
        with pytest.raises(UsageError, match="needs a server"):
            job.read(**asked)


def test_what_only_a_server_knows_is_refused(job: Job) -> None:
    job.write(b"a\n")
    for asked in ({"attempt": 7}, {"cursor": "abc"}, {"nodes": ("n9",)}):
        with pytest.raises(UsageError, match="server"):
            job.read(**asked)


@pytest.mark.spec("TRY-3")
def test_following_shows_each_line_once_until_the_job_ends(job: Job) -> None:
    job.write(b"one\n")
    job.events = [
        lambda: job.write(b"tw"),
        lambda: job.write(b"o\n"),
        job.end,
        lambda: job.write(b"last words"),
    ]
    found = job.read(follow=True)
    blocks = [each for each in found if isinstance(each, LogBlock)]
    assert "".join(each.text for each in blocks) == "one\ntwo\nlast words"
    assert [each.late for each in blocks] == [True, False, True]
    end = found[-1]
    assert isinstance(end, LogNote)
    assert (end.kind, end.words) == (NoteKind.END, "completed, exit 0:0")


def test_following_from_now_on(job: Job) -> None:
    job.write(b"old\n")
    job.events = [lambda: job.write(b"new\n"), job.end]
    assert job.text(follow=True, tail=0) == "new\n"


def test_a_file_that_comes_later_is_awaited(job: Job) -> None:
    job.events = [lambda: None, lambda: job.write(b"first\n"), job.end]
    assert job.text(follow=True) == "first\n"
    assert "does not exist yet" in job.notes[0]


def test_a_truncated_file_is_a_gap_of_unknown_size(job: Job) -> None:
    job.write(b"one\ntwo\n")

    def truncate() -> None:
        job.path.write_bytes(b"new\n")

    job.events = [truncate, job.end]
    found = job.read(follow=True)
    (gap,) = [each for each in found if isinstance(each, LogGap)]
    assert gap.lost_bytes is None
    blocks = [(each.seq, each.text) for each in found if isinstance(each, LogBlock)]
    assert blocks == [(0, "one\ntwo\n"), (2, "new\n")]


def test_signs_of_life_only_where_somebody_looks(job: Job) -> None:
    job.write(b"a\n")
    job.events = [*([lambda: None] * 50), job.end]
    alive = [each for each in job.read(follow=True, signs_of_life=True) if _is_alive(each)]
    assert alive
    job.events = []
    assert not [each for each in job.read(follow=True) if _is_alive(each)]


def _is_alive(record: Any) -> bool:
    return isinstance(record, LogNote) and record.kind is NoteKind.ALIVE


def test_while_slurm_is_away_the_file_is_read_on(job: Job) -> None:
    job.write(b"a\n")

    def leave() -> None:
        job.away = True

    def back() -> None:
        job.away = False
        job.end()

    job.events = [leave, *([lambda: None] * 20), lambda: job.write(b"b\n"), back]
    assert job.text(follow=True) == "a\nb\n"
    assert sum("does not answer" in each for each in job.notes) == 1


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_no_file_says_why_and_never_blocks(job: Job, kind: str) -> None:
    if kind == "folder":
        job.path.mkdir()
    elif kind == "pipe":
        os.mkfifo(job.path)
    with pytest.raises(DataUnavailable, match="There is no output of allocation 1 here"):
        job.read()


def test_a_job_that_waits_has_written_nothing(job: Job) -> None:
    job.allocation = replace(job.allocation, state=State.PENDING, started=None)
    with pytest.raises(DataUnavailable, match="has not started"):
        job.read()


def test_a_page_and_the_bytes(job: Job) -> None:
    job.write(b"a\nerror\nb\n")
    request = READ_LOGS.call(ReadLogsRequest(id="1", grep="error", limit=1)).request
    assert isinstance(request, ReadLogsRequest)
    page = asyncio.run(job.logs.page(request))
    (block,) = page.records
    assert isinstance(block, LogBlock)
    assert (block.seq, block.text) == (1, "error\n")
    pieces, end = job.logs.raw("1", "stdout", 2)
    assert (b"".join(pieces), end) == (b"error\nb\n", 10)


def test_an_old_job_is_found_by_its_default_name_if_owner_and_time_fit(job: Job) -> None:
    job.known = False
    job.end()
    job.allocation = replace(job.allocation, work_dir=str(job.folder))
    job.write(b"a\n")
    assert job.text() == "a\n"
    assert "fits by name, owner and time" in job.notes[0]
    other = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    os.utime(job.path, (other, other))
    with pytest.raises(DataUnavailable, match="does not know its output file any more"):
        job.read()


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("out-%j.txt", "out-1.txt"),
        ("%x-%u-%4j%%", "work-1-alice-0001%"),
        ("%N.log", "n1.log"),
    ],
)
def test_names_that_slurmdbd_has_are_filled_in(job: Job, pattern: str, name: str) -> None:
    job.known = False
    job.allocation = replace(job.allocation, work_dir=str(job.folder), output=pattern)
    job.path = job.folder / name
    job.write(b"a\n")
    assert job.text() == "a\n"


def test_a_name_with_an_unknown_field_is_not_guessed(job: Job) -> None:
    job.known = False
    job.allocation = replace(job.allocation, work_dir=str(job.folder), output="out-%a.txt")
    with pytest.raises(DataUnavailable, match="pattern"):
        job.read()
