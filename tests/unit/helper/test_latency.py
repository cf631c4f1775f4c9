"""What the helper tells of the kernel's timing: the job's own, or why there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lattice.domain.counters import LATENCY
from lattice.domain.latency import JOB_COUNTERS, SLOTS, FileCalls, JobTiming, timings_of
from lattice.helper.conversation import NoValues
from lattice.helper.journal import HelperJournal
from lattice.helper.latency import GroupsByNumber, LatencyGroup, LatencyMaps, Maps, start_latency
from lattice.helper.privilege import Kernel
from tests.fakes.manual_clock import ManualClock

SINCE = 1_794_700_000.0
NETWORK = 4026531840
NO_ROOM, NO_START, NO_OWNER = range(3)


class Table(dict[int, tuple[int, ...]]):
    """A map of the kernel's."""

    def lookup(self, key: int) -> tuple[int, ...] | None:
        return self.get(key)

    def copies(self, key: int) -> list[tuple[int, ...]]:
        """Of two CPUs that counted the same."""
        return [self[key]] * 2 if key in self else []


class Closed:
    def lookup(self, _: int) -> tuple[int, ...] | None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def copies(self, _: int) -> list[tuple[int, ...]]:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def counts(first: int, retransmits: int = 0) -> tuple[int, ...]:
    return (first, *(0,) * (SLOTS - 1), retransmits, 0, *(0,) * (JOB_COUNTERS - SLOTS - 2))


def on_devices(*devices: tuple[int, int, int, int, int], elsewhere: int = 0) -> tuple[int, ...]:
    """Counts with these file systems: device, calls, nanoseconds, bytes read and written."""
    numbers = [each for device in devices for each in device]
    head = (*(0,) * (SLOTS + 1), elsewhere)
    return (*head, *numbers, *(0,) * (JOB_COUNTERS - len(head) - len(numbers)))


def latency(
    jobs: Table, lost: dict[int, int] | None = None, *, born: float = SINCE + 5
) -> LatencyMaps:
    groups = {42: LatencyGroup(900, born), 43: LatencyGroup(901, born)}
    losses = Table({why: (count,) for why, count in (lost or {}).items()})
    maps = Maps(jobs, Table({NETWORK: (77,)}), losses)
    return LatencyMaps(maps, groups.get, since=SINCE, network=NETWORK)


def told(maps: LatencyMaps, job: int = 42) -> JobTiming | None:
    rows = maps.read((LATENCY,), (job,))[LATENCY][job]
    (timing,) = timings_of(rows)
    return timing


@pytest.mark.spec("SRC-2")
def test_why_there_is_no_program_is_told() -> None:
    maps = LatencyMaps(None, lambda _: None, reason="the kernel has no BTF")
    with pytest.raises(NoValues, match=r"^the kernel has no BTF$"):
        maps.read((LATENCY,), (42,))


@pytest.mark.spec("SRC-2")
def test_a_kernel_that_refuses_the_look_is_told() -> None:
    maps = LatencyMaps(Maps(Closed(), Closed(), Closed()), lambda _: LatencyGroup(1, 0.0))
    with pytest.raises(NoValues, match="refused: Operation not permitted"):
        maps.read((LATENCY,), (42,))


@pytest.mark.spec("SRC-2")
def test_a_job_that_found_no_room_has_no_numbers() -> None:
    maps = latency(Table({900: counts(3)}), {NO_ROOM: 1})
    assert told(maps, 43) is None
    assert told(maps, 42) is not None


@pytest.mark.spec("DIAG-3")
def test_what_a_job_read_and_wrote_is_summed_by_file_system() -> None:
    disk, share = 259 << 20 | 1, 54
    maps = latency(Table({900: on_devices((disk, 3, 5000, 70, 0), (share, 1, 10, 0, 9))}))
    assert maps.calls(42) == {
        "259:1": FileCalls(calls=6, spent_ns=10_000, read_bytes=140),
        "0:54": FileCalls(calls=2, spent_ns=20, write_bytes=18),
    }
    assert maps.calls(43) == {}


@pytest.mark.spec("SRC-2", "DIAG-3")
@pytest.mark.parametrize(
    ("maps", "job", "reason"),
    [
        (LatencyMaps(None, lambda _: None, reason="no BTF"), 42, "no BTF"),
        (latency(Table()), 7, "no control group"),
        (latency(Table(), {NO_ROOM: 1}), 42, "more jobs on this node"),
        (latency(Table({900: on_devices(elsewhere=1)})), 42, "more file systems"),
        (
            LatencyMaps(Maps(Closed(), Closed(), Closed()), lambda _: LatencyGroup(1, 0.0)),
            42,
            "refused: Operation not permitted",
        ),
    ],
    ids=["no-program", "no-job", "no-room", "no-room-for-it", "refused"],
)
def test_what_is_not_counted_by_file_system_has_a_reason(
    maps: LatencyMaps, job: int, reason: str
) -> None:
    with pytest.raises(NoValues, match=reason):
        maps.calls(job)


def test_a_job_that_is_not_here_is_left_out() -> None:
    assert latency(Table({900: counts(3)})).read((LATENCY,), (7, 42))[LATENCY].keys() == {42}


@pytest.mark.spec("SRC-2")
def test_a_job_that_read_nothing_while_the_program_looked_has_zeros() -> None:
    timing = told(latency(Table()))
    assert timing is not None
    assert set(timing.slots) == {0}


@pytest.mark.spec("TOP-2")
def test_each_job_has_its_own() -> None:
    maps = latency(Table({900: counts(3, 1), 901: counts(5, 2)}))
    rows = maps.read((LATENCY,), (42, 43))[LATENCY]
    found = [timings_of(rows[job])[0] for job in (42, 43)]
    assert [(each.inode, each.slots[0], each.retransmits, each.of_node) for each in found if each] \
        == [(900, 3, 1, False), (901, 5, 2, False)]  # fmt: skip


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("lost", "born"), [({}, SINCE - 1), ({NO_OWNER: 1}, SINCE + 1)], ids=["older job", "no memory"]
)
def test_where_not_all_sockets_have_an_owner_the_node_s_segments_are_told_as_such(
    lost: dict[int, int], born: float
) -> None:
    timing = told(latency(Table({900: counts(3, 1)}), lost, born=born))
    assert timing is not None
    assert (timing.retransmits, timing.of_node) == (77, True)


@pytest.mark.spec("SRC-2")
def test_calls_that_could_not_be_timed_are_counted() -> None:
    timing = told(latency(Table({900: counts(3)}), {NO_START: 9}))
    assert timing is not None
    assert timing.lost == 9


@pytest.mark.spec("SRC-2")
def test_a_helper_without_the_program_starts_and_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        journal = HelperJournal(ManualClock(), file.fileno())
        maps = start_latency(Kernel(), ManualClock(), journal, "n1", tmp_path / "none.o", tmp_path)
    assert maps.reason == "the eBPF program is not installed"
    assert '"event": "no latency"' in log.read_text()
    assert "none.o is not there" in log.read_text()


def test_a_node_below_another_group_has_that_for_its_root(tmp_path: Path) -> None:
    """Where several nodes share a host; whose jobs are not below it are not this node's."""
    (tmp_path / "freezer").mkdir()
    assert GroupsByNumber(tmp_path, "n1").roots == (0, 0)
    (tmp_path / "freezer/cgroup.procs").touch()
    assert GroupsByNumber(tmp_path, "n1").roots == ((tmp_path / "freezer").stat().st_ino, 0)


@pytest.mark.spec("SRC-2")
def test_a_site_that_does_not_want_it_is_told_as_such(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        journal = HelperJournal(ManualClock(), file.fileno())
        maps = start_latency(Kernel(), ManualClock(), journal, "n1", None, tmp_path, off=True)
    with pytest.raises(NoValues, match="switched off by the site"):
        maps.read((LATENCY,), (42,))


def v1(root: Path, base: str, uid: int, job: int) -> int:
    folder = root / "freezer" / base / f"uid_{uid}" / f"job_{job}"
    folder.mkdir(parents=True)
    return folder.stat().st_ino


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("base", ["slurm_n1", "slurm"])
def test_a_group_is_found_by_the_job_s_number_alone_on_v1(tmp_path: Path, base: str) -> None:
    v1(tmp_path, base, 3001, 41)
    inode = v1(tmp_path, base, 3002, 42)
    found = GroupsByNumber(tmp_path, "n1")(42)
    assert found is not None
    assert found.inode == inode


@pytest.mark.spec("TOP-2")
def test_a_group_of_another_node_or_of_another_name_is_none(tmp_path: Path) -> None:
    v1(tmp_path, "slurm_n2", 3001, 42)
    v1(tmp_path, "slurm_n1", 3001, 421)
    (tmp_path / "freezer/slurm_n1/job_42").mkdir()
    (tmp_path / "freezer/slurm_n1/uid_x/job_42").mkdir(parents=True)
    assert GroupsByNumber(tmp_path, "n1")(42) is None


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("place", ["system.slice/n1_slurmstepd.scope", "slurmstepd.scope"])
def test_a_group_is_found_on_v2(tmp_path: Path, place: str) -> None:
    (tmp_path / "cgroup.controllers").touch()
    folder = tmp_path / place / "job_42"
    folder.mkdir(parents=True)
    found = GroupsByNumber(tmp_path, "n1")(42)
    assert found is not None
    assert found.inode == folder.stat().st_ino
