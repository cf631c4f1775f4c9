"""What becomes of a job's files when nobody could look, or nobody would answer, for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.base.errors import DataUnavailable, LatticeError, NotFound, Unavailable
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import read_index
from lattice.domain.logs import GapCause, LogKind
from lattice.domain.nodejobs import (
    JobAppeared,
    JobChanged,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    NodeStep,
    ProcessId,
    StartSign,
    StepId,
    WatchPause,
)
from lattice.domain.outputs import OutputHolder
from lattice.domain.sealed import DataKey
from lattice.features.logs.node import collector as module
from lattice.features.logs.node import missed
from lattice.features.logs.node import opener as opening
from lattice.features.logs.node.collector import Collecting
from lattice.features.logs.node.intake import OutputAdmission, PastJob, PastJobs
from lattice.features.logs.node.writers import ProcessInfo, WriterCheck
from lattice.wire.v1 import logs_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.in_memory_outputs import Held, InMemoryOutputs
from tests.fakes.manual_clock import ManualClock

JOB = 7
STEPD, TASK = 20, 21


class Server:
    """The intake; `error` is its answer while it is set."""

    def __init__(self) -> None:
        self.error: LatticeError | None = None
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.asked: list[object] = []
        self.noted: list[tuple[float, int]] = []
        self.past: list[PastJob] = []
        self.complete = True
        self.since: list[float] = []
        """Of each question which jobs ended here."""
        self.path = ""
        """The file that Slurm names."""
        self.seal: JobSeal | None = None

    async def admit(
        self, job_id: int, started: float, pids: Sequence[int], *,
        kind: LogKind = LogKind.STDOUT, with_stored: bool = False,
    ) -> OutputAdmission:  # fmt: skip
        self.asked.append((started, tuple(pids), kind, with_stored))
        await self._answer()
        path = "" if pids or kind is LogKind.STDERR else self.path
        return OutputAdmission(str(job_id), path, seal=self.seal)

    async def admit_noted(
        self, job_id: int, started: float, *, until: float = 0.0, skip: int = 0,
        with_stored: bool = False,
    ) -> OutputAdmission:  # fmt: skip
        self.asked.append((started, with_stored))
        await self._answer()
        self.noted.append((until, skip))
        return OutputAdmission(str(job_id), since_ms=1, seal=self.seal)

    async def _answer(self) -> None:
        await self.hangs.wait()
        if self.error is not None:
            raise self.error

    async def seal_of(self, job_id: int, started: float) -> JobSeal | None:  # noqa: ARG002
        await self._answer()
        return self.seal

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        raise AssertionError(parts)

    async def past_jobs(self, since: float) -> PastJobs:
        self.since.append(since)
        await self._answer()
        ended = tuple(each for each in self.past if each.ended >= since)
        return PastJobs(ended, complete=self.complete)


class Jobs:
    """The jobs on the node, as told."""

    def __init__(self) -> None:
        self.jobs: Mapping[JobIdentity, NodeJob] = {}
        self.events: asyncio.Queue[JobEvent] = asyncio.Queue()
        self.absences: asyncio.Queue[WatchPause] = asyncio.Queue()

    async def ready(self) -> None:
        """At once."""

    async def changes(self) -> AsyncIterator[JobEvent]:
        while True:
            yield await self.events.get()

    async def reread(self, identity: JobIdentity) -> NodeJob | None:
        return self.jobs.get(identity)

    async def missed(self) -> WatchPause:
        return await self.absences.get()


class Site:
    """A node with a job of one task, which writes to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self.folder.mkdir()
        self.out = folder / "t0.out"
        self.out.write_text("one\n")
        self.clock = ManualClock()
        self.server = Server()
        self.outputs = InMemoryOutputs()
        self.jobs = Jobs()
        started = self.clock.now().timestamp()
        self.job = NodeJob(
            identity=JobIdentity("boot", JOB, 5, started),
            started_by=StartSign.FOLDER,
            steps=(NodeStep(StepId("0"), (), (ProcessId(TASK, 1),)),),
            daemons=(ProcessId(STEPD, 1),),
        )
        self.look: WriterCheck = self.see
        holder = OutputHolder(TASK, 1, 0, "0")
        self.outputs.held.append(Held(str(JOB), holder, self.out))

    @asynccontextmanager
    async def agent(self, *, patience_s: float = 60.0) -> AsyncIterator[Collecting]:
        """Killed at the end."""
        made = Collecting(
            "n1", self.folder, self.server, self.outputs, self.jobs,
            self.look, self.clock,
            stamps=self.clock, room=lambda: True, on_closed=lambda: None,
            patience_s=patience_s,
        )  # fmt: skip
        running = [asyncio.create_task(each()) for each in (made.run, made.take_up_missed)]
        try:
            yield made
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for each in made.spools():
                each.close()

    def see(self, pid: int) -> ProcessInfo | None:
        if pid == STEPD:
            return ProcessInfo(1, "slurmstepd", "slurmstepd: [7.0]")
        return ProcessInfo(STEPD, "python3")

    def appear(self) -> None:
        self.jobs.jobs = {self.job.identity: self.job}
        self.jobs.events.put_nowait(JobAppeared(self.job))

    def end(self) -> None:
        """Its processes are gone, and nobody can find what they had open."""
        self.outputs.held.clear()
        self.jobs.jobs = {}
        self.clock.advance(10)
        self.jobs.events.put_nowait(NodeJobEnded(self.job))

    def add(self, text: str) -> None:
        with self.out.open("a") as file:
            file.write(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(module, "_RETRY_S", (0.01,))
    monkeypatch.setattr(missed, "_RETRY_S", (0.01,))
    monkeypatch.setattr(missed, "_ROUNDS_S", (0.0, 0.01))
    monkeypatch.setattr(missed, "_MARK_S", 0.02)
    monkeypatch.setattr(opening, "_SOON_S", 0.0)
    return Site(tmp_path)


async def until(done: Callable[[], bool]) -> None:
    await eventually_async(done)


def streams(agent: Collecting) -> dict[str, bytes]:
    """All that was read, by the stream's name."""
    found = {}
    for spool in agent.spools():
        text, offset = b"", 0
        while pieces := spool.pieces(offset):
            text += b"".join(each.text for each in pieces)
            offset = pieces[-1].end.offset
        found[f"{spool.head.kind.value} {spool.head.source}"] = text
    return found


def over(agent: Collecting) -> bool:
    return bool(agent.followed) and all(each.capture.over for each in agent.followed)


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(
    "error", [Unavailable("No server."), NotFound("Slurm knows no such job yet.")]
)
async def test_a_job_that_ran_while_no_server_answered(site: Site, error: LatticeError) -> None:
    site.server.error = error
    async with site.agent() as agent:
        site.appear()
        await until(lambda: bool(site.outputs.noted))
        site.add("two\n")
        site.end()
        await asyncio.sleep(0.05)
        assert streams(agent) == {}
        site.server.error = None
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\ntwo\n"}
        assert site.server.noted == [(site.clock.now().timestamp(), 0)]


@pytest.mark.spec("LOG-3")
async def test_a_job_that_ended_while_a_server_thought(site: Site) -> None:
    site.server.hangs.clear()
    async with site.agent() as agent:
        site.appear()
        await until(lambda: bool(site.outputs.noted))
        site.end()
        site.server.hangs.set()
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\n"}


@pytest.mark.spec("LOG-3")
async def test_more_files_than_one_answer_brings(site: Site) -> None:
    """70 tasks with two files each, and one process that has more alone than can be asked for."""
    site.outputs.held.clear()
    tasks = range(100, 170)
    for pid in tasks:
        for descriptor in (1, 2):
            file = site.folder.parent / f"{pid}.{descriptor}"
            file.write_text(f"{pid} {descriptor}\n")
            site.outputs.held.append(Held(str(JOB), OutputHolder(pid, descriptor, pid - 100), file))
    for number in range(65):
        file = site.folder.parent / f"many.{number}"
        file.touch()
        site.outputs.held.append(Held(str(JOB), OutputHolder(TASK, number), file))
    every = tuple(ProcessId(pid, 1) for pid in (TASK, *tasks))
    site.job = replace(site.job, steps=(NodeStep(StepId("0"), (), every),))
    wanted = {
        f"{kind} 0.{pid - 100}": f"{pid} {descriptor}\n".encode()
        for pid in tasks
        for descriptor, kind in ((1, "stdout"), (2, "stderr"))
    }
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == wanted)


@pytest.mark.spec("LOG-3")
async def test_a_job_that_was_answered_in_time_needs_no_notes(site: Site) -> None:
    async with site.agent() as agent:
        site.appear()
        await until(lambda: bool(streams(agent)))
        site.end()
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\n"}
        assert site.server.noted == []


@pytest.mark.spec("LOG-3")
async def test_a_job_that_is_quiet_after_a_flood_is_watched_again(site: Site) -> None:
    site.outputs.watching = True
    async with site.agent() as agent:
        site.appear()
        await until(lambda: bool(streams(agent)))
        (followed,) = agent.followed
        await until(lambda: TASK in followed.asked)
        followed.ask_anew()
        await until(lambda: TASK in followed.asked and not followed.unwatched)
        assert len(followed.capture._noticing._watches) == 2
        site.end()
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\n"}, "and read once"


@pytest.mark.spec("LOG-3")
async def test_the_rest_of_a_file_whose_writer_ended_while_no_agent_was_there(site: Site) -> None:
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"one\n"})
    site.add("two\n")
    site.end()
    site.jobs = Jobs()
    async with site.agent() as agent:
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\ntwo\n"}
        assert _gaps(site) == []


@pytest.mark.spec("LOG-3")
async def test_the_rest_of_a_step_that_ended_so_while_the_job_goes_on(site: Site) -> None:
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"one\n"})
    site.add("two\n")
    site.outputs.held.clear()
    site.job = replace(site.job, steps=(), daemons=())
    site.jobs = Jobs()
    site.appear()
    async with site.agent() as agent:
        # At the end of the looks, or with the job.
        await asyncio.sleep(0.05)
        site.end()
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\ntwo\n"}
        assert _gaps(site) == []


@pytest.mark.spec("LOG-3")
async def test_a_file_that_is_gone_by_then_is_a_gap_of_unknown_size(site: Site) -> None:
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"one\n"})
    site.end()
    site.jobs = Jobs()
    site.out.rename(site.out.with_suffix(".moved"))
    async with site.agent() as agent:
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"one\n"}
    assert _gaps(site) == [(GapCause.UNREADABLE.value, None, 4)]


def _gaps(site: Site) -> list[tuple[str, int | None, int]]:
    """Of the chunks that wait."""
    found: list[tuple[str, int | None, int]] = []
    for chunk in sorted(site.folder.rglob("*.chunk")):
        content = chunk.read_bytes()
        gaps = read_index(content, len(content)).gaps
        found += [(each.cause.value, each.lost_bytes, each.at.offset) for each in gaps]
    return found


@pytest.mark.spec("LOG-3")
async def test_a_process_that_can_not_be_read_costs_no_other_job_its_output(site: Site) -> None:
    """Another's file is followed meanwhile; after the thaw so is its own."""
    thawed = threading.Event()
    held = set[int]()

    def look(pid: int) -> ProcessInfo | None:
        if pid == TASK:
            held.add(pid)
            thawed.wait()
        return site.see(pid)

    site.look = look
    others = replace(
        site.job,
        identity=replace(site.job.identity, job_id=8, inode=6),
        steps=(NodeStep(StepId("0"), (), (ProcessId(31, 1),)),),
    )
    site.outputs.held.append(Held("8", OutputHolder(31, 1, 0, "0"), site.out))
    try:
        async with site.agent(patience_s=0.05) as agent:
            site.appear()
            await until(lambda: bool(held))
            site.jobs.jobs = {each.identity: each for each in (site.job, others)}
            site.jobs.events.put_nowait(JobAppeared(others))
            await until(lambda: len(streams(agent)) == 1)
            (mine, bobs) = sorted(agent.followed, key=lambda each: each.identity.job_id)
            assert not mine.capture.streams
            assert len(bobs.capture.streams) == 1
            thawed.set()
            site.jobs.events.put_nowait(JobChanged(site.job, site.job))
            await until(lambda: len(mine.capture.streams) == 1)
    finally:
        thawed.set()


async def test_a_process_that_the_node_knows_to_be_unreadable_is_not_looked_at(site: Site) -> None:
    looked = []
    site.look = lambda pid: looked.append(pid) or site.see(pid)  # type: ignore[func-returns-value]
    site.job = replace(site.job, unread=(TASK,))
    async with site.agent():
        site.appear()
        await until(lambda: STEPD in looked)
    assert TASK not in looked


def _seal() -> JobSeal:
    return JobSeal(DataKey.new(), "c1", "7@1700000000")


def _on_disk(site: Site) -> bytes:
    files = [each for each in sorted(site.folder.rglob("*")) if each.is_file()]
    return b"".join(each.read_bytes() for each in files)


async def test_a_sensitive_job_is_captured_once_its_key_is_there_and_nothing_is_lost(
    site: Site,
) -> None:
    site.server.error = Unavailable("The key service does not answer.")
    site.server.seal = _seal()
    site.out.write_text("patient 4711\n")
    async with site.agent() as agent:
        site.appear()
        await until(lambda: bool(site.outputs.noted))
        site.add("patient 4712\n")
        await asyncio.sleep(0.05)
        assert streams(agent) == {}
        assert b"patient" not in _on_disk(site)
        site.server.error = None
        await until(lambda: streams(agent) == {"stdout 0.0": b"patient 4711\npatient 4712\n"})
        site.end()
        await until(lambda: over(agent))
    assert b"patient" not in _on_disk(site)


async def test_an_agent_that_restarts_without_a_key_service_captures_nothing(site: Site) -> None:
    site.server.seal = _seal()
    site.out.write_text("patient 4711\n")
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"patient 4711\n"})
    site.server.error = Unavailable("The key service does not answer.")
    site.add("patient 4712\n")
    async with site.agent() as agent:
        site.appear()
        await asyncio.sleep(0.1)
        assert streams(agent) == {}
        site.server.error = None
        await until(lambda: streams(agent) == {"stdout 0.0": b"patient 4711\npatient 4712\n"})
    assert b"patient" not in _on_disk(site)


async def test_what_is_left_of_a_sensitive_job_that_ended_meanwhile_waits_for_its_key(
    site: Site,
) -> None:
    site.server.seal = _seal()
    site.out.write_text("patient 4711\n")
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"patient 4711\n"})
    site.server.error = Unavailable("The key service does not answer.")
    site.outputs.held.clear()
    site.out.unlink()
    site.jobs.jobs = {}
    async with site.agent() as agent:
        await asyncio.sleep(0.1)
        assert streams(agent) == {}
        site.server.error = None
        await until(lambda: over(agent))
        assert streams(agent) == {"stdout 0.0": b"patient 4711\n"}


async def test_what_is_sealed_with_a_destroyed_key_is_removed_from_the_disk(site: Site) -> None:
    site.server.seal = _seal()
    async with site.agent() as agent:
        site.appear()
        await until(lambda: streams(agent) == {"stdout 0.0": b"one\n"})
    site.server.seal = None
    site.server.error = DataUnavailable("There is no data key of 7: it was destroyed.")
    site.outputs.held.clear()
    site.jobs.jobs = {}
    async with site.agent() as agent:
        await until(lambda: not agent.followed and not [*site.folder.glob("7-*")])
