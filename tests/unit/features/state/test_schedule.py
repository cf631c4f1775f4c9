"""Scheduled backups: on time, by one replica, and as many as are to be kept."""

from __future__ import annotations

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.state import Put
from lattice.features.state.service.schedule import AGAIN_AFTER_S, SCHEDULE, BackupSchedule
from tests.unit.features.state.state_site import ADMIN, StateSite


@pytest.fixture
async def site() -> StateSite:
    site = StateSite()
    await site.fill()
    return site


def schedule(site: StateSite, *, keep: int = 3) -> BackupSchedule:
    return BackupSchedule(site.make_service(keep=keep), site.state, site.clock, 1.0)


@pytest.mark.spec("OPS-3")
async def test_of_two_replicas_one_makes_each_backup(site: StateSite) -> None:
    replicas = schedule(site), schedule(site)
    made = []
    for _ in range(2 * 6):
        made.append([await each.check() for each in replicas])
        site.clock.advance(600)
    assert sum(each.count(True) for each in made) == 2
    assert made[0] == [True, False]
    assert len(await site.store.listed()) == 2


async def test_old_scheduled_backups_go_and_those_by_hand_stay(site: StateSite) -> None:
    by_hand = await site.service.create(ADMIN)
    running = schedule(site, keep=3)
    for _ in range(6):
        site.clock.advance(3601)
        assert await running.check()
    names = [each.name for each in await site.store.listed()]
    assert len(names) == 4
    assert names[-1] == by_hand.name


async def test_a_failed_backup_is_tried_again_soon_by_any_replica(site: StateSite) -> None:
    first, second = schedule(site), schedule(site)
    site.objects.away = True
    with pytest.raises(Unavailable):
        await first.check()
    site.objects.away = False
    assert not await second.check()
    site.clock.advance(AGAIN_AFTER_S)
    assert await second.check()


async def test_a_record_that_is_damaged_or_of_a_longer_schedule_delays_nothing(
    site: StateSite,
) -> None:
    for value in (b"?", b'{"next": 99999999999}'):
        await site.state.commit([], [Put(SCHEDULE, value)])
        assert await schedule(site).check()


async def test_two_that_find_it_due_at_the_same_time(site: StateSite) -> None:
    """The second one loses the compare-and-swap."""
    first, second = schedule(site), schedule(site)
    state = site.state
    entry = await state.get(SCHEDULE)
    assert entry is None
    assert await first.check()
    moved = await second._move(0, 0.0)  # as if it had read before the first one moved it
    assert moved is None
