"""The attempts of allocations, and which of them a node means.

A node reports a job id and when the job began there. Only Slurm determines its owner, its tenant
and its project.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from lattice.base.errors import NotFound, Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.nodejobs import CLOCK_SLACK_S

_ACCOUNT_KNOWN_WITHIN = timedelta(minutes=5)
"""Accounts are read once a minute."""


class NotKnownYet(NotFound):
    """Slurm's last reading is older than the job; a later one may have it."""


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt of an allocation that Slurm has."""

    allocation: Allocation
    attempt: Attempt

    def is_same_run(self, other: JobAttempt) -> bool:
        """Compares the start times if both are known and the user is the same.

        The number of earlier attempts may not be known yet, and job ids are reused.
        """
        begun, there = self.attempt.started, other.attempt.started
        mine, its = self.allocation, other.allocation
        if begun is None or there is None or mine.user != its.user:
            return (mine.ref, self.attempt.number) == (its.ref, other.attempt.number)
        return abs(begun - there) <= timedelta(seconds=CLOCK_SLACK_S)


def attempts_of(allocation: Allocation) -> tuple[Attempt, ...]:
    """All attempts. An allocation without a list gets one with its only attempt."""
    if allocation.attempts:
        return allocation.attempts
    return (
        Attempt(
            number=allocation.attempt,
            state=allocation.state,
            submitted=allocation.submitted,
            started=allocation.started,
            ended=allocation.ended,
            nodes=allocation.nodes,
            node_count=allocation.node_count,
            exit_code=allocation.exit_code,
            sluid=allocation.sluid,
        ),
    )


def chosen_attempt(allocation: Allocation, number: int) -> Attempt:
    """The attempt with this number; for 0 the newest that has started. Raises `NotFound`.

    If none has started, 0 means the last one.
    """
    attempts = attempts_of(allocation)
    if not number:
        return next((each for each in reversed(attempts) if each.started), attempts[-1])
    for each in attempts:
        if each.number == number:
            return each
    raise NotFound(
        f"Allocation {allocation.id} has no attempt {number}.", hint=f"It has {len(attempts)}."
    )


def named(
    allocation: Allocation, attempt: Attempt, accounts: AccountTree, now: datetime
) -> JobAttempt:
    """The attempt, once its tenant is known. Raises `Unavailable` before that.

    The server may have just started, or the account may be new. Data stored without a tenant would
    never be found again.
    """
    settled = bool(accounts.accounts) and now - allocation.submitted > _ACCOUNT_KNOWN_WITHIN
    if allocation.account and not allocation.tenant and not settled:
        raise Unavailable(
            f"Slurm's accounting has not said yet whose account {allocation.account} is.",
            hint="Try again in a few seconds.",
        )
    return JobAttempt(allocation, attempt)


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """Attempts that ended on a node; not `complete` if a part of Slurm does not answer."""

    attempts: tuple[JobAttempt, ...]
    complete: bool


AttemptLookup: TypeAlias = Callable[[str, int, float], Awaitable[JobAttempt]]
"""The attempt of a job that began on a node at a time, as `AttemptFinder.of`."""
