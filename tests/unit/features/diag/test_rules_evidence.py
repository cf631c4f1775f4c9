"""What lines rest on: which target a number is held against, and which looks belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.features.diag.model import MountTarget, Subject, Targets, Verdict
from tests.unit.features.diag.wards import NOW, Ward, healthy, mount, refact

FLOOR = Targets(mounts=(MountTarget(path="/scratch", answers_s=0.3),))


@pytest.mark.spec("DIAG-1", "DIAG-3")
def test_a_slow_mount_is_held_against_its_own_floor() -> None:
    ward = healthy(5)
    ward.targets = FLOOR
    refact(ward[2], mounts=(mount(answered_s=0.8), mount("/home", answered_s=0.9)))
    found = ward.sick()["slow_mount"]
    assert (found.measured, found.target) == (0.8, 0.3)
    assert {(each.node, each.thing) for each in found.subjects} == {("n3", "/scratch")}
    assert "0.8 s to answer (at most 0.3 s)" in found.evidence


@pytest.mark.spec("DIAG-1", "DIAG-3")
def test_each_mount_is_told_with_the_floor_that_it_has() -> None:
    ward = healthy(5)
    ward.targets = FLOOR
    refact(ward[2], mounts=(mount(answered_s=None, waited_s=9.0), mount("/home", answered_s=0.2)))
    told = {each.title: each for each in ward.judged() if each.rule == "hung_mount"}
    hung, well = told["/scratch (nfs4)"], told["/home (nfs4)"]
    assert (hung.verdict, hung.measured, hung.target) == (Verdict.BAD, 9.0, 0.3)
    assert (well.verdict, well.target) == (Verdict.OK, 1.0)


@pytest.mark.spec("DIAG-3", "SRC-1")
def test_a_mount_says_what_counted_its_figures() -> None:
    ward = healthy(2)
    now = {"operations": 1500.0, "spent_s": 200.0, "counted_by": "eBPF", "disk": "sda"}
    share = mount("/data", kind="fuse.s3", **now | {"disk": ""})
    busy = {"disk_operations": 900.0, "disk_spent_s": 18.0, "disk_busy_s": 15.0}
    local = mount("/tmp", kind="ext4", **now | busy)
    silent = mount("/new", kind="fuse.s3", read_bytes=None, write_bytes=None, operations=None,
                   latency_s=None, uncounted="the kernel has no BTF")  # fmt: skip
    before = {"operations": 1000.0, "spent_s": 100.0, "disk_operations": 300.0}
    old = {**before, "disk_spent_s": 6.0, "disk_busy_s": 0.0}
    unused = mount("/shm", kind="tmpfs", operations=0.0, latency_s=None, counted_by="eBPF")
    refact(ward[0], mounts=(share, local, silent, unused))
    facts = ward[0].facts
    assert facts is not None
    earlier = tuple(replace(each, **old) for each in (share, local))
    ward[0].earlier = replace(facts, time=facts.time - 30, mounts=(*earlier, silent))
    found = {each.title: each.evidence for each in ward.judged() if each.rule == "hung_mount"}
    assert found["/data (fuse.s3)"].endswith(
        "17 operations/s, 200 ms an operation (the job's own calls, by eBPF)"
    )
    assert found["/tmp (ext4)"].endswith(
        "(the job's own calls, by eBPF); disk sda: 20 ms an operation, busy 50 %"
    )
    assert found["/shm (tmpfs)"].endswith(", the job has read and written nothing there")
    assert found["/new (fuse.s3)"].endswith(
        "; what is read and written there is not known: the kernel has no BTF"
    )


@pytest.mark.spec("DIAG-5")
@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(-4.23, "4.2 s behind"), (300.04, "300 s ahead"), (86_400.0, "86400 s ahead")],
)
def test_a_clock_that_is_far_off_is_told_in_plain_figures(ahead_s: float, words: str) -> None:
    ward = healthy(5)
    refact(ward[2], clock_ahead_s=ahead_s)
    assert ward.sick()["clock"].evidence == f"the clock of n3 is {words}"


def _alone_at_work(
    ward: Ward, rank_2_began: float = 1e6, busy: float = 95.0, rest: float = 5.0
) -> None:
    """Rank 2 on n3 computes, the others wait; when each began is told a little differently."""
    for place, each in enumerate(ward.nodes):
        assert each.facts is not None
        busy_s = busy if each.name == "n3" else rest
        began = rank_2_began if each.name == "n3" else 1e6 + 0.013 * place
        tasks = [
            replace(task, started=began, cpu_seconds=1000.0 + busy_s) for task in each.facts.tasks
        ]
        refact(each, tasks=tuple(tasks))


@pytest.mark.spec("DIAG-1")
def test_a_rank_is_the_same_though_its_age_is_measured_anew_at_each_look() -> None:
    ward = healthy(5)
    _alone_at_work(ward)
    assert ward.sick()["straggler"].subjects == (Subject(node="n3", rank=2),)


@pytest.mark.spec("DIAG-1")
def test_a_process_with_the_number_of_one_that_has_ended_is_another() -> None:
    ward = healthy(5)
    _alone_at_work(ward, rank_2_began=NOW - 30)
    assert not ward.sick()


@pytest.mark.spec("DIAG-1")
@pytest.mark.parametrize(
    ("busy", "rest", "stands_apart"),
    [(85.0, 40.0, True), (61.0, 1.0, True), (61.0, 20.0, False), (40.0, 1.0, False)],
)
def test_one_that_gets_less_than_a_core_is_alone_at_work_if_the_others_do_nothing(
    busy: float, rest: float, stands_apart: bool
) -> None:
    ward = healthy(5)
    _alone_at_work(ward, busy=busy, rest=rest)
    assert ("straggler" in ward.sick()) is stands_apart
