"""Records, tickets and tidying: one truth however many servers write."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.base.errors import LoginRequired, NotFound, RateLimited, Unavailable, UsageError
from lattice.features.attach.model import EndReason
from lattice.features.attach.service import records as module
from lattice.features.attach.service.records import OPEN, PAST, RecordCleanup, SessionRecords
from lattice.features.attach.service.tickets import TICKETS, AttachTickets
from lattice.features.attach.sessions import AttachSession
from tests.fakes.cluster import populated
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.one = SessionRecords(self.state, self.clock, "r1")
        self.two = SessionRecords(self.state.another(), self.clock, "r2")

    def session(self, number: int = 1, **facts: object) -> AttachSession:
        made = AttachSession(
            id=f"{number:032x}",
            user="alice",
            subject="alice-1",
            allocation="7@1",
            attempt=1,
            node="n1",
            command=("top", "-d", "1"),
            terminal=True,
            started=self.clock.now(),
        )
        return replace(made, **facts)  # type: ignore[arg-type]

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.state.space.entries if key.startswith(prefix)]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("ATTACH-9")
async def test_a_session_is_open_and_then_past_and_never_both(site: Site) -> None:
    record = await site.one.begin(site.session())
    assert (len(site.keys(OPEN)), len(site.keys(PAST))) == (1, 0)
    over = await site.one.end(record, EndReason.EXITED, 0)
    assert (len(site.keys(OPEN)), len(site.keys(PAST))) == (0, 1)
    (listed,), more = await site.two.of("alice")
    assert (
        listed
        == over
        == replace(site.session(), ended=site.clock.now(), reason=EndReason.EXITED, exit_code=0)
    )
    assert not more
    assert await site.two.end(record, EndReason.CLIENT_LOST) is None, "it is over once"
    with pytest.raises(NotFound):
        await site.two.resume(record.session.id, "alice", "alice-1")
    with pytest.raises(UsageError):
        await site.two.begin(site.session())


@pytest.mark.spec("ATTACH-9")
async def test_who_serves_it_last_ends_it(site: Site) -> None:
    first = await site.one.begin(site.session())
    second = await site.two.resume(first.session.id, "alice", "alice-1")
    assert (second.sequence, second.replica) == (2, "r2")
    with pytest.raises(Unavailable):
        await site.one.left(first)
    assert await site.one.end(first, EndReason.CLIENT_LOST) is None
    assert await site.two.end(second, EndReason.EXITED) is not None


@pytest.mark.spec("ATTACH-9")
async def test_a_beginning_that_is_asked_for_again_is_the_same_session(site: Site) -> None:
    await site.one.begin(site.session())
    site.clock.advance(1)
    again = await site.two.begin(site.session())
    assert again.sequence == 2
    with pytest.raises(UsageError):
        await site.two.begin(site.session(node="n2"))


@pytest.mark.spec("AUTH-7")
async def test_nobody_goes_on_with_anothers(site: Site) -> None:
    record = await site.one.begin(site.session())
    for user, subject in (("alice", "robot"), ("bob", "alice-1"), ("", "")):
        with pytest.raises(NotFound):
            await site.one.resume(record.session.id, user, subject)


async def test_a_record_that_cannot_be_read_is_passed_over(site: Site) -> None:
    await site.state.put(f"{OPEN}alice/x", b"{}")
    await site.state.put(f"{PAST}alice/y", b"\xff")
    assert await site.one.of("alice") == ((), False)
    assert await site.one.all_open() == ()


async def test_records_go_after_their_time_and_the_oldest_when_there_are_too_many(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PAST", 20)
    for number in range(30):
        await site.one.end(await site.one.begin(site.session(number)), EndReason.EXITED)
        site.clock.advance(1)
    kept = {each.rpartition("/")[2] for each in site.keys(PAST)}
    assert len(kept) <= 20
    assert f"{29:032x}" in kept
    assert f"{0:032x}" not in kept
    site.clock.advance(timedelta(days=31).total_seconds())
    assert await site.one.of("alice") == ((), False)
    await site.one.end(await site.one.begin(site.session(99)), EndReason.EXITED)
    assert len(site.keys(PAST)) == 1


@pytest.mark.spec("ATTACH-9")
async def test_a_server_that_died_leaves_no_session_open_for_ever(site: Site) -> None:
    await site.one.begin(site.session(1))
    kept = await site.two.begin(site.session(2))
    tidying = RecordCleanup(site.two, site.clock, lambda: ("r2", "r3"))
    for _ in range(4):
        await tidying.tidy()
        site.clock.advance(20)
    assert len(site.keys(OPEN)) == 2, "its client may still come back"
    await tidying.tidy()
    sessions = {each.id: each for each in (await site.one.of("alice"))[0]}
    assert sessions[f"{1:032x}"].reason is EndReason.CLIENT_LOST
    assert sessions[kept.session.id].ended is None


@pytest.mark.spec("ATTACH-9")
async def test_a_session_that_moved_to_a_server_that_is_up_is_left_alone(site: Site) -> None:
    first = await site.one.begin(site.session())
    tidying = RecordCleanup(site.two, site.clock, lambda: ("r2",))
    await tidying.tidy()
    site.clock.advance(50)
    await site.two.resume(first.session.id, "alice", "alice-1")
    for _ in range(10):
        site.clock.advance(20)
        await tidying.tidy()
    assert len(site.keys(OPEN)) == 1


@pytest.mark.spec("ATTACH-9")
async def test_one_whose_client_left_is_ended_by_whoever_looks(site: Site) -> None:
    record = await site.one.begin(site.session())
    await site.one.left(record)
    tidying = RecordCleanup(site.two, site.clock, lambda: ("r1", "r2"))
    site.clock.advance(74)
    await tidying.tidy()
    assert site.keys(OPEN)
    site.clock.advance(2)
    await tidying.tidy()
    assert not site.keys(OPEN)


@pytest.fixture
def tickets(site: Site) -> AttachTickets:
    finder = AllocationFinder(populated(site.clock), site.clock)
    return AttachTickets(finder, site.state, site.clock)


ALICE = Actor(sub="alice-1", user="alice", scopes=frozenset({"x"}))


@pytest.mark.spec("ATTACH-8")
async def test_a_ticket_stands_for_its_caller_once_and_for_thirty_seconds(
    site: Site, tickets: AttachTickets
) -> None:
    """Attack 8."""
    first = await tickets.issue(ALICE, "1")
    assert await tickets.redeem(first.ticket, "1") == ALICE
    second, third = await tickets.issue(ALICE, "1"), await tickets.issue(ALICE, "1")
    said = set()
    for ticket, name, later_s in (
        (first.ticket, "1", 0),
        (second.ticket, "5", 0),
        (second.ticket, "1", 0),
        (third.ticket, "1", 31),
        ("", "1", 0),
        ("../../cluster", "1", 0),
        (third.ticket.upper(), "1", 0),
    ):
        site.clock.advance(later_s)
        with pytest.raises(LoginRequired) as refused:
            await tickets.redeem(ticket, name)
        said.add((refused.value.message, refused.value.hint))
    assert len(said) == 1, "nobody learns what was wrong with it"


@pytest.mark.spec("ATTACH-8")
async def test_the_state_holds_no_ticket_that_could_be_used(
    site: Site, tickets: AttachTickets
) -> None:
    made = await tickets.issue(ALICE, "1")
    for key, entry in site.state.space.entries.items():
        assert made.ticket not in key
        assert made.ticket.encode() not in entry.value
    site.clock.advance(31)
    await tickets.issue(ALICE, "1")
    assert len(site.keys(TICKETS)) == 1, "those nobody used are cleared away"


@pytest.mark.spec("ATTACH-8")
async def test_a_ticket_does_not_outlive_its_callers_token(
    site: Site, tickets: AttachTickets
) -> None:
    expires = site.clock.now() + timedelta(seconds=10)
    made = await tickets.issue(replace(ALICE, expires=expires), "1")
    site.clock.advance(11)
    with pytest.raises(LoginRequired):
        await tickets.redeem(made.ticket, "1")


@pytest.mark.spec("ATTACH-8")
async def test_one_caller_can_not_use_up_the_tickets_of_all(
    site: Site, tickets: AttachTickets
) -> None:
    made = [await tickets.issue(ALICE, "1") for _ in range(20)]
    with pytest.raises(RateLimited) as refused:
        await tickets.issue(ALICE, "1")
    assert refused.value.retry_after_s == 30
    await tickets.issue(replace(ALICE, sub="alice-2"), "1")
    await tickets.redeem(made[0].ticket, "1")
    await tickets.issue(ALICE, "1")
    site.clock.advance(31)
    await tickets.issue(ALICE, "1")


@pytest.mark.spec("AUTH-7")
async def test_no_ticket_for_anothers_job(tickets: AttachTickets) -> None:
    for name in ("2", "999"):
        with pytest.raises(NotFound):
            await tickets.issue(ALICE, name)
