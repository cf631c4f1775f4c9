"""Administrators lock and unlock; the book of locks is the same on every replica."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.locks import refuse_locked
from lattice.access.permission import Permission
from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.lock import Lock, LockKind
from lattice.domain.state import Entry
from lattice.features.locks.model import LockList, LockOrder, UnlockOrder
from lattice.features.locks.service import KNOWN_FOR_S, LOCKS, LockBook, LockService
from tests.eventually import eventually_async
from tests.fakes.cluster import ACCOUNTS
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.manual_clock import ManualClock

OLGA = Actor(sub="olga-1", user="olga", role=Role.OPERATOR)


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.state = InMemoryStateStore(self.clock)
        self.book = LockBook(self.state, InMemoryStateView(self.state, LOCKS), self.clock)
        self.acts: list[tuple[str, str, str, str]] = []
        self.service = LockService(self.book, self.scheduler, self.clock, self)

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))

    async def lock(self, kind: str, target: str = "", duration_s: int = 0) -> LockList:
        order = LockOrder(kind=kind, target=target, reason="why", duration_s=duration_s)
        return await self.service.lock(OLGA, order)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("AUTH-13")
async def test_a_lock_holds_until_it_is_unlocked_and_both_are_logged(site: Site) -> None:
    answer = await site.lock("user", "alice")
    assert answer.locks == (site.book.of_user("alice"),)
    assert site.book.of_user("bob", "sub-2", "") is None
    site.clock.advance(90 * 86400)
    assert (await site.service.locks(OLGA)).locks == answer.locks
    await site.service.unlock(OLGA, UnlockOrder(kind="user", target="alice"))
    assert site.book.of_user("alice") is None
    assert site.acts == [
        ("lock", "user alice", "olga-1", "why"),
        ("unlock", "user alice", "olga-1", ""),
    ]


@pytest.mark.spec("AUTH-13")
async def test_with_all_locks_taken_one_of_them_can_still_be_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.locks.service.MOST_LOCKS", 2)
    for name in ("alice", "bob"):
        await site.lock("user", name)
    with pytest.raises(Unavailable, match="as many locks as there can be"):
        await site.lock("user", "carol")
    with pytest.raises(Unavailable, match="as many locks as there can be"):
        await site.lock("node", "alice")
    (renewed,) = (await site.lock("user", "bob", duration_s=60)).locks
    assert site.book.of_user("bob") == renewed
    assert renewed.until is not None
    assert len((await site.service.locks(OLGA)).locks) == 2


@pytest.mark.spec("AUTH-13")
async def test_a_lock_for_a_while_ends_by_itself(site: Site) -> None:
    (lock,) = (await site.lock("node", "n3", duration_s=3600)).locks
    assert lock.until == lock.since + timedelta(hours=1)
    site.clock.advance(3599)
    assert site.book.of_node("n3") == lock
    site.clock.advance(1)
    assert site.book.of_node("n3") is None
    assert (await site.service.locks(OLGA)).locks == ()


@pytest.mark.spec("AUTH-13")
async def test_a_lock_of_everything_covers_every_user_and_no_node(site: Site) -> None:
    await site.lock("all")
    lock = site.book.of_user("anybody")
    assert lock is not None
    assert lock.kind is LockKind.ALL
    assert site.book.of_node("n1") is None
    assert site.book.of_session("f" * 32) is None


async def test_locked_again_the_reason_and_the_end_are_new(site: Site) -> None:
    await site.lock("session", "f" * 32, duration_s=60)
    await site.service.lock(OLGA, LockOrder(kind="session", target="f" * 32, reason="another."))
    (lock,) = (await site.service.locks(OLGA)).locks
    assert (lock.reason, lock.until) == ("another", None)


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("user", "", "why"),
        ("all", "alice", "why"),
        ("cluster", "x", "why"),
        ("user", "alice", "  "),
        ("user", "alice", "x" * 201),
        ("user", "a" * 201, "why"),
        ("node", "n\x1b1", "why"),
        ("user", "olga", "why"),
        ("user", "olga-1", "why"),
    ],
)
async def test_what_can_not_be_locked(site: Site, kind: str, target: str, reason: str) -> None:
    with pytest.raises(UsageError):
        await site.service.lock(OLGA, LockOrder(kind=kind, target=target, reason=reason))
    assert site.acts == []


@pytest.mark.spec("AUTH-13")
async def test_a_tenant_admin_locks_users_of_her_tenant_alone(site: Site) -> None:
    site.scheduler.accounts = AccountTree.of(
        [Account("genomics"), Account("physics")], {"alice": ["physics"], "gina": ["genomics"]}
    )
    dora = Actor(sub="d", user="dora", role=Role.TENANT_ADMIN, tenant="genomics")
    await site.lock("user", "alice")
    await site.service.lock(dora, LockOrder(kind="user", target="gina", reason="left"))
    assert [each.target for each in (await site.service.locks(dora)).locks] == ["gina"]
    for kind, target in (("user", "alice"), ("node", "n1"), ("session", "x"), ("all", "")):
        with pytest.raises(PermissionRefused):
            await site.service.lock(dora, LockOrder(kind=kind, target=target, reason="why"))
        with pytest.raises(PermissionRefused):
            await site.service.unlock(dora, UnlockOrder(kind=kind, target=target))


@pytest.mark.spec("AUTH-13")
async def test_a_lock_that_is_renewed_meanwhile_is_ended_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.lock("user", "alice")
    read, renewals = site.state.get, iter([True])

    async def get_then_renew(key: str) -> Entry | None:
        entry = await read(key)
        if next(renewals, False):
            await site.lock("user", "alice")
        return entry

    monkeypatch.setattr(site.state, "get", get_then_renew)
    await site.service.unlock(OLGA, UnlockOrder(kind="user", target="alice"))
    assert site.book.of_user("alice") is None


async def test_what_is_not_locked_can_not_be_unlocked(site: Site) -> None:
    with pytest.raises(NotFound, match="no lock of user bob"):
        await site.service.unlock(OLGA, UnlockOrder(kind="user", target="bob"))


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"reason":1,"by":2,"since":"x"}'])
async def test_a_lock_that_can_not_be_read_still_locks(site: Site, value: bytes) -> None:
    await site.state.put(f"{LOCKS}user/alice", value)
    await site.state.put(f"{LOCKS}strange/x", value)
    assert site.book.of_user("alice") is not None
    everything = site.book.of_user("bob")
    assert everything is not None
    assert everything.kind is LockKind.ALL


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("locked-cut-off")
async def test_a_replica_that_hears_nothing_knows_that_it_does_not_know(site: Site) -> None:
    view = WatchedStateView(site.state, LOCKS, site.clock)
    book = LockBook(site.state, view, site.clock)
    assert not book.current
    await view.refresh()
    assert book.current
    site.clock.advance(KNOWN_FOR_S + 0.1)
    assert not book.current


@pytest.mark.spec("AUTH-13")
async def test_another_replica_wakes_its_streams_when_something_is_locked(site: Site) -> None:
    view = WatchedStateView(site.state, LOCKS, site.clock)
    book = LockBook(site.state, view, site.clock)
    tasks = [asyncio.create_task(view.run()), asyncio.create_task(book.run())]
    try:
        await view.wait_first()
        await asyncio.sleep(0)
        change = book.next_change()
        await site.lock("user", "alice")
        async with asyncio.timeout(60):
            await change
        found: Lock | None = await eventually_async(lambda: book.of_user("alice"))
        assert found is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_is_locked_while_the_state_is_away(site: Site) -> None:
    site.state.away = True
    with pytest.raises(Unavailable):
        await site.lock("user", "alice")
    assert site.acts == []


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("lock-out")
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.SYSTEM_ADMIN])
async def test_a_lock_of_one_who_could_unlock_is_ended_by_another(site: Site, role: Role) -> None:
    other = Actor(sub="otto-1", user="otto", role=role)
    await site.lock("user", "otto")
    with pytest.raises(PermissionRefused):
        refuse_locked(other, Permission.LOCK_ACCESS, site.book)
    third = Actor(sub="ida-1", user="ida", role=role)
    refuse_locked(third, Permission.LOCK_ACCESS, site.book)
    await site.service.unlock(third, UnlockOrder(kind="user", target="otto"))
    refuse_locked(other, Permission.LOCK_ACCESS, site.book)
