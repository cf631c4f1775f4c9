"""Mounts: what NFS and Lustre clients counted, beside how the file systems answered."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import FactKind
from lattice.domain.probed import MountReport, MountsReport
from lattice.probes.facts.disks import read_diskstats
from lattice.probes.facts.mounts import (
    MountCounts,
    file_system_of,
    lustre_counts,
    mount_facts,
    read_llite,
    read_mountstats,
)
from tests.fakes.fact_trees import captured


@pytest.mark.spec("DIAG-3")
def test_nfs_tells_bytes_latency_and_what_was_sent_again() -> None:
    found = read_mountstats(captured("mountstats.txt"))
    assert set(found) == {"/home", "/mnt/with blank"}
    home = found["/home"]
    assert (home.read_bytes, home.write_bytes) == (4096, 8192)
    assert (home.operations, home.retransmits, home.timeouts) == (20, 2, 1)
    assert home.latency_s == pytest.approx(0.2 / 20)


@pytest.mark.spec("DIAG-3")
def test_a_mount_that_was_not_used_has_no_latency() -> None:
    idle = read_mountstats(captured("mountstats.txt"))["/mnt/with blank"]
    assert (idle.operations, idle.latency_s) == (0, None)


def test_what_is_mounted_over_a_share_does_not_have_its_counts() -> None:
    share = "device f:/x mounted on /x with fstype nfs statvers=1.1\n\tbytes:\t1 2 3 4 5 6 7 8\n"
    assert set(read_mountstats(share)) == {"/x"}
    assert read_mountstats(share + "device tmpfs mounted on /x with fstype tmpfs\n") == {}


@pytest.mark.parametrize("sign", ["\r", "\v", "\x1c", "\x85", "\u2028"])
def test_a_mounts_name_adds_no_mount(sign: str) -> None:
    forged = f"/tmp/a{sign}device f:/x mounted on /home with fstype nfs statvers=1.1{sign}"
    forged = forged.replace(" ", "\\040")
    own = "device f:/y mounted on /y{} with fstype nfs statvers=1.1\n\tbytes:\t1 2 3 4 5 6 7 8\n"
    text = f"device tmpfs mounted on {forged} with fstype tmpfs\n" + own.format(sign)
    assert set(read_mountstats(text)) == {f"/y{sign}"}
    unescaped = f"device x{sign}device f:/x mounted on /home with fstype nfs statvers=1.1\n"
    assert read_mountstats(unescaped) == {}


@pytest.mark.spec("DIAG-3")
def test_lustre_tells_bytes_and_time_by_operation() -> None:
    counts = read_llite(captured("llite_stats.txt"))
    assert counts is not None
    assert (counts.read_bytes, counts.write_bytes, counts.operations) == (3149824, 30, 12)
    assert counts.latency_s == pytest.approx(2000 / 6 / 1e6)


@pytest.mark.spec("DIAG-3")
def test_a_lustre_that_is_mounted_twice_is_not_told_of(tmp_path: Path) -> None:
    for name in ("scratch-ffff8881", "other-ffff8883aa", "other-ffff8884aa"):
        folder = tmp_path / f"proc/fs/lustre/llite/{name}"
        folder.mkdir(parents=True)
        (folder / "stats").write_text(captured("llite_stats.txt"))
    assert set(lustre_counts(tmp_path)) == {"scratch"}


@pytest.mark.parametrize(
    ("source", "name"),
    [("10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch", "scratch"), ("mgs@tcp:/big/team", "big"), ("", "")],
)
def test_the_file_system_is_named_in_its_source(source: str, name: str) -> None:
    assert file_system_of(source) == name


@pytest.mark.spec("DIAG-3")
def test_counts_stand_beside_the_mount_they_are_of(tmp_path: Path) -> None:
    folder = tmp_path / "proc/fs/lustre/llite/scratch-ffff8881"
    folder.mkdir(parents=True)
    (folder / "stats").write_text(captured("llite_stats.txt"))
    look = MountsReport(
        mounts=(
            MountReport(path="/home", kind="nfs4", source="filer:/export/home", answered_s=0.01),
            MountReport(path="/scratch", kind="lustre", source="mgs@tcp:/scratch", waited_s=2.0),
            MountReport(path="/tmp", kind="tmpfs", source="tmpfs", answered_s=0.001),
        ),
        statistics=captured("mountstats.txt"),
        unlooked="too many",
    )
    (home, scratch, local), absences = mount_facts(look, tmp_path)
    assert (home.retransmits, home.answered_s) == (2, 0.01)
    assert (scratch.answered_s, scratch.waited_s, scratch.write_bytes) == (None, 2.0, 30)
    assert (local.read_bytes, local.operations) == (None, None)
    assert [(each.kind, each.subject) for each in absences] == [(FactKind.MOUNTS, "others")]


DISKS = """\
 259       0 nvme0n1 100 0 2048 500 50 0 1024 250 0 600 750 0 0 0 0
 259       1 nvme0n1p1 10 0 2 5 5 0 4 25 0 20 30
   8       0 bad 1 2
   8       1 sda1 x 0 2 5 5 0 4 25 0 20 30
"""


@pytest.mark.spec("DIAG-3")
def test_others_have_the_jobs_own_calls_and_a_local_one_its_disk(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/diskstats").write_text(DISKS)
    calls = {"calls": 4, "spent_s": 0.8, "read_bytes": 300, "write_bytes": 20}
    look = MountsReport(
        mounts=(
            MountReport(path="/data", kind="fuse.s3", source="s3", device="0:54", **calls),
            MountReport(path="/tmp", kind="ext4", source="x", device="259:1", **calls),
            MountReport(path="/new", kind="fuse.s3", source="s3", device="0:55"),
            MountReport(path="/home", kind="nfs4", source="f:/home", device="0:56", **calls),
        ),
        uncounted="the kernel has no BTF",
    )
    (share, local, new, home), _ = mount_facts(look, tmp_path)
    assert (share.read_bytes, share.write_bytes, share.operations) == (300, 20, 4)
    assert (share.latency_s, share.spent_s, share.counted_by) == (0.2, 0.8, "eBPF")
    assert (share.disk, share.disk_operations) == ("", None)
    assert (local.disk, local.disk_read_bytes, local.disk_write_bytes) == ("nvme0n1p1", 1024, 2048)
    assert (local.disk_operations, local.disk_spent_s, local.disk_busy_s) == (15, 0.03, 0.02)
    assert (new.operations, new.latency_s, new.uncounted) == (None, None, "the kernel has no BTF")
    assert (home.operations, home.counted_by) == (None, "")
    assert home.uncounted == "the NFS client counts nothing for it"


@pytest.mark.spec("SRC-2")
@given(st.text(alphabet=st.sampled_from("0123456789 \nsda-x")))
def test_garbage_is_never_a_disk(text: str) -> None:
    for disk in read_diskstats(text).values():
        assert min(disk.operations, disk.spent_s, disk.busy_s, disk.read_bytes) >= 0


def test_what_a_mount_is_called_can_not_move_the_cursor() -> None:
    look = MountsReport(mounts=(MountReport(path="/\x1b[2J", kind="nfs", source="\r\n"),))
    (fact,), _ = mount_facts(look)
    assert fact.path.isprintable()
    assert fact.source.isprintable()


@pytest.mark.spec("SRC-2")
@given(
    st.text(
        alphabet=st.sampled_from("device mounted on with fstype nfs4 statvers=1.1\n\t:0129READ")
    )
)
def test_garbage_is_never_a_count(text: str) -> None:
    for counts in read_mountstats(text).values():
        _sound(counts)
    told = read_llite(text)
    if told is not None:
        _sound(told)


@pytest.mark.spec("SRC-2")
@given(st.data())
def test_a_page_that_was_cut_or_mixed_tells_nothing_false(data: st.DataObject) -> None:
    whole = captured("mountstats.txt")
    cut = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.text(max_size=20))
    for counts in read_mountstats(whole[:cut] + junk).values():
        _sound(counts)
        assert counts.read_bytes in (None, 4096, 409, 40, 4, 5) or junk


def _sound(counts: MountCounts) -> None:
    for value in (counts.read_bytes, counts.write_bytes, counts.operations, counts.latency_s):
        assert value is None or (math.isfinite(value) and value >= 0)
