"""Counters of jobs' processes: found by the helper itself, of the job alone, and read again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.counters import IO, NETWORK
from lattice.domain.nodejobs import UNREADABLE
from lattice.helper.counters import JobCounters, io_counters, sum_of_devices
from lattice.helper.jobgroups import JobPids
from lattice.helper.privilege import Kernel
from tests.eventually import eventually

IO_TEXT = (
    "rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 2\n"
    "read_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: 0\n"
)
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop ...
    lo: 9999 99 9 0 0 0 0 0 9999 99 9 0 0 0 0 0
  eth0: 1000 10 1 0 0 0 0 0 2000 20 2 0 0 0 0 0
  eth1:    5  1 0 0 0 0 0 0    7  1 0 0 0 0 0 0
"""
V1 = "freezer/slurm_n1/uid_3001/job_{}"
V2 = "system.slice/n1_slurmstepd.scope/job_{}"


class Node:
    """A node's /proc and control groups in a folder."""

    def __init__(self, root: Path, *, v2: bool = False) -> None:
        self.proc, self.cgroup, self.v2 = root / "proc", root / "cgroup", v2
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/net").symlink_to("net:[1]")
        self.cgroup.mkdir()
        if v2:
            (self.cgroup / "cgroup.controllers").touch()
        self.now = 0.0

    def process(
        self, pid: int, job: int = 42, *, parent: int = 1, ticks: int | None = None,
        read: int = 0, written: int = 0, step: str = "step_0", namespace: int = 1,
    ) -> None:  # fmt: skip
        place = (V2 if self.v2 else V1).format(job) + (f"/{step}" if step else "")
        folder = self.proc / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "net").mkdir()
        (folder / "net/dev").write_text(DEV)
        (folder / "ns/net").symlink_to(f"net:[{namespace}]")
        line = f"0::/{place}\n" if self.v2 else f"6:{place.replace('/', ':/', 1)}\n1:cpu:/\n"
        (folder / "cgroup").write_text(line)
        between = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} {between} {ticks or pid} 0 0\n")
        (folder / "io").write_text(IO_TEXT.format(read=read, written=written))
        self.list(place, pid)

    def list(self, place: str, *pids: int) -> None:
        folder = self.cgroup / place
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder, *folder.parents[:3]):
            (each / "cgroup.procs").touch()
        with (folder / "cgroup.procs").open("a") as file:
            file.writelines(f"{pid}\n" for pid in pids)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
        self.unlist(pid)

    def unlist(self, pid: int) -> None:
        for file in self.cgroup.rglob("cgroup.procs"):
            file.write_text("".join(f"{n}\n" for n in file.read_text().split() if n != str(pid)))

    def freeze(self, pid: int, name: str) -> None:
        """From now on the file holds whoever opens it."""
        file = self.proc / str(pid) / name
        file.rename(f"{file}.thawed")
        os.mkfifo(file)

    def thaw(self, pid: int, name: str) -> None:
        file = self.proc / str(pid) / name
        text = Path(f"{file}.thawed").read_bytes()
        with suppress(OSError):  # nobody waits
            writer = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, text)
            os.close(writer)
        Path(f"{file}.thawed").rename(file)

    def counters(self, most_open: int = 100, patience_s: float = 60.0) -> JobCounters:
        return JobCounters(
            JobPids("n1", self.cgroup), Kernel(), self.proc, monotonic=lambda: self.now,
            most_open=most_open, patience_s=patience_s,
        )  # fmt: skip


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, v2=request.param)


@pytest.fixture(params=[100, 0], ids=["kept", "opened each time"])
def counters(node: Node, request: pytest.FixtureRequest) -> Iterator[JobCounters]:
    reading = node.counters(request.param)
    yield reading
    reading.close()


@pytest.mark.spec("AUTH-9", "TOP-2")
@pytest.mark.threat("dead-pid")
def test_a_pid_that_is_another_s_shows_nothing(node: Node, counters: JobCounters) -> None:
    node.process(7, 43, written=5)
    node.list((V2 if node.v2 else V1).format(42) + "/step_0", 7)
    assert counters.read({IO}, [42]) == {IO: {}}


@pytest.mark.spec("AUTH-9", "TOP-2")
@pytest.mark.threat("counting-child")
def test_only_what_is_in_the_job_s_own_group_is_read(node: Node, counters: JobCounters) -> None:
    node.process(7, 42, parent=6, read=4096, written=8192)
    node.process(8, 43, written=5)
    assert counters.read({IO}, [42]) == {IO: {42: [[7, 7, 0, 4096, 8192, 10, 20]]}}
    assert counters.read({IO}, [4, 2, 420, 3001]) == {IO: {}}


def test_parents_come_first_and_those_without_one_in_the_job_have_none(
    node: Node, counters: JobCounters
) -> None:
    node.process(30, parent=31, ticks=900)
    node.process(31, parent=5, ticks=800)
    rows = counters.read({IO}, [42])[IO][42]
    assert [row[:3] for row in rows] == [[31, 800, 0], [30, 900, 31]]
    node.end(31)
    assert [row[:3] for row in counters.read({IO}, [42])[IO][42]] == [[30, 900, 0]]


def test_figures_are_those_of_now(node: Node, counters: JobCounters) -> None:
    node.process(7, written=1)
    assert counters.read({IO}, [42])[IO][42][0][4] == 1
    (node.proc / "7/io").write_text(IO_TEXT.format(read=0, written=77))
    assert counters.read({IO}, [42])[IO][42][0][4] == 77


def test_one_that_ended_and_was_not_reaped_is_still_read(node: Node, counters: JobCounters) -> None:
    node.process(7, written=9)
    counters.read({IO}, [42])
    node.unlist(7)
    assert counters.read({IO}, [42])[IO][42][0][4] == 9
    # Its number is another's now, who is in no job.
    (node.proc / "7/stat").write_text("7 (x) S 1 " + "0 " * 17 + "999 0 0\n")
    assert counters.read({IO}, [42]) == {IO: {}}


def test_one_without_figures_is_there_all_the_same(node: Node, counters: JobCounters) -> None:
    node.process(7)
    (node.proc / "7/io").write_text("wchar: -1\nread_bytes: NaN\n")
    assert counters.read({IO}, [42]) == {IO: {42: [[7, 7, 0]]}}


@pytest.mark.spec("TOP-2")
def test_slurm_s_own_processes_are_counted_and_say_nothing_of_the_network(node: Node) -> None:
    counters = node.counters()
    node.process(5, step="step_0/slurm" if node.v2 else "", written=3, namespace=1)
    node.process(6, step="step_extern", namespace=1)
    node.process(7, step="step_0/user/task_0" if node.v2 else "step_0", namespace=77)
    told = counters.read({IO, NETWORK}, [42])
    assert [row[0] for row in told[IO][42]] == [5, 6, 7]
    assert told[NETWORK] == {42: [[77, 1005, 2007, 32, 3]]}
    node.process(8, step="step_1", namespace=1)
    assert counters.read({NETWORK}, [42]) == {NETWORK: {42: [[77, 1005, 2007, 32, 3], [0]]}}
    counters.close()


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_let_go_with_the_process_the_job_and_the_conversation(node: Node) -> None:
    before = _open_files()
    counters = node.counters()
    for pid in (7, 8, 9):
        node.process(pid)
    node.process(10, 43)
    counters.read({IO}, [42, 43])
    assert _open_files() == before + 4
    node.end(8)
    counters.read({IO}, [42])
    assert _open_files() == before + 3
    node.now += 1000
    counters.read({IO}, [42])  # nobody asks for the other any more
    assert _open_files() == before + 2
    counters.close()
    assert _open_files() == before


def test_a_job_that_comes_back_elsewhere_is_found_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    counters = node.counters()
    node.process(7)
    assert counters.read({IO}, [42])[IO]
    shutil.rmtree(node.cgroup / "freezer")
    node.end(7)
    assert counters.read({IO}, [42]) == {IO: {}}
    node.process(7)
    assert counters.read({IO}, [42])[IO]
    counters.close()


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        node.process(7)
        for name in ("io", "net/dev"):
            (node.proc / "7" / name).write_text(text)
        counters = node.counters()
        told = counters.read({IO, NETWORK}, [42])
        counters.close()
        assert all(type(each) is int for row in told[IO][42] for each in row)


@pytest.mark.spec("SRC-2")
def test_of_a_part_of_the_interfaces_there_is_no_sum(node: Node) -> None:
    counters = node.counters()
    node.process(7, namespace=77)
    more = "  veth{}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    (node.proc / "7/net/dev").write_text(DEV + "".join(map(more.format, range(2000))))
    assert counters.read({NETWORK}, [42]) == {NETWORK: {42: [[77]]}}
    counters.close()


@pytest.mark.spec("SRC-2")
@given(st.text(max_size=300))
def test_figures_are_digits_or_nothing(text: str) -> None:
    for found in (sum_of_devices(text), io_counters(text.encode())):
        assert found is None or all(type(each) is int and each >= 0 for each in found)


@pytest.mark.spec("TOP-2", "SRC-2")
@pytest.mark.threat("unreadable-process")
@pytest.mark.parametrize("name", ["stat", "io"])
def test_a_process_that_can_not_be_read_costs_its_own_job_alone(node: Node, name: str) -> None:
    node.process(7, 42, read=1)
    node.process(8, 43, read=2)
    node.process(9, 44, read=3)
    counters = node.counters(most_open=0, patience_s=0.05)
    node.freeze(8, name)
    for _ in range(3):
        told = counters.read({IO, NETWORK}, [42, 43, 44])
        assert {job: rows[0][3] for job, rows in told[IO].items()} == {42: 1, 44: 3}
        assert told[NETWORK].keys() == {42, 44}
        assert counters.unread == {43: UNREADABLE}
    node.thaw(8, name)
    told = eventually(lambda: counters.read({IO}, [42, 43]), lambda told: len(told[IO]) == 2)
    assert told[IO][43][0][3] == 2
    assert counters.unread == {}
    counters.close()


def test_it_ends_while_a_process_can_not_be_read(node: Node) -> None:
    node.process(7, 42)
    node.process(8, 43)
    counters = node.counters(patience_s=0.05)
    counters.read({IO}, [42, 43])
    node.freeze(8, "stat")
    node.unlist(8)
    assert counters.read({IO}, [42, 43])[IO].keys() == {42}
    counters.close()
    node.thaw(8, "stat")
