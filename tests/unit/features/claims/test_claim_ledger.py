"""The records of claims where there are many, and claims that are made at the same time."""

from __future__ import annotations

import pytest

from lattice.domain.claim import HELD, PAST, ClaimStep, NodeClaim, read_claim, written_claim
from lattice.domain.state import Listing
from lattice.features.claims.service import ledger as ledger_module
from lattice.features.claims.service.reconciliation import SWEEP_EVERY_S
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.unit.features.claims.claim_site import ALICE, BOB, ClaimSite


@pytest.fixture
def site() -> ClaimSite:
    return ClaimSite()


async def _release(site: ClaimSite, count: int) -> None:
    """Claims that were released one after the other."""
    for number in range(count):
        claim = NodeClaim(
            id=f"{number:012x}",
            user="alice",
            sub="alice-1",
            nodes=("n1",),
            step=ClaimStep.RELEASING,
            stepped=2.0 * number + 1,
            since=2.0 * number,
            until=2.0 * number + 1,
        )
        await site.state.put(PAST + claim.id, written_claim(claim))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of records that were parsed."""
    found: list[str] = []
    read = read_claim

    def noted(claim_id: str, value: bytes) -> NodeClaim:
        found.append(claim_id)
        return read(claim_id, value)

    monkeypatch.setattr(ledger_module, "read_claim", noted)
    return found


async def test_a_server_parses_a_released_claim_once(site: ClaimSite, parsed: list[str]) -> None:
    await _release(site, 30)
    server = site.server()
    assert len(server.book.claims().past) == 30
    parsed.clear()
    made = (await server.claim(ALICE, "n1")).claim
    assert server.book.claims().held[0].id == made.id
    await server.release(ALICE, "n1")
    assert len(server.book.claims().past) == 31
    assert set(parsed) == {made.id}


async def test_what_became_unreadable_gives_no_right_any_more(site: ClaimSite) -> None:
    server = site.server()
    made = (await server.claim(ALICE, "n1")).claim
    assert server.book.claims().of_user("alice")
    await site.state.put(HELD + made.id, b"")
    assert server.book.claims().of_user("alice") == ()
    assert server.book.claims().unreadable == {made.id}


async def test_the_oldest_released_claims_go(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MOST_PAST", 5)
    monkeypatch.setattr(ledger_module, "_SWEPT_AT_ONCE", 2)
    await _release(site, 12)
    reconciler = site.server().reconciler
    await reconciler.round()
    assert sorted(each.id for each in site.claims.past) == [f"{n:012x}" for n in range(7, 12)]
    await _release(site, 12)
    await reconciler.round()
    assert len(site.claims.past) == 12
    site.clock.advance(SWEEP_EVERY_S)
    await reconciler.round()
    assert len(site.claims.past) == 5


@pytest.mark.spec("AUDIT-1")
async def test_a_claim_that_is_made_while_another_server_reads_fails_what_it_decides(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = site.server(), site.server()
    listed = InMemoryStateStore.list

    async def claims_after(store: InMemoryStateStore, prefix: str) -> Listing:
        found = await listed(store, prefix)
        with monkeypatch.context() as patch:
            patch.setattr(InMemoryStateStore, "list", listed)
            await second.claim(BOB, "n1")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(InMemoryStateStore, "list", claims_after)
        reading = await first.ledger.read()
    assert reading.claims.held == ()
    claim = NodeClaim(id="0" * 12, user="alice", sub="alice-1", nodes=("n1",), stepped=1, since=1)
    assert await first.ledger.add(claim, reading) is None
    assert [each.user for each in site.claims.held] == ["bob"]
