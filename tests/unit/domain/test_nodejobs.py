from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lattice.domain.allocation import Attempt, State
from lattice.domain.nodejobs import (
    JobAppeared,
    JobChanged,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    NodeStep,
    Picture,
    ProcessId,
    StartSign,
    StepId,
    compare,
    match_attempt,
)

_NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def _attempt(
    number: int, started_s: float | None, ended_s: float | None = None, state: State = State.RUNNING
) -> Attempt:
    def moment(seconds: float | None) -> datetime | None:
        return None if seconds is None else _NOON + timedelta(seconds=seconds)

    return Attempt(
        number=number,
        state=state,
        submitted=_NOON - timedelta(hours=1),
        started=moment(started_s),
        ended=moment(ended_s),
    )


def _match(attempts: list[Attempt], at_s: float) -> int | None:
    found = match_attempt(attempts, _NOON.timestamp() + at_s)
    return found.number if found else None


@pytest.mark.parametrize("skew_s", [-2.0, -1.0, 0.0, 1.0, 2.0])
def test_a_requeue_within_seconds_is_told_apart(skew_s: float) -> None:
    attempts = [_attempt(1, 0, 4, State.REQUEUED), _attempt(2, 6)]
    assert _match(attempts, 0.2 + skew_s) == 1
    assert _match(attempts, 6.2 + skew_s) == 2


@pytest.mark.parametrize("skew_s", [-2.0, 0.0, 2.0])
def test_the_attempt_before_may_still_be_completing(skew_s: float) -> None:
    # Slurm already counts the restart; the attempt to come has no start yet.
    attempts = [_attempt(1, 0, None, State.COMPLETING), _attempt(2, None, None, State.REQUEUED)]
    assert _match(attempts, 0.3 + skew_s) == 1
    # And once the next has begun before anyone wrote down the end of the first:
    attempts = [_attempt(1, 0, None, State.COMPLETING), _attempt(2, 30)]
    assert _match(attempts, 0.3 + skew_s) == 1
    assert _match(attempts, 30.3 + skew_s) == 2


def test_a_long_prolog_delays_the_group_only() -> None:
    attempts = [_attempt(1, 0, 300, State.NODE_FAIL), _attempt(2, 420)]
    assert _match(attempts, 290) == 1
    assert _match(attempts, 420 + 900) == 2


def test_a_group_of_no_attempt_is_nobodys() -> None:
    attempts = [_attempt(1, 0, 60, State.COMPLETED), _attempt(2, None)]
    assert _match(attempts, -2.5) is None
    assert _match(attempts, 63) is None
    assert _match([], 0) is None


@given(
    starts=st.lists(st.integers(0, 10_000), min_size=1, max_size=6, unique=True),
    delay_s=st.floats(0, 0.99),
    skew_s=st.floats(-2, 2),
    data=st.data(),
)
def test_any_attempt_is_found_when_starts_are_six_seconds_apart(
    starts: list[int], delay_s: float, skew_s: float, data: st.DataObject
) -> None:
    starts = sorted(starts)
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    assume(all(gap >= 6 for gap in gaps))
    ends = [start - 1 for start in starts[1:]]
    attempts = [
        _attempt(number, start, end)
        for number, (start, end) in enumerate(zip(starts, [*ends, None], strict=True), start=1)
    ]
    chosen = data.draw(st.sampled_from(attempts))
    assert chosen.started is not None
    at = chosen.started.timestamp() + delay_s + skew_s
    assert match_attempt(attempts, at) is chosen


def _job(job_id: int, inode: int, pids: list[int]) -> NodeJob:
    return NodeJob(
        identity=JobIdentity("boot", job_id, inode, float(inode)),
        started_by=StartSign.FOLDER,
        steps=(NodeStep(StepId("0"), (), tuple(ProcessId(pid, 1) for pid in pids)),),
    )


_pictures = st.dictionaries(
    st.integers(1, 8), st.lists(st.integers(1, 3), max_size=2), max_size=6
).map(
    lambda found: {job.identity: job for job in (_job(n % 3 + 1, n, p) for n, p in found.items())}
)


@given(_pictures, _pictures)
def test_events_lead_from_one_picture_to_the_next(before: Picture, after: Picture) -> None:
    told = dict(before)
    for event in compare(before, after):
        match event:
            case JobAppeared(job):
                assert job.identity not in told
                told[job.identity] = job
            case JobChanged(job, was):
                assert told[job.identity] == was != job
                told[job.identity] = job
            case NodeJobEnded(job):
                assert told.pop(job.identity) == job
    assert told == after


def test_a_requeued_job_ends_before_it_appears() -> None:
    old, new = _job(7, 1, [1]), _job(7, 2, [1])
    events = compare({old.identity: old}, {new.identity: new})
    assert events == (NodeJobEnded(old), JobAppeared(new))


def test_steps_in_the_order_of_people() -> None:
    steps = [StepId("10"), StepId("2", 1), StepId("extern"), StepId("2"), StepId("batch")]
    told = [str(step) for step in sorted(steps, key=lambda step: step.order)]
    assert told == ["batch", "extern", "2", "2+1", "10"]
    assert [step.number for step in steps] == [10, 2, None, 2, None]
