"""Under which name a job's logs are kept, and when that is not known yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.base.errors import NotFound, Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation, State
from lattice.domain.attempts import attempts_of, named
from lattice.domain.scheduler import SchedulerReading
from lattice.features.logs.service.log_keys import name_of
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

NOW = ManualClock().now()
KNOWN = AccountTree.of([Account("physics", "root"), Account("research", "physics")])


def job(account: str, tenant: str, age: timedelta = timedelta(minutes=1)) -> Allocation:
    return allocation(7, "alice", account, tenant=tenant, submitted=NOW - age)


def prefix(told: Allocation, accounts: AccountTree) -> str:
    return name_of(named(told, attempts_of(told)[0], accounts, NOW)).prefix


@pytest.mark.spec("LOG-1")
def test_a_tenant_and_a_project() -> None:
    assert prefix(job("research", "physics"), KNOWN).startswith("physics/research/7/logs/")


@pytest.mark.spec("LOG-1")
def test_a_server_that_does_not_know_the_accounts_yet_stores_nothing_in_the_wrong_place() -> None:
    with pytest.raises(Unavailable, match="research"):
        prefix(job("research", "", timedelta(days=1)), AccountTree())


@pytest.mark.spec("LOG-1")
def test_an_account_that_is_newer_than_what_is_known() -> None:
    with pytest.raises(Unavailable):
        prefix(job("brandnew", ""), KNOWN)
    assert prefix(job("gone", "", timedelta(days=1)), KNOWN).startswith("-/gone/7/")


@pytest.mark.spec("LOG-1")
def test_a_cluster_without_accounts() -> None:
    assert prefix(job("", ""), AccountTree()).startswith("-/-/7/")


class StaleScheduler(InMemoryScheduler):
    """One whose last reading is old until it is asked for a fresh one."""

    newer: tuple[Allocation, ...] = ()

    async def fresh(
        self,
        *,
        nodes: bool = False,
        accounts: bool = False,  # noqa: ARG002
        users: Collection[str] = (),  # noqa: ARG002
    ) -> SchedulerReading:
        if self.newer:
            self.allocations, self.down = list(self.newer), False
        reading = await super().fresh(nodes=nodes)
        self.down = True
        return reading


def stale(clock: ManualClock, first: Allocation) -> StaleScheduler:
    scheduler = StaleScheduler(clock)
    scheduler.allocations.append(first)
    scheduler.read()
    scheduler.down = True
    return scheduler


@pytest.mark.spec("LOG-1")
async def test_a_reading_from_before_it_began_says_nothing_of_its_attempt() -> None:
    """The attempt before is under way in it: the next one's text would be stored with its own."""
    clock = ManualClock()
    began = clock.now()
    first = allocation(7, "alice", "", submitted=began, started=began)
    scheduler = stale(clock, first)
    naming = AttemptFinder(scheduler, clock)
    assert (await naming.of("n1", 7, began.timestamp())).attempt.number == 1
    clock.advance(60)
    again = clock.now()
    run = attempts_of(first)[0]
    ended = replace(run, state=State.REQUEUED, ended=again - timedelta(seconds=20))
    current = replace(run, number=2, submitted=again, started=again)
    scheduler.newer = (replace(first, attempt=2, first_submitted=began, attempts=(ended, current)),)
    clock.advance(3)
    assert (await naming.of("n1", 7, again.timestamp())).attempt.number == 2


@pytest.mark.spec("LOG-1")
async def test_while_slurm_is_silent_nothing_new_is_put_with_what_was_known() -> None:
    clock = ManualClock()
    began = clock.now()
    scheduler = stale(clock, allocation(7, "alice", "", submitted=began, started=began))
    clock.advance(60)
    with pytest.raises(NotFound):
        await AttemptFinder(scheduler, clock).of("n1", 7, clock.now().timestamp())
