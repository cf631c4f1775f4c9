"""Which stream a file is, and that it stays that one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.domain.logs import LogKind, LogSource
from lattice.domain.outputs import OutputFile, OutputHolder
from lattice.features.logs.node.filenames import FileNames
from lattice.features.logs.node.spool import StreamHead, StreamSpool
from lattice.features.logs.node.tail import FileMark
from lattice.features.logs.node.writers import LogWriter
from tests.fakes.manual_clock import ManualClock

DAEMON, TASK, OTHER = LogWriter(20, "0", daemon=True), LogWriter(21, "0"), LogWriter(22, "0")
WRITERS = (DAEMON, TASK, OTHER)


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def file(fd: int, inode: int, *holders: OutputHolder) -> OutputFile:
    return OutputFile(
        fd=fd, device=1, inode=inode, born=None, size=0, path="/o", holders=holders
    )  # fmt: skip


def given(
    names: FileNames, *files: OutputFile, writers: tuple[LogWriter, ...] = WRITERS
) -> list[str]:
    found = list(names.take(files, writers))
    for each in found:
        os.close(each.file.fd)
    return [f"{each.kind.value} {each.source}" for each in found]


@pytest.mark.spec("LOG-2")
def test_a_file_is_given_once(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    one = file(source, 5, OutputHolder(21, 1, 3))
    assert given(names, one) == ["stdout 0.3"]
    assert given(names, one) == []


@pytest.mark.spec("LOG-2")
def test_a_file_of_slurmstepd_alone_waits_for_its_task(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    assert given(names, file(source, 5, OutputHolder(20, 2))) == []
    assert given(names, file(source, 5, OutputHolder(20, 2), OutputHolder(22, 1, 4))) == [
        "stdout 0.4"
    ]
    assert list(names.settle()) == []


@pytest.mark.spec("LOG-2")
def test_a_file_whose_task_never_showed_is_the_step_s(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    given(names, file(source, 5, OutputHolder(20, 2)))
    (settled,) = names.settle()
    os.close(settled.file.fd)
    assert (settled.kind, settled.source) == (LogKind.STDOUT, LogSource("0"))


def test_what_waits_is_let_go_in_the_end(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    given(names, file(source, 5, OutputHolder(20, 2)))
    names.close()


@pytest.mark.spec("LOG-2")
def test_names_outlive_the_agent(tmp_path: Path, source: int) -> None:
    """Two files of one writer keep their names when they are found in another order."""
    folder = tmp_path / "job"
    for inode, copy in ((5, 1), (6, 2)):
        kept = LogSource("0", None, copy)
        head = StreamHead(
            node="n1", job_id=7, started=1.0, kind=LogKind.STDOUT, source=kept, path="/o"
        )
        spool = StreamSpool(folder / f"stdout-{kept}", head)
        spool.remember(FileMark(device=1, inode=inode))
        spool.close()
    names = FileNames(folder, ManualClock())
    seen = given(names, file(source, 6, OutputHolder(20, 2)), file(source, 5, OutputHolder(20, 3)))
    assert seen == ["stdout 0~2", "stdout 0"]


@pytest.mark.spec("LOG-2")
def test_slurm_s_word_for_a_file_opened_by_its_path(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    (named,) = names.take([file(source, 5)], (), LogKind.STDERR)
    os.close(named.file.fd)
    assert (named.kind, named.source) == (LogKind.STDERR, LogSource("batch"))


def settled(names: FileNames) -> list[tuple[str, bool]]:
    found = list(names.settle())
    for each in found:
        os.close(each.file.fd)
    return [(str(each.source), each.labelled) for each in found]


@pytest.mark.spec("LOG-2")
def test_what_slurmstepd_keeps_while_a_task_runs_is_labelled(tmp_path: Path, source: int) -> None:
    clock = ManualClock()
    names = FileNames(tmp_path / "job", clock)
    kept = file(source, 5, OutputHolder(20, 9))
    given(names, kept)
    clock.advance(3)
    given(names, kept)
    assert settled(names) == [("0", True)]


@pytest.mark.spec("LOG-2")
def test_what_slurmstepd_held_for_a_moment_is_not(tmp_path: Path, source: int) -> None:
    clock = ManualClock()
    names = FileNames(tmp_path / "job", clock)
    for pause_s in (0.1, 0.3):
        given(names, file(source, 5, OutputHolder(20, 9)))
        clock.advance(pause_s)
    clock.advance(60)
    assert settled(names) == [("0", False)]


@pytest.mark.spec("LOG-2")
def test_a_step_that_is_long_in_beginning_is_not_labelled(tmp_path: Path, source: int) -> None:
    """A plugin fetches an image, say: slurmstepd has the files, and no task has begun."""
    clock = ManualClock()
    names = FileNames(tmp_path / "job", clock)
    for _ in range(5):
        given(names, file(source, 5, OutputHolder(20, 9)), writers=(DAEMON,))
        clock.advance(30)
    given(names, file(source, 5, OutputHolder(20, 9)))
    assert settled(names) == [("0", False)]


@pytest.mark.spec("LOG-2")
def test_a_file_that_a_task_has_is_not_labelled(tmp_path: Path, source: int) -> None:
    clock = ManualClock()
    names = FileNames(tmp_path / "job", clock)
    given(names, file(source, 5, OutputHolder(20, 9)))
    clock.advance(3)
    (named,) = names.take([file(source, 5, OutputHolder(20, 9), OutputHolder(21, 1, 0))], WRITERS)
    os.close(named.file.fd)
    assert not named.labelled


@pytest.mark.spec("LOG-2")
def test_srun_s_own_file_is_labelled_at_once(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job", ManualClock())
    srun = LogWriter(13, "batch", labels=("o",))
    (named,) = names.take([file(source, 5, OutputHolder(13, 9))], (srun,))
    os.close(named.file.fd)
    assert named.labelled


@pytest.mark.spec("LOG-2")
def test_that_it_is_labelled_outlives_the_agent(tmp_path: Path, source: int) -> None:
    """Nobody can tell any more when the step is over."""
    folder = tmp_path / "job"
    head = StreamHead(
        node="n1", job_id=7, started=1.0, kind=LogKind.STDOUT, source=LogSource("0"), labelled=True
    )
    spool = StreamSpool(folder / "stdout-0", head)
    spool.remember(FileMark(device=1, inode=5))
    spool.close()
    (named,) = FileNames(folder, ManualClock()).take([file(source, 5)], (), LogKind.STDOUT)
    os.close(named.file.fd)
    assert (named.source, named.labelled) == (LogSource("0"), True)


@pytest.mark.spec("LOG-2")
def test_what_was_noted_says_nothing_of_now(tmp_path: Path, source: int) -> None:
    clock = ManualClock()
    names = FileNames(tmp_path / "job", clock)
    given(names, file(source, 5, OutputHolder(20, 9)))
    clock.advance(60)
    given(names, file(source, 5, OutputHolder(20, 9, step="0", daemon=True)))
    assert settled(names) == [("0", False)]
