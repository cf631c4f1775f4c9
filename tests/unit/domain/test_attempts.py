"""Which attempt is meant by a number, and by none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lattice.base.errors import NotFound
from lattice.domain.allocation import Attempt
from lattice.domain.attempts import attempts_of, chosen_attempt
from tests.fakes.cluster import allocation

BEGAN = datetime(2026, 11, 16, 8, tzinfo=UTC)


def run(number: int, *, started: bool = True) -> Attempt:
    (only,) = attempts_of(allocation(7, "alice", "research"))
    begun = BEGAN + timedelta(hours=number) if started else None
    return replace(only, number=number, started=begun)


def test_a_number_names_one_and_another_is_not_found() -> None:
    job = replace(allocation(7, "alice", "research"), attempts=(run(1), run(2)))
    assert chosen_attempt(job, 1).number == 1
    with pytest.raises(NotFound) as told:
        chosen_attempt(job, 3)
    assert told.value.message == "Allocation 7 has no attempt 3."
    assert told.value.hint == "It has 2."


def test_without_a_number_one_that_waits_to_run_again_is_what_ran_before() -> None:
    job = replace(allocation(7, "alice", "research"), attempts=(run(1), run(2, started=False)))
    assert chosen_attempt(job, 0).number == 1


def test_one_that_never_started_is_still_an_attempt() -> None:
    job = replace(allocation(7, "alice", "research"), started=None)
    assert chosen_attempt(job, 0).started is None
