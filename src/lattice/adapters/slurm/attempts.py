"""Folds accounting rows into allocations with their attempts. Pure.

slurmdbd has one row for each run of a job. Real clusters reuse job ids, because the counter wraps
or the controller lost its state. So rows of one id are either further runs of one allocation or
another allocation. Invariants: rows of two owners are never one allocation, and no row is lost or
used twice.

A row can continue the previous one only if job, part of the job and owner are the same. It does so
in two cases:

- The schema has the restart count, and it is above zero.
- The schema does not have it, and the previous run ended in a state that Slurm restarts by itself.
  The row was submitted when that run ended.

Slurm gives a requeued job a new submit time at that moment. A job that completed or failed gets no
further row, however similar the next one is.

A run that is resized gets another row. From Slurm 26.05 on it has the unique id of the run. Before,
it follows a row in the state RESIZING. Its submit time is that of the change, and so is its start
until the run ends. Then its start is that of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lattice.adapters.slurm.schema import PastRow
from lattice.domain.allocation import Allocation, Attempt, State

_Key = tuple[int, int | None, int | None]

_AGAIN = {
    # Only a requeue writes REQUEUED. The next row comes after the old run was cleaned up, which an
    # unresponsive node can delay for long.
    State.REQUEUED: timedelta(days=7),
    State.REQUEUE_HOLD: timedelta(days=7),
    State.SPECIAL_EXIT: timedelta(days=7),
    # These may also be final, so the next row must be close.
    State.PREEMPTED: timedelta(hours=1),
    State.NODE_FAIL: timedelta(hours=1),
    State.BOOT_FAIL: timedelta(hours=1),
}
RESTARTED = frozenset(_AGAIN)
"""End states of runs that Slurm restarts by itself."""

_UNNAMED = "allocation"
"""slurmdbd's name of a job for the seconds in which it has the end but not yet the start."""

_CLOCK_SLACK = timedelta(seconds=5)
_NEVER = datetime.max.replace(tzinfo=UTC)


def fold(rows: Iterable[PastRow]) -> tuple[Allocation, ...]:
    """Allocations, the latest submitted first, each with its attempts oldest first."""
    by_key: dict[_Key, list[PastRow]] = {}
    for row in rows:
        by_key.setdefault(_key(row.allocation), []).append(row)
    folded = [each for group in by_key.values() for each in _allocations(group)]
    return newest_first(folded)


def newest_first(allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
    """The order in which past allocations are returned."""
    return tuple(sorted(allocations, key=_moment, reverse=True))


def _moment(allocation: Allocation) -> tuple[datetime, int]:
    return allocation.submitted, allocation.job_id


def _key(allocation: Allocation) -> _Key:
    array, het = allocation.array, allocation.heterogeneous
    return allocation.job_id, array.task_id if array else None, het.offset if het else None


def _allocations(rows: list[PastRow]) -> list[Allocation]:
    runs = _without_resizes(sorted(rows, key=_in_time))
    stories: list[list[PastRow]] = []
    for run in runs:
        if stories and _goes_on(stories[-1][-1], run):
            stories[-1].append(run)
        else:
            stories.append([run])
    last = stories[-1]
    return [_allocation(story, superseded=story is not last) for story in stories]


def _in_time(row: PastRow) -> tuple[datetime, str, datetime]:
    # The owner comes before the start, so that the parts of a resized run are adjacent.
    return row.allocation.submitted, row.allocation.user, row.allocation.started or _NEVER


def _without_resizes(rows: list[PastRow]) -> list[PastRow]:
    runs: list[PastRow] = []
    for row in rows:
        if runs and _same_run(runs[-1].allocation, row.allocation):
            first = runs[-1]
            started = first.allocation.started or row.allocation.started
            restarts = first.restarts if row.restarts is None else row.restarts
            submitted = first.allocation.submitted
            whole = replace(
                row.allocation,
                submitted=submitted,
                first_submitted=row.allocation.first_submitted and submitted,
                started=started,
            )
            runs[-1] = PastRow(whole, restarts)
        else:
            runs.append(row)
    return runs


def _same_run(one: Allocation, other: Allocation) -> bool:
    if one.user != other.user:
        return False
    if one.sluid and other.sluid:
        return one.sluid == other.sluid
    if one.submitted == other.submitted:
        return True
    resized = one.state is State.RESIZING and one.name == other.name
    return resized and other.started in (one.started, other.submitted)


def _goes_on(before: PastRow, row: PastRow) -> bool:
    old, new = before.allocation, row.allocation
    if old.user != new.user or not new.user:
        return False
    if old.ended is not None and new.submitted < old.ended - _CLOCK_SLACK:
        return False
    if row.restarts is not None:
        return row.restarts > 0 and row.restarts >= (before.restarts or 0)
    allowed = _AGAIN.get(old.state)
    if allowed is None or old.ended is None or not _same_name(old.name, new.name):
        return False
    return new.submitted - old.ended <= allowed


def _same_name(one: str, other: str) -> bool:
    return one == other or _UNNAMED in (one, other)


def _allocation(story: Sequence[PastRow], *, superseded: bool) -> Allocation:
    runs = [row.allocation for row in story]
    last = runs[-1]
    if superseded and not last.state.finished:
        # A later use of the id proves that it is over; its end state is unknown.
        last = replace(last, state=State.UNKNOWN, reason=None)
    # Earlier rows may be outside the request; the restart count shows how many.
    missing = story[0].restarts or 0
    earlier = (attempt_of(at, run) for at, run in enumerate(runs[:-1], start=1 + missing))
    number = missing + len(runs)
    return replace(
        last,
        first_submitted=None if missing else runs[0].submitted,
        attempt=number,
        attempts=(*earlier, attempt_of(number, last, current=True)) if len(runs) > 1 else (),
    )


def attempt_of(number: int, run: Allocation, *, current: bool = False) -> Attempt:
    """This run as an attempt of its allocation."""
    # An earlier run without an end was lost with its controller.
    known = current or run.state.finished or run.state in RESTARTED
    return Attempt(
        number=number,
        state=run.state if known else State.UNKNOWN,
        submitted=run.submitted,
        started=run.started,
        ended=run.ended,
        nodes=run.nodes,
        node_count=run.node_count,
        exit_code=run.exit_code,
        sluid=run.sluid,
    )
