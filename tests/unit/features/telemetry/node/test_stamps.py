"""Whose a job is, on the node: of the run that was told of, and never of another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.features.telemetry.convert.job_settings import NodeJobSettings, StampedRun
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.features.telemetry.node.job_settings import MAX_JOBS, KnownStamps

T0 = 1_794_702_390.0


def stamps(attempt: int = 1, user: str = "alice") -> Stamps:
    return Stamps(
        alloc="7",
        attempt=str(attempt),
        project="research",
        tenant="physics",
        user=user,
        vcluster="batch",
    )


def told(as_of: float, *runs: tuple[int, float, Stamps], stamping: bool = True) -> NodeJobSettings:
    return NodeJobSettings(
        stamping=stamping,
        runs={job_id: StampedRun(started, whose) for job_id, started, whose in runs},
        as_of=as_of,
    )


@pytest.mark.spec("TOP-2")
def test_a_run_that_is_not_told_of_yet_is_not_taken_for_the_one_before() -> None:
    known = KnownStamps()
    known.note(told(T0 + 5, (7, T0, stamps(1))))
    assert known.of(7, T0 + 0.3) == stamps(1)
    assert known.of(7, T0 + 60) is None, "it began after Slurm was asked"
    known.note(told(T0 + 65, (7, T0 + 60, stamps(2))))
    assert known.of(7, T0 + 60.2) == stamps(2)
    assert known.of(7, T0 + 0.3) == stamps(1), "what the first left is still its own"


@pytest.mark.spec("TOP-2")
def test_a_group_that_comes_back_is_known_once_slurm_has_said_the_same_again() -> None:
    known = KnownStamps()
    known.note(told(T0 + 5, (7, T0, stamps())))
    assert known.of(7, T0 + 60) is None
    known.note(told(T0 + 61, (7, T0, stamps())))
    assert known.of(7, T0 + 60) == stamps()
    known.note(told(T0 + 55, (7, T0, stamps())))
    assert known.of(7, T0 + 60) == stamps(), "a server that is behind takes nothing back"


@pytest.mark.spec("TOP-2")
def test_a_number_that_is_used_again_is_nobodys_until_it_is_told() -> None:
    known = KnownStamps()
    known.note(told(T0 + 5, (7, T0, stamps(user="alice"))))
    known.note(told(T0 + 9000))
    assert known.of(7, T0 + 8990) is None
    known.note(told(T0 + 9001, (7, T0 + 8990, stamps(user="bob"))))
    assert known.of(7, T0 + 8990) == stamps(user="bob")


@pytest.mark.spec("TOP-2")
def test_a_job_that_is_over_is_known_for_what_still_waits() -> None:
    known = KnownStamps()
    known.note(told(T0 + 5, (7, T0, stamps())))
    known.note(told(T0 + 10))
    assert known.of(7, T0) == stamps()
    assert known.of(8, T0) is None


@pytest.mark.spec("TOP-2")
def test_a_site_that_takes_its_trust_back_is_obeyed() -> None:
    known = KnownStamps()
    known.note(told(T0 + 5, (7, T0, stamps())))
    assert known.stamping
    known.note(told(T0 + 10, stamping=False))
    assert not known.stamping
    assert known.of(7, T0) is None


def test_what_is_kept_is_bounded_and_the_newest() -> None:
    known = KnownStamps()
    for number in range(1, MAX_JOBS + 3):
        known.note(told(T0 + 5, (number, T0, stamps())))
    assert known.of(2, T0) is None
    assert known.of(3, T0) == known.of(MAX_JOBS + 2, T0) == stamps()


@pytest.mark.spec("TOP-2")
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=6), st.data())
def test_whatever_was_told_a_life_gets_its_own_run_or_none(
    gaps: list[float], data: st.DataObject
) -> None:
    """Runs one after the other, looked at now and then: no life gets the names of another's run."""
    starts, begin = [], T0
    for gap in gaps:
        begin += 5 + gap
        starts.append(begin)
    known = KnownStamps()
    for as_of in sorted(data.draw(st.lists(st.floats(T0, begin + 100), max_size=10))):
        current = [number for number, start in enumerate(starts) if start <= as_of]
        runs = ((7, starts[current[-1]], stamps(current[-1] + 1)),) if current else ()
        known.note(told(as_of, *runs))
    for number, start in enumerate(starts):
        found = known.of(7, start + data.draw(st.floats(0, 3)))
        assert found in {None, stamps(number + 1)}
