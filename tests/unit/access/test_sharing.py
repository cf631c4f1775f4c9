"""What owners share, in the one look-up there is; and the door through which output is read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.access.actor import ATTACH_SCOPE, Actor, Role
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.access.permission import Permission
from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.allocation import Array, State
from lattice.domain.sharing import ReadKind, Share, Standing
from lattice.features.sharing.service.sharing import SHARES, SharedAllocations
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="1", user="alice")
BOB = Actor(sub="2", user="bob")
DAVE = Actor(sub="4", user="dave")
PHYSICIST = Actor(sub="5", user="pat", role=Role.TENANT_ADMIN, tenant="physics")
BIOLOGIST = Actor(sub="6", user="ben", role=Role.TENANT_ADMIN, tenant="biology")
ROOT = Actor(sub="7", role=Role.SYSTEM_ADMIN)


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.began = self.clock.now().replace(microsecond=0) - timedelta(hours=1)
        self.state = InMemoryStateStore(self.clock)
        self.sharing = sharing_parts(self.state)
        self.finder = AllocationFinder(self.scheduler, self.clock, self.sharing.shares)
        self.door = OutputAccess(self.finder, self.sharing.notes, self.clock)
        for job_id, user in ((1, "alice"), (2, "alice"), (3, "bob")):
            self.scheduler.allocations.append(
                allocation(job_id, user, "research", submitted=self.began)
            )

    async def share(self, name: str, user: str = "bob", hours: float = 1) -> Share:
        now = self.clock.now()
        share = Share(
            allocation=f"{name}@{int(self.began.timestamp())}",
            owner="alice",
            user=user,
            since=now,
            until=now + timedelta(hours=hours),
        )
        await self.sharing.shares.begin(share)
        return share

    async def finds(self, actor: Actor, name: str, permission: Permission) -> Standing | None:
        try:
            return (await self.finder.find(actor, permission, name)).standing
        except NotFound:
            return None


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("AUTH-7")
async def test_who_finds_what_and_by_which_right(site: Site) -> None:
    await site.share("1")
    expected = {
        ("alice", "1"): "owner", ("alice", "2"): "owner", ("alice", "3"): None,
        ("bob", "1"): "shared", ("bob", "2"): None, ("bob", "3"): "owner",
        ("dave", "1"): None, ("dave", "2"): None, ("dave", "3"): None,
        ("pat", "1"): "tenant admin", ("pat", "2"): "tenant admin", ("pat", "3"): "tenant admin",
        ("ben", "1"): None, ("ben", "2"): None, ("ben", "3"): None,
        ("", "1"): "system admin", ("", "2"): "system admin", ("", "3"): "system admin",
    }  # fmt: skip
    found = {
        (actor.user, name): await site.finds(actor, name, Permission.READ_OUTPUT)
        for actor in (ALICE, BOB, DAVE, PHYSICIST, BIOLOGIST, ROOT)
        for name in ("1", "2", "3")
    }
    assert found == expected


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("wider-share")
async def test_a_share_shows_the_card_and_lets_nobody_act(site: Site) -> None:
    await site.share("1")
    may = {each for each in Permission if await site.finds(BOB, "1", each)}
    assert may == {
        Permission.READ_OUTPUT,
        Permission.READ_MEASUREMENTS,
        Permission.VIEW_ALLOCATIONS,
    }


@pytest.mark.spec("AUTH-5", "AUTH-7")
async def test_a_token_without_the_scope_takes_no_share(site: Site) -> None:
    await site.share("1")
    narrow = Actor(sub="2", user="bob", scopes=frozenset({ATTACH_SCOPE}))
    assert await site.finds(narrow, "1", Permission.READ_OUTPUT) is None


@pytest.mark.spec("AUTH-7")
async def test_a_share_ends_with_its_time_and_when_it_is_ended(site: Site) -> None:
    share = await site.share("1")
    site.clock.advance(3599)
    assert await site.finds(BOB, "1", Permission.READ_OUTPUT) is Standing.SHARED
    site.clock.advance(1)
    assert await site.finds(BOB, "1", Permission.READ_OUTPUT) is None
    share = await site.share("1")
    assert await site.finds(BOB, "1", Permission.READ_OUTPUT) is Standing.SHARED
    await site.sharing.shares.end(share)
    assert await site.finds(BOB, "1", Permission.READ_OUTPUT) is None


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("wider-share")
async def test_a_later_use_of_the_id_is_not_shared(site: Site) -> None:
    await site.share("1")
    later = site.began + timedelta(minutes=30)
    site.scheduler.allocations[0] = allocation(1, "alice", "research", submitted=later)
    assert await site.finds(BOB, "1", Permission.READ_OUTPUT) is None


@pytest.mark.spec("AUTH-7")
async def test_a_share_in_another_owners_name_shows_nothing(site: Site) -> None:
    """Were such a key ever written: what counts is whose the allocation is."""
    now = site.clock.now()
    await site.sharing.shares.begin(
        Share(
            allocation=f"3@{int(site.began.timestamp())}",
            owner="alice",
            user="dave",
            since=now,
            until=now + timedelta(hours=1),
        )
    )
    assert await site.finds(DAVE, "3", Permission.READ_OUTPUT) is None


@pytest.mark.spec("AUTH-7")
async def test_an_array_is_shared_whole_or_by_the_task(site: Site) -> None:
    site.scheduler.allocations = [
        allocation(
            40 + task, "alice", "research", id=f"40_{task}", array=Array(40, task),
            submitted=site.began,
        )
        for task in (1, 2)
    ]  # fmt: skip
    share = await site.share("40_1")
    found = await site.finder.find(BOB, Permission.READ_OUTPUT, "40")
    assert (found.allocation.id, found.siblings) == ("40_1", ())
    assert await site.finds(BOB, "40_2", Permission.READ_OUTPUT) is None
    await site.sharing.shares.end(share)
    await site.share("40")
    found = await site.finder.find(BOB, Permission.READ_OUTPUT, "40")
    assert {found.allocation.id, *(each.id for each in found.siblings)} == {"40_1", "40_2"}


@pytest.mark.spec("AUTH-7")
async def test_what_is_over_is_found_by_a_share_too(site: Site) -> None:
    site.scheduler.remembered = [
        allocation(
            9, "alice", "research", submitted=site.began, state=State.COMPLETED,
            ended=site.began + timedelta(minutes=1),
        )
    ]  # fmt: skip
    await site.share("9")
    assert await site.finds(BOB, "9", Permission.READ_OUTPUT) is Standing.SHARED


@pytest.mark.spec("AUTH-12")
@pytest.mark.threat("guessed-id")
async def test_not_yours_and_not_there_are_one_answer_at_one_cost(site: Site) -> None:
    await site.share("1")
    told = []
    for name in ("2", "77"):
        site.scheduler.questions.clear()
        site.scheduler.looked_again = 0
        with pytest.raises(NotFound) as refused:
            await site.finder.find(BOB, Permission.READ_OUTPUT, name)
        asked = [each.scope for each in site.scheduler.questions]
        words = refused.value.message.replace(name, "N")
        told.append((words, refused.value.hint, asked, site.scheduler.looked_again))
    assert told[0] == told[1]


@pytest.mark.spec("AUTH-12")
@pytest.mark.threat("guessed-id")
async def test_while_the_state_is_silent_both_are_unknown_and_ones_own_is_there(site: Site) -> None:
    site.state.away = True
    for name in ("2", "77"):
        with pytest.raises(Unavailable, match=f"allocation {name} exists can't be told"):
            await site.finder.find(BOB, Permission.READ_OUTPUT, name)
    assert (await site.finder.find(BOB, Permission.READ_OUTPUT, "3")).standing is Standing.OWNER


async def noted(site: Site) -> list[tuple[str, str, int]]:
    records = await site.sharing.notes.of(site.scheduler.allocations)
    return sorted((each.reader, each.standing.value, each.times) for each in records)


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("secret-read")
async def test_a_read_by_another_is_written_down_and_the_owners_is_not(site: Site) -> None:
    await site.share("1")
    for actor in (ALICE, BOB, PHYSICIST, ROOT):
        found = await site.door.find(actor, "1")
        visit = await site.door.enter(actor, found, ReadKind.READ)
        assert visit.is_owners is (actor is ALICE)
    assert await noted(site) == [
        ("7", "system admin", 1), ("bob", "shared", 1), ("pat", "tenant admin", 1),
    ]  # fmt: skip


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("secret-read")
async def test_what_cannot_be_written_down_is_not_shown_and_owners_read_on(site: Site) -> None:
    await site.share("1")
    found = {
        actor.user: await site.door.find(actor, "1") for actor in (ALICE, BOB, PHYSICIST, ROOT)
    }
    site.state.away = True
    for actor in (BOB, PHYSICIST, ROOT):
        with pytest.raises(Unavailable):
            await site.door.enter(actor, found[actor.user], ReadKind.READ)
    await site.door.enter(ALICE, found["alice"], ReadKind.READ)
    site.state.away = False
    assert await noted(site) == []


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("ended-share")
async def test_a_share_that_ended_after_it_was_found_shows_nothing(site: Site) -> None:
    """As on a server whose sight of the state is behind."""
    share = await site.share("1")
    found = await site.door.find(BOB, "1")
    await site.sharing.shares.end(share)
    with pytest.raises(NotFound):
        await site.door.enter(BOB, found, ReadKind.READ)
    assert await noted(site) == []


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("ended-share")
async def test_a_read_that_lasts_ends_with_the_right_to_it(site: Site) -> None:
    share = await site.share("1")
    bobs = await site.door.enter(BOB, await site.door.find(BOB, "1"), ReadKind.FOLLOW)
    pats = await site.door.enter(PHYSICIST, await site.door.find(PHYSICIST, "1"), ReadKind.FOLLOW)
    own = await site.door.enter(ALICE, await site.door.find(ALICE, "1"), ReadKind.FOLLOW)
    for visit in (bobs, pats, own):
        await visit.check()
    await site.sharing.shares.end(share)
    with pytest.raises(NotFound, match="No allocation 1 of yours"):
        await bobs.check()
    await pats.check()
    await own.check()


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("ended-share")
async def test_a_read_by_a_share_ends_where_the_state_is_lost_and_the_owners_goes_on(
    site: Site,
) -> None:
    view = WatchedStateView(site.state, SHARES, site.clock)
    shares = SharedAllocations(site.state, view, site.clock)
    finder = AllocationFinder(site.scheduler, site.clock, shares)
    door = OutputAccess(finder, site.sharing.notes, site.clock)
    await site.share("1")
    await view.refresh()
    bobs = await door.enter(BOB, await door.find(BOB, "1"), ReadKind.FOLLOW)
    own = await door.enter(ALICE, await door.find(ALICE, "1"), ReadKind.FOLLOW)
    await bobs.check()
    site.state.away = True
    site.clock.advance(41)
    with pytest.raises(Unavailable, match="Whether 1 is still shared with you"):
        await bobs.check()
    await own.check()


@pytest.mark.spec("AUTH-7")
async def test_a_read_that_lasts_is_noted_again_but_not_counted_again(site: Site) -> None:
    visit = await site.door.enter(PHYSICIST, await site.door.find(PHYSICIST, "1"), ReadKind.FOLLOW)
    site.clock.advance(601)
    await visit.check()
    records = await site.sharing.notes.of(site.scheduler.allocations)
    assert sum(each.times for each in records) == 1
    assert records[0].last == site.clock.now().replace(microsecond=0)
    site.state.away = True
    site.clock.advance(601)
    with pytest.raises(Unavailable):
        await visit.check()
