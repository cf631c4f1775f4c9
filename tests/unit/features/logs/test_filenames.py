"""Which stream a file is, and that it stays that one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.domain.logs import LogKind, LogSource
from lattice.domain.outputs import Holder, OutputFile
from lattice.features.logs.node.filenames import FileNames
from lattice.features.logs.node.spool import StreamHead, StreamSpool
from lattice.features.logs.node.tail import FileMark
from lattice.features.logs.node.writers import Writer

pytestmark = pytest.mark.spec("LOG-2")

DAEMON, TASK, OTHER = Writer(20, "0", daemon=True), Writer(21, "0"), Writer(22, "0")
WRITERS = (DAEMON, TASK, OTHER)


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def file(fd: int, inode: int, *holders: Holder) -> OutputFile:
    return OutputFile(
        fd=fd, device=1, inode=inode, born=None, size=0, path="/o", holders=holders
    )  # fmt: skip


def given(names: FileNames, *files: OutputFile) -> list[str]:
    found = list(names.take(files, WRITERS))
    for each in found:
        os.close(each.file.fd)
    return [f"{each.kind.value} {each.source}" for each in found]


def test_a_file_is_given_once(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job")
    one = file(source, 5, Holder(21, 1, 3))
    assert given(names, one) == ["stdout 0.3"]
    assert given(names, one) == []


def test_a_file_of_slurmstepd_alone_waits_for_its_task(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job")
    assert given(names, file(source, 5, Holder(20, 2))) == []
    assert given(names, file(source, 5, Holder(20, 2), Holder(22, 1, 4))) == ["stdout 0.4"]
    assert list(names.settle()) == []


def test_a_file_whose_task_never_showed_is_the_step_s(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job")
    given(names, file(source, 5, Holder(20, 2)))
    (settled,) = names.settle()
    os.close(settled.file.fd)
    assert (settled.kind, settled.source) == (LogKind.STDOUT, LogSource("0"))


def test_what_waits_is_let_go_in_the_end(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job")
    given(names, file(source, 5, Holder(20, 2)))
    names.close()


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
    names = FileNames(folder)
    seen = given(names, file(source, 6, Holder(20, 2)), file(source, 5, Holder(20, 3)))
    assert seen == ["stdout 0~2", "stdout 0"]


def test_slurm_s_word_for_a_file_opened_by_its_path(tmp_path: Path, source: int) -> None:
    names = FileNames(tmp_path / "job")
    (named,) = names.take([file(source, 5)], (), LogKind.STDERR)
    os.close(named.file.fd)
    assert (named.kind, named.source) == (LogKind.STDERR, LogSource("batch"))
