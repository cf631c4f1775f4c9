"""Notes of output files: found again, bounded, forgotten in time, and closed to others."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.domain.privileged import NoteOutput, Outcome
from lattice.helper import notes as module
from lattice.helper import outputs
from lattice.helper.descriptors import FoundDescriptor, HeldOutputs
from lattice.helper.inode import Inode, Inodes
from lattice.helper.notes import RETENTION_S, Note, Notes
from lattice.helper.privilege import Kernel
from tests.fakes.manual_clock import ManualClock

ALICE, BOB = 3001, 3002
TASK = HeldOutputs(11, 1, rank=3, uid=ALICE, step="0", comm="python3", start_ticks=500)


class Bench:
    """Notes whose clock is ours, and a `/proc` of made-up processes."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.folder = folder / "notes"
        self.proc = folder / "proc"
        self.proc.mkdir()
        folder.chmod(0o755)
        self.notes = Notes(self.folder, self.clock, self.proc)

    def write(self, *found: FoundDescriptor, job: int = 7) -> int:
        count = self.notes.write(job, found)
        if (self.folder / str(job)).exists():
            self.touch(job, self.clock.now().timestamp())
        return count

    def touch(self, job: int, moment: float) -> None:
        os.utime(self.folder / str(job), (moment, moment))

    def live(self, pid: int, job: int) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::/job_{job}/step_0\n")
        (folder / "stat").write_text(f"{pid} (x) " + "S " + "1 " * 30)

    def paths(self, uid: int = ALICE) -> list[str]:
        return [each.path for each in self.notes.of(7, uid, 0, 0)]

    @property
    def jobs(self) -> set[str]:
        return {each.name for each in self.folder.iterdir()}

    @property
    def began_ms(self) -> int:
        (note,) = self.notes.of(7, ALICE, 0, 0)
        return note.holders[0].began_ms


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def found(
    number: int = 5, name: str = "/home/alice/t0.out", holders: Sequence[HeldOutputs] = (TASK,),
    born: float | None = 1.5,
) -> FoundDescriptor:  # fmt: skip
    inode = Inode(2049, number, 0o100600, ALICE, 0, born, 7)
    return FoundDescriptor(-1, inode, name, "python3", holders=list(holders), name=name)


@pytest.mark.spec("LOG-3")
def test_what_was_noted_is_found_again_with_who_held_it(bench: Bench) -> None:
    assert bench.write(found()) == 1
    (note,) = bench.notes.of(7, ALICE, 0, 0)
    assert (note.device, note.inode, note.born, note.path) == (2049, 5, 1.5, "/home/alice/t0.out")
    assert [each.holding for each in note.holders] == [TASK]
    assert bench.notes.of(8, ALICE, 0, 0) == []


def test_the_same_again_changes_nothing_and_another_holder_is_added(bench: Bench) -> None:
    bench.write(found())
    file = next((bench.folder / "7").iterdir())
    before = file.stat().st_ino
    bench.clock.advance(0.003)
    bench.write(found())
    assert file.stat().st_ino == before
    bench.write(found(holders=[replace(TASK, pid=12, rank=4)]))
    (note,) = bench.notes.of(7, ALICE, 0, 0)
    assert {each.holding.rank for each in note.holders} == {3, 4}


def test_what_is_learnt_later_of_a_holder_counts(bench: Bench) -> None:
    """A task begins as a copy of slurmstepd, with the same pid."""
    bench.write(found(holders=[replace(TASK, rank=-1, comm="slurmstepd")]))
    bench.write(found())
    (note,) = bench.notes.of(7, ALICE, 0, 0)
    assert [each.holding for each in note.holders] == [TASK]


def test_another_file_with_the_same_number_is_another(bench: Bench) -> None:
    bench.write(found())
    bench.write(found(name="/other", born=2.5, holders=[replace(TASK, pid=12)]))
    (note,) = bench.notes.of(7, ALICE, 0, 0)
    assert (note.path, len(note.holders)) == ("/other", 1)
    inode = found(born=2.5).inode
    assert note.is_of(inode)
    assert note.is_of(replace(inode, born=None))
    for other in (replace(inode, born=1.5), replace(inode, number=6), replace(inode, device=1)):
        assert not note.is_of(other)


@pytest.mark.spec("AUTH-9")
def test_only_what_the_owner_s_or_root_s_processes_held(bench: Bench) -> None:
    bench.write(found(1, "/alice"), found(2, "/bob", [replace(TASK, uid=BOB)]))
    bench.write(found(3, "/root", [replace(TASK, uid=0)]))
    assert bench.paths(uid=ALICE) == ["/alice", "/root"]
    assert bench.paths(uid=BOB) == ["/bob", "/root"]


def test_only_what_began_in_the_attempt(bench: Bench) -> None:
    """A requeued job has the same id, and often the same file."""
    bench.write(found())
    began = bench.began_ms
    bench.write(found(holders=[replace(TASK, pid=99, start_ticks=TASK.start_ticks + 100_000)]))
    for since, until, pids in (
        (began - 1, 0, [11, 99]),
        (began - 1, began + 1, [11]),
        (began + 1, 0, [99]),
        (began + 1, began + 2, []),
        (0, began - 1, []),
    ):
        notes = bench.notes.of(7, ALICE, since, until)
        assert [each.holding.pid for note in notes for each in note.holders] == pids


@pytest.mark.parametrize("name", ["", "pipe:[77]", "socket:[7]", "relative"])
def test_what_has_no_path_is_not_noted(bench: Bench, name: str) -> None:
    assert bench.write(found(name=name)) == 0
    assert bench.jobs == set()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=4095), st.text(max_size=16))
def test_any_name_reads_back_byte_for_byte(bench: Bench, raw: bytes, comm: str) -> None:
    name = os.fsdecode(b"/" + raw)
    bench.write(found(name=name, holders=[replace(TASK, comm=comm)]))
    (note,) = bench.notes.of(7, ALICE, 0, 0)
    assert os.fsencode(note.path) == b"/" + raw
    assert note.holders[0].holding.comm == comm


@pytest.mark.threat("many-notes")
def test_a_job_has_so_many_notes_and_a_file_so_many_holders(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_A_JOB", 3)
    bench.write(*(found(number, f"/{number}") for number in range(3)))
    with pytest.raises(OSError, match="too many files"):
        bench.write(found(3, "/3"))
    assert bench.write(found(2, "/2")) == 1  # one that is there already
    assert bench.paths() == ["/0", "/1", "/2"]
    bench.write(found(2, "/2", [replace(TASK, pid=pid) for pid in range(100, 200)]))
    note = bench.notes.of(7, ALICE, 0, 0)[-1]
    assert len(note.holders) == 16


def test_a_week_later_it_is_forgotten_unless_the_job_goes_on(bench: Bench) -> None:
    for job in (7, 8):
        bench.write(found(holders=[replace(TASK, pid=job)]), job=job)
    bench.live(8, job=8)
    bench.clock.advance(RETENTION_S + 1)
    bench.write(found(), job=9)
    assert bench.jobs == {"8", "9"}


def test_a_job_whose_process_can_not_be_read_is_not_forgotten(bench: Bench) -> None:
    """Nor does it hold whoever notes for another job."""
    bench.write(found(holders=[replace(TASK, pid=20)]))
    bench.live(20, job=7)
    stat = bench.proc / "20" / "stat"
    stat.unlink(missing_ok=True)
    os.mkfifo(stat)
    bench.clock.advance(RETENTION_S + 1)
    bench.notes.sweep()
    assert bench.jobs == {"7"}


def test_a_pid_that_is_another_job_s_now_keeps_nothing(bench: Bench) -> None:
    bench.write(found(holders=[replace(TASK, pid=20)]))
    bench.live(20, job=8)
    bench.clock.advance(RETENTION_S + 1)
    bench.notes.sweep()
    assert bench.jobs == set()


@pytest.mark.threat("many-notes")
def test_of_too_many_jobs_the_oldest_that_is_over_goes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_JOBS", 3)
    for job in (1, 2, 3):
        bench.write(found(holders=[replace(TASK, pid=job)]), job=job)
        bench.clock.advance(10)
    bench.live(1, job=1)
    bench.write(found(), job=4)
    assert bench.jobs == {"1", "3", "4"}
    for pid, job in ((3, 3), (TASK.pid, 4)):
        bench.live(pid, job)
    with pytest.raises(OSError, match="too many jobs"):
        bench.write(found(), job=5)
    assert bench.jobs == {"1", "3", "4"}


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"device":1}', b"null", b"\xff"])
def test_a_note_that_was_torn_is_none_and_can_be_written_again(bench: Bench, torn: bytes) -> None:
    bench.write(found(), found(6, "/whole"))
    file = bench.folder / "7" / "2049-5.json"
    file.write_bytes(torn)
    assert bench.paths() == ["/whole"]
    bench.write(found())
    assert bench.paths() == ["/home/alice/t0.out", "/whole"]


@pytest.mark.spec("AUTH-9")
def test_nothing_is_written_through_a_link(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("as it was")
    (bench.folder / "7").mkdir()
    (bench.folder / "7" / ".new").symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic|loop"):
        bench.write(found())
    (bench.folder / "8").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|symbolic|loop"):
        bench.write(found(), job=8)
    assert target.read_text() == "as it was"


@pytest.mark.spec("AUTH-9")
def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    clock = ManualClock()
    Notes(tmp_path / "new", clock)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("open", "link", "file"):
        with pytest.raises(ValueError, match="closed to all others"):
            Notes(tmp_path / name, clock)
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match="writable by root alone"):
        Notes(tmp_path / "new", clock)


def test_a_note_keeps_those_holders_alone_that_are_asked_for() -> None:
    assert Note(device=1, inode=2, born=None, path="/x", holders=()).of(ALICE, 0, 0) is None


@pytest.mark.spec("LOG-3")
def test_only_files_with_a_path_count_as_noted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def __init__(self, *_: object) -> None: ...

        def outputs_of(self, *_: object) -> list[FoundDescriptor]:
            files = [found(), found(6, name="memfd:log (deleted)"), found(8, name="")]
            return [replace(each, fd=os.open("/dev/null", os.O_RDONLY)) for each in files]

    monkeypatch.setattr(outputs, "Finder", Finder)
    before = signal.getsignal(signal.SIGALRM)
    try:
        files = outputs.OutputFiles(cast("Kernel", None), Inodes(), bench.notes)
        answer = files.note(NoteOutput(7, (11,)), ())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert (answer.outcome, answer.output) == (Outcome.DONE, "1")
    assert bench.paths() == ["/home/alice/t0.out"]
