"""Ranks that wait for one: told of before a quiet job would be, and of no other job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.alert import Progress
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.features.diag.model import Case, Subject, Verdict
from lattice.features.diag.rules.job_hang import JobHang
from tests.unit.features.diag.wards import NOW, Ward, healthy, refact, still, task

SLEEPS = "hrtimer_nanosleep"


def waiting(for_s: float, *, gpus: bool = False) -> Ward:
    """Four ranks of one step of which the third sleeps, and nothing moves."""
    ward = healthy(5, gpus=gpus)
    still(ward, for_s)
    for rank, node in enumerate(ward.nodes):
        place = SLEEPS if rank == 2 else "futex_do_wait"
        refact(node, tasks=(task(rank, waits_in=place, step="0"),))
    return ward


def case_of(ward: Ward, interval_s: float = 1.0) -> Case:
    return replace(ward.case, interval_s=interval_s)


def told(case: Case) -> tuple[Verdict, tuple[Subject, ...]]:
    (found,) = JobHang().judge(case)
    return found.verdict, found.subjects


@pytest.mark.spec("DIAG-1", "DIAG-5")
def test_three_ranks_that_wait_for_one_are_told_of_after_a_quarter_of_the_time() -> None:
    (found,) = JobHang().judge(case_of(waiting(40)))
    assert found.verdict is Verdict.ATTENTION
    assert found.subjects == (Subject(node="n3", rank=2),)
    assert f"rank 2 on n3 stands in {SLEEPS}, unlike the others" in found.evidence
    assert found.target == 30.0
    assert found.measured == pytest.approx(40)


@pytest.mark.spec("DIAG-1")
def test_after_the_whole_time_nobody_doubts_it() -> None:
    assert told(case_of(waiting(130)))[0] is Verdict.BAD


@pytest.mark.spec("DIAG-1")
def test_a_shorter_pause_is_none() -> None:
    assert told(case_of(waiting(25)))[0] is Verdict.OK


@pytest.mark.spec("DIAG-1")
def test_what_is_measured_seldom_is_not_called_still_after_a_look_or_two() -> None:
    assert told(case_of(waiting(80), interval_s=30))[0] is Verdict.OK
    assert told(case_of(waiting(95), interval_s=30))[0] is Verdict.ATTENTION


def _all_alike(ward: Ward) -> None:
    refact(ward[2], tasks=(task(2, waits_in="futex_do_wait", step="0"),))


def _one_runs(ward: Ward) -> None:
    refact(ward[2], tasks=(task(2, state="R", waits_in="", step="0"),))


def _two_elsewhere(ward: Ward) -> None:
    refact(ward[1], tasks=(task(1, waits_in="ep_poll", step="0"),))


def _steps_beside_each_other(ward: Ward) -> None:
    for number, node in enumerate(ward.nodes):
        place = SLEEPS if number == 2 else "futex_do_wait"
        refact(node, tasks=(task(0, waits_in=place, step=str(number)),))


def _a_node_without_facts(ward: Ward) -> None:
    ward[3].facts = None


def _the_kernel_tells_no_place(ward: Ward) -> None:
    for rank, node in enumerate(ward.nodes):
        refact(node, tasks=(task(rank, state="D" if rank == 2 else "S", waits_in="", step="0"),))


@pytest.mark.spec("DIAG-1")
@pytest.mark.parametrize(
    "change",
    [
        _all_alike,
        _one_runs,
        _two_elsewhere,
        _steps_beside_each_other,
        _a_node_without_facts,
        _the_kernel_tells_no_place,
    ],
    ids=lambda each: each.__name__.strip("_"),
)
def test_whatever_else_it_is_has_the_whole_time(change: object) -> None:
    assert callable(change)
    for for_s, verdict in ((40, Verdict.OK), (130, Verdict.BAD)):
        ward = waiting(for_s)
        change(ward)
        assert told(case_of(ward))[0] is verdict


@pytest.mark.spec("DIAG-1")
def test_a_rank_that_still_writes_is_waited_for_and_does_not_hang() -> None:
    ward = waiting(60)
    ward[0].progress = Progress(storage=NOW - 2)
    assert told(case_of(ward))[0] is Verdict.OK


@pytest.mark.spec("DIAG-1")
def test_of_a_node_that_tells_nothing_nobody_says_that_it_is_still() -> None:
    ward = waiting(600)
    ward[0].silence = NodeUnreachable("n1", "its agent is lost")
    assert told(case_of(ward))[0] is not Verdict.BAD
