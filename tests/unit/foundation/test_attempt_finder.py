"""Which attempt a node means that was away when the job began, and what ended there meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.attempts import NotKnownYet, attempts_of
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.finder = AttemptFinder(self.scheduler, self.clock)
        self.began = self.clock.now()

    def at(self, second: float) -> datetime:
        return self.began + timedelta(seconds=second)

    def job(
        self, job_id: int = 7, begin: float = 0, end: float = 5, nodes: str = "n1"
    ) -> Allocation:
        return allocation(
            job_id, "alice", "", submitted=self.at(begin), started=self.at(begin),
            ended=self.at(end), state=State.COMPLETED, nodes=nodes,
        )  # fmt: skip

    def requeued(self, *runs: tuple[float, float]) -> Allocation:
        job = self.job()
        attempts = tuple(
            replace(run_of(job), number=number, started=self.at(begin), ended=self.at(end))
            for number, (begin, end) in enumerate(runs, 1)
        )
        return replace(job, attempt=len(runs), attempts=attempts)

    async def found(self, second: float, node: str = "n1") -> int:
        """The number of the attempt for a job that was noticed at that second."""
        moment = self.at(second).timestamp()
        return (await self.finder.of(node, 7, moment)).attempt.number


def run_of(job: Allocation) -> Attempt:
    return attempts_of(job)[0]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("forgotten", [False, True], ids=["in the controller", "in accounting"])
async def test_a_job_noticed_long_after_its_end_is_the_only_one_that_fits(
    site: Site, forgotten: bool
) -> None:
    kept = site.scheduler.remembered if forgotten else site.scheduler.allocations
    kept.append(site.job())
    site.clock.advance(30)
    assert await site.found(16) == 1


@pytest.mark.spec("LOG-3")
async def test_what_both_know_is_one_attempt(site: Site) -> None:
    site.scheduler.allocations.append(site.job())
    site.scheduler.remembered.append(site.job())
    site.clock.advance(30)
    assert await site.found(16) == 1


@pytest.mark.spec("LOG-3", "AUTH-8")
async def test_of_two_attempts_on_the_node_none_is_guessed(site: Site) -> None:
    site.scheduler.allocations.append(site.requeued((0, 2), (5, 8)))
    site.clock.advance(60)
    with pytest.raises(NotFound):
        await site.found(16)
    assert await site.found(6) == 2, "one that was under way then is no guess"


@pytest.mark.spec("AUTH-8")
async def test_a_job_of_another_node_never_fits(site: Site) -> None:
    site.scheduler.allocations.append(site.job(nodes="n2"))
    site.clock.advance(60)
    with pytest.raises(NotFound):
        await site.found(16)


@pytest.mark.spec("LOG-1")
async def test_a_job_that_began_after_the_moment_does_not_fit(site: Site) -> None:
    site.scheduler.allocations.append(site.job(begin=30, end=35))
    site.clock.advance(60)
    with pytest.raises(NotFound):
        await site.found(16)


@pytest.mark.spec("LOG-1")
async def test_nothing_is_matched_by_a_reading_from_before_the_moment(site: Site) -> None:
    site.scheduler.allocations.append(site.job())
    site.clock.advance(16)
    with pytest.raises(NotKnownYet):
        await site.found(16)
    site.clock.advance(3)
    assert await site.found(16) == 1


@pytest.mark.spec("LOG-3")
@given(
    runs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=4, unique_by=lambda r: r[0]
    ),
    moment=st.integers(60, 90),
)
async def test_a_late_moment_finds_the_attempt_exactly_when_there_is_one(
    runs: list[tuple[int, int]], moment: int
) -> None:
    site = Site()
    spans = [(float(begin), float(min(begin + lasted, 50))) for begin, lasted in sorted(runs)]
    if spans:
        site.scheduler.remembered.append(site.requeued(*spans))
    site.clock.advance(200)
    site.scheduler.read()
    try:
        found = await site.found(moment)
    except NotFound:
        assert len(spans) != 1
    else:
        assert (found, len(spans)) == (1, 1)


@pytest.mark.spec("LOG-3")
async def test_what_ended_on_a_node_comes_from_the_controller_and_from_accounting(
    site: Site,
) -> None:
    site.scheduler.allocations += [site.job(1), site.job(2, nodes="n2"), site.job(3, -100, -50)]
    site.scheduler.remembered += [site.job(1), site.job(4, 1, 2), site.job(5, nodes="n2")]
    site.clock.advance(30)
    found = await site.finder.ended_on("n1", site.at(0))
    assert sorted(each.allocation.job_id for each in found.attempts) == [1, 4]
    assert found.complete


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("away", ["down", "past_down"])
async def test_while_a_part_of_slurm_is_silent_the_list_is_said_to_be_incomplete(
    site: Site, away: str
) -> None:
    site.scheduler.allocations.append(site.job(1))
    site.scheduler.read()
    setattr(site.scheduler, away, True)
    site.clock.advance(30)
    found = await site.finder.ended_on("n1", site.at(0))
    assert [each.allocation.job_id for each in found.attempts] == [1]
    assert not found.complete
