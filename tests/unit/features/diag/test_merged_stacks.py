"""Stacks of many ranks as one picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import RankStack, StackFrame, StackLanguage
from lattice.features.diag.service.merged_stacks import merged, picture, spans

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
MEETS = (StackFrame("wait", LIBRARY, 700), StackFrame("all_reduce", LIBRARY, 2810))
OWN = (
    StackFrame("train_step", "/home/alice/train.py", 212),
    StackFrame("main", "/home/alice/train.py", 300),
)
LOADS = (StackFrame("__next__", "/home/alice/loader.py", 88), *OWN[1:])


def stack(rank: int | None, *frames: StackFrame, pid: int = 0, **more: object) -> RankStack:
    told = {"language": StackLanguage.PYTHON} | more
    return RankStack(
        node=f"n{(rank or 0) // 2 + 1}",
        rank=rank,
        pid=pid or 100 + (rank or 0),
        frames=frames,
        **told,
    )  # type: ignore[arg-type]


@pytest.mark.spec("DIAG-6")
def test_one_rank_in_its_loader_stands_out_from_those_who_wait_for_it() -> None:
    groups = merged([*(stack(rank, *MEETS, *OWN) for rank in range(3)), stack(3, *LOADS)])
    assert picture(groups) == (
        "ranks 0-2: all_reduce, train.py:212 | rank 3: __next__, loader.py:88"
    )
    assert [(each.ranks, each.is_odd) for each in groups] == [((3,), True), ((0, 1, 2), False)]
    assert groups[0].subjects[0].node == "n2"


@pytest.mark.spec("DIAG-6")
def test_which_line_of_a_library_spins_tells_nobody_apart() -> None:
    spins = (StackFrame("wait", LIBRARY, 701), StackFrame("poll", LIBRARY, 3), MEETS[1])
    (group,) = merged([stack(0, *MEETS, *OWN), stack(1, *spins, *OWN)])
    assert group.ranks == (0, 1)
    assert not group.is_odd


@pytest.mark.spec("DIAG-6")
def test_another_line_of_the_program_is_another_place() -> None:
    other = (StackFrame("train_step", "/home/alice/train.py", 214), OWN[1])
    assert len(merged([stack(0, *MEETS, *OWN), stack(1, *MEETS, *other)])) == 2


@pytest.mark.spec("DIAG-6")
def test_of_two_ranks_the_one_that_does_not_meet_is_the_odd_one() -> None:
    groups = merged([stack(0, *MEETS, *OWN), stack(1, *LOADS)])
    assert [each.ranks for each in groups if each.is_odd] == [(1,)]


@pytest.mark.spec("DIAG-6")
def test_of_two_who_compute_neither_is_odd() -> None:
    groups = merged([stack(0, *OWN), stack(1, *LOADS)])
    assert not any(each.is_odd for each in groups)


@pytest.mark.spec("DIAG-6")
def test_a_ranks_shell_and_its_helpers_do_not_stand_for_it() -> None:
    shell = stack(0, pid=50, language=StackLanguage.KERNEL, waits_in="do_wait")
    worker = stack(0, StackFrame("get", "/usr/lib/python3.11/queue.py", 171), pid=900)
    (group,) = merged([shell, stack(0, *LOADS, pid=60), worker])
    assert group.words == "rank 0: __next__, loader.py:88"


@pytest.mark.spec("DIAG-6")
def test_without_python_it_is_the_kernels_view() -> None:
    told = {"language": StackLanguage.KERNEL}
    groups = merged(
        [
            *(stack(rank, waits_in="futex_wait_queue", **told) for rank in range(3)),
            stack(3, waits_in="hrtimer_nanosleep", **told),
        ]
    )
    assert picture(groups) == (
        "ranks 0-2: in the kernel's futex_wait_queue | rank 3: in the kernel's hrtimer_nanosleep"
    )


@pytest.mark.spec("DIAG-6")
def test_processes_without_a_rank_are_told_by_their_number() -> None:
    assert picture(merged([stack(None, *LOADS, pid=77)])) == "pid 77: __next__, loader.py:88"
    assert picture(()) == "no rank was seen"


@given(st.sets(st.integers(0, 60), max_size=40))
def test_spans_name_every_number_once(numbers: set[int]) -> None:
    told = spans(sorted(numbers))
    found: list[int] = []
    for part in told.split(",") if told else []:
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    assert found == sorted(numbers)


@pytest.mark.spec("DIAG-6")
@given(st.lists(st.sampled_from([MEETS + OWN, LOADS, OWN, ()]), max_size=12))
def test_every_rank_is_in_exactly_one_group(places: list[tuple[StackFrame, ...]]) -> None:
    groups = merged([stack(rank, *frames) for rank, frames in enumerate(places)])
    ranks = [rank for each in groups for rank in each.ranks]
    assert sorted(ranks) == list(range(len(places)))
    assert not groups or not all(each.is_odd for each in groups)
