"""An owner shares, ends it, and sees who reads; nobody else does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.allocation_finder import AllocationFinder
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Array
from lattice.domain.sharing import ReadKind, Standing
from lattice.features.allocations.service import AllocationService
from lattice.features.sharing.model import ShareTerms
from lattice.features.sharing.service import sharing as sharing_module
from lattice.features.sharing.service.sharing import SharingService
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="1", user="alice")
BOB = Actor(sub="2", user="bob")
ADMIN = Actor(sub="3", user="root", role=Role.SYSTEM_ADMIN)
DAY_S = 86400


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.job = allocation(1, "alice", "research")
        self.scheduler.allocations = [self.job, allocation(2, "bob", "research")]
        self.state = InMemoryStateStore(self.clock)
        self.parts = sharing_parts(self.state)
        self.acts: list[tuple[str, str, str, str]] = []
        self.service = SharingService(
            self.scheduler,
            AllocationFinder(self.scheduler, self.clock, self.parts.shares),
            self.parts.shares,
            self.parts.notes,
            self.clock,
            ShareTerms(),
            self,
        )
        self.cards = AllocationService(
            self.scheduler, self.clock, self.parts.shares, self.parts.notes
        )

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("AUTH-7")
async def test_shared_for_a_while(site: Site) -> None:
    answer = await site.service.share(ALICE, "1", "bob", 2 * DAY_S)
    (share,) = answer.shares
    assert (share.user, share.owner, share.allocation) == ("bob", "alice", site.job.ref)
    assert share.until - share.since == timedelta(days=2)
    assert (await site.service.sharing(ALICE, "1")).shares == (share,)
    assert site.acts == [("share", site.job.ref, "1", "with bob for 2 d")]


@pytest.mark.spec("AUTH-7")
async def test_a_week_if_nothing_is_said_and_again_from_then_on(site: Site) -> None:
    await site.service.share(ALICE, "1", "bob", DAY_S)
    site.clock.advance(3600)
    (share,) = (await site.service.share(ALICE, "1", "bob")).shares
    assert share.until == site.clock.now().replace(microsecond=0) + timedelta(days=7)


@pytest.mark.parametrize("duration_s", [-1, 1, 59, 30 * DAY_S + 1])
async def test_not_for_ever_and_not_for_nothing(site: Site, duration_s: int) -> None:
    with pytest.raises(UsageError, match="can't be shared for"):
        await site.service.share(ALICE, "1", "bob", duration_s)


@pytest.mark.threat("share-guess")
async def test_only_with_a_user_that_there_is(site: Site) -> None:
    for user in ("nobody", "", "bob ", "b" * 1000, "../x"):
        with pytest.raises(UsageError, match="knows no user"):
            await site.service.share(ALICE, "1", user)
    with pytest.raises(UsageError, match="yours already"):
        await site.service.share(ALICE, "1", "alice")
    site.scheduler.accounts = AccountTree()
    with pytest.raises(Unavailable, match="Which users"):
        await site.service.share(ALICE, "1", "bob")


@pytest.mark.spec("AUTH-12", "AUTH-7")
@pytest.mark.parametrize("actor", [BOB, ADMIN])
async def test_nobody_else_shares_or_looks_not_even_one_it_is_shared_with(
    site: Site, actor: Actor
) -> None:
    await site.service.share(ALICE, "1", "bob")
    told = set()
    for name in ("1", "99"):
        for call in (
            site.service.share(actor, name, "dave"),
            site.service.unshare(actor, name, "bob"),
            site.service.sharing(actor, name),
        ):
            with pytest.raises(NotFound) as refused:
                await call
            told.add(refused.value.message.replace(name, "N"))
    assert len(told) == 1, "one answer, whether it is there or not"
    assert len((await site.service.sharing(ALICE, "1")).shares) == 1


@pytest.mark.spec("AUTH-7")
async def test_ended_at_once(site: Site) -> None:
    await site.service.share(ALICE, "1", "bob")
    await site.service.share(ALICE, "1", "dave")
    answer = await site.service.unshare(ALICE, "1", "bob")
    assert [each.user for each in answer.shares] == ["dave"]
    with pytest.raises(NotFound, match="not shared with bob"):
        await site.service.unshare(ALICE, "1", "bob")
    assert site.acts[-1][0] == "unshare"


@pytest.mark.spec("AUTH-7", "AUTH-12")
async def test_an_unsharing_that_is_repeated_says_what_is_left(site: Site) -> None:
    """The first answer was lost: that nothing is left to end is what was wanted."""
    await site.service.share(ALICE, "1", "bob")
    await site.service.share(ALICE, "1", "dave")
    await site.service.unshare(ALICE, "1", "bob")
    count = len(site.acts)
    again = await site.service.unshare(ALICE, "1", "bob", repeated=True)
    assert [each.user for each in again.shares] == ["dave"]
    assert len(site.acts) == count
    with pytest.raises(NotFound):
        await site.service.unshare(BOB, "1", "dave", repeated=True)


@pytest.mark.spec("AUTH-7")
async def test_unsharing_a_task_ends_the_share_of_its_array(site: Site) -> None:
    submitted = site.job.submitted
    site.scheduler.allocations = [
        allocation(
            40 + task, "alice", "research", id=f"40_{task}", array=Array(40, task),
            submitted=submitted,
        )
        for task in (1, 2)
    ]  # fmt: skip
    await site.service.share(ALICE, "40", "bob")
    assert [each.user for each in (await site.service.sharing(ALICE, "40_2")).shares] == ["bob"]
    assert (await site.service.unshare(ALICE, "40_2", "bob")).shares == ()
    with pytest.raises(NotFound):
        await site.cards.card(BOB, "40_1")


async def test_there_is_an_end_to_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_module, "MOST_OF_ALLOCATION", 1)
    await site.service.share(ALICE, "1", "bob")
    await site.service.share(ALICE, "1", "bob"), "the same again takes no more room"
    with pytest.raises(UsageError, match="as much as one may"):
        await site.service.share(ALICE, "1", "dave")
    monkeypatch.setattr(sharing_module, "MOST_SHARES", 1)
    monkeypatch.setattr(sharing_module, "MOST_OF_ALLOCATION", 9)
    with pytest.raises(Unavailable, match="as many shares"):
        await site.service.share(ALICE, "1", "dave")


async def test_what_is_over_is_removed_by_whoever_shares_next(site: Site) -> None:
    await site.service.share(ALICE, "1", "bob", DAY_S)
    site.clock.advance(DAY_S + 3601)
    await site.service.share(ALICE, "1", "dave", DAY_S)
    assert [key.split("/")[1] for key in site.state.space.entries] == ["dave"]


@pytest.mark.spec("AUTH-7")
async def test_a_key_that_can_not_be_read_shares_nothing(site: Site) -> None:
    await site.state.put(f"shares/bob/{site.job.ref}", b"{}")
    with pytest.raises(NotFound):
        await site.cards.card(BOB, "1")


@pytest.mark.spec("AUTH-7")
async def test_the_card_tells_the_owner_and_nobody_else(site: Site) -> None:
    await site.service.share(ALICE, "1", "bob")
    await site.parts.notes.note("carol", Standing.TENANT_ADMIN, site.job, ReadKind.READ)
    own = await site.cards.card(ALICE, "1")
    assert [each.user for each in own.shares] == ["bob"]
    assert [(each.reader, each.times) for each in own.readers] == [("carol", 1)]
    for actor in (BOB, ADMIN):
        card = await site.cards.card(actor, "1")
        assert card.allocation.id == "1"
        assert (card.shares, card.readers) == ((), ())


async def test_the_card_is_there_without_the_state(site: Site) -> None:
    site.state.away = True
    card = await site.cards.card(ALICE, "1")
    assert (card.allocation.id, card.readers) == ("1", ())
    assert [each.name for each in card.sources if not each.ok] == ["state"]
