"""A claim and its reservation agree again, whatever was left between two steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.claim import HELD, ClaimStep, written_claim
from lattice.domain.reservation import Reservation
from lattice.features.claims.service import claims, transitions
from lattice.features.claims.service.reconciliation import EVERY_S, SETTLED_S
from tests.unit.features.claims.claim_site import ALICE, BOB, ClaimSite

CLAIM_STEPS = ("claims.audited", "claims.recorded", "claims.reserved", "claims.claimed")
RELEASE_STEPS = ("claims.release.audited", "claims.releasing", "claims.unreserved")
REFUSAL_STEPS = ("claims.refused", "claims.unreserved", "claims.undone")


class Killed(BaseException):
    """The process is gone: nothing after this place runs."""


@pytest.fixture
def site() -> ClaimSite:
    return ClaimSite()


def kill_at(patch: pytest.MonkeyPatch, place: str) -> None:
    def failpoint(name: str) -> None:
        if name == place:
            raise Killed(name)

    for module in (claims, transitions):
        patch.setattr(module, "failpoint", failpoint)


async def settle(site: ClaimSite) -> None:
    """Another server comes by, after the step is old enough."""
    site.clock.advance(SETTLED_S)
    await site.server().reconciler.round()


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("place", CLAIM_STEPS)
async def test_a_claim_that_was_killed_is_whole_or_gone(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, place)
        with pytest.raises(Killed):
            await site.server().claim(ALICE, "n[1-2]")
    await settle(site)
    assert site.agrees
    expected = {} if place == "claims.audited" else {"alice": ("n1", "n2")}
    assert site.reserved == expected
    assert all(each.step is ClaimStep.CLAIMED for each in site.claims.held)
    # It is in the audit log whatever became of it.
    assert site.trail.acts == [("claim", "done", "alice")]


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("place", RELEASE_STEPS)
async def test_a_release_that_was_killed_is_whole_or_nothing(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    await site.server().claim(ALICE, "n1")
    with monkeypatch.context() as patch:
        kill_at(patch, place)
        with pytest.raises(Killed):
            await site.server().release(ALICE, "n1")
    await settle(site)
    assert site.agrees
    is_held = place == "claims.release.audited"
    assert site.reserved == ({"alice": ("n1",)} if is_held else {})
    assert len(site.claims.past) == (0 if is_held else 1)


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("place", REFUSAL_STEPS)
async def test_a_refused_claim_that_was_killed_is_gone(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    site.slurm.refusing = "Requested nodes are busy"
    with monkeypatch.context() as patch:
        kill_at(patch, place)
        with pytest.raises(Killed):
            await site.server().claim(ALICE, "n1")
    await settle(site)
    assert site.claims.held == ()
    assert site.claims.past == ()
    assert site.trail.acts == [("claim", "done", "alice"), ("claim", "failed", "alice")]
    site.slurm.refusing = ""
    await site.server().claim(BOB, "n1")
    assert site.agrees


async def test_what_slurm_refuses_later_is_undone(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "claims.recorded")
        with pytest.raises(Killed):
            await site.server().claim(ALICE, "n1")
    site.slurm.refusing = "Requested nodes are busy"
    await settle(site)
    assert site.claims.held == ()
    assert site.trail.acts[-1] == ("claim", "failed", "alice")


async def test_a_step_under_way_is_left_alone(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "claims.recorded")
        with pytest.raises(Killed):
            await site.server().claim(ALICE, "n1")
    site.clock.advance(SETTLED_S - 1)
    await site.server().reconciler.round()
    assert site.claims.held[0].step is ClaimStep.CLAIMING
    assert site.slurm.made == {}


@pytest.mark.parametrize("loses_answers", [False, True], ids=["asked in vain", "answer lost"])
async def test_a_claim_that_slurm_did_not_answer_is_finished_later(
    site: ClaimSite, *, loses_answers: bool
) -> None:
    site.slurm.away, site.slurm.loses_answers = not loses_answers, loses_answers
    with pytest.raises(Unavailable, match="not finished yet"):
        await site.server().claim(ALICE, "n1")
    assert site.claims.held[0].step is ClaimStep.CLAIMING
    site.slurm.away = site.slurm.loses_answers = False
    await settle(site)
    assert site.agrees
    assert site.claims.held[0].step is ClaimStep.CLAIMED


@pytest.mark.parametrize("loses_answers", [False, True], ids=["asked in vain", "answer lost"])
async def test_a_release_that_slurm_did_not_answer_is_finished_later(
    site: ClaimSite, *, loses_answers: bool
) -> None:
    await site.server().claim(ALICE, "n1")
    site.slurm.away, site.slurm.loses_answers = not loses_answers, loses_answers
    with pytest.raises(Unavailable, match="not finished yet"):
        await site.server().release(ALICE, "n1")
    site.slurm.away = site.slurm.loses_answers = False
    await settle(site)
    assert site.agrees
    assert site.claims.held == ()


async def test_the_entry_of_an_undone_claim_comes_before_its_end(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.refusing = "Requested nodes are busy"
    with monkeypatch.context() as patch:
        kill_at(patch, "claims.refused")
        with pytest.raises(Killed):
            await site.server().claim(ALICE, "n1")
    site.trail.is_away = True
    with pytest.raises(Unavailable):
        await settle(site)
    assert site.claims.held[0].undone == "Requested nodes are busy"
    site.trail.is_away = False
    await settle(site)
    assert site.claims.held == ()


async def test_a_reservation_without_a_claim_is_removed(site: ClaimSite) -> None:
    await site.server().claim(ALICE, "n1")
    stray = Reservation("lattice-claim-0123456789ab", "bob", ("n2",))
    site.slurm.made[stray.name] = stray
    server = site.server()
    await server.reconciler.round()
    assert site.agrees
    assert server.reconciler.counts.removed_total == 1


async def test_the_reservation_of_a_claim_that_can_not_be_read_stays(site: ClaimSite) -> None:
    made = (await site.server().claim(ALICE, "n1")).claim
    await site.state.put(HELD + made.id, b"")
    await site.server().reconciler.round()
    assert site.reserved == {"alice": ("n1",)}


@pytest.mark.parametrize(
    "change",
    [None, {"nodes": ("n1",)}],
    ids=["removed", "of fewer nodes"],
)
async def test_a_reservation_changed_by_hand_is_put_right(
    site: ClaimSite, change: dict[str, object] | None
) -> None:
    await site.server().claim(ALICE, "n[1-2]")
    (reservation,) = site.slurm.made.values()
    if change is None:
        site.slurm.made.clear()
    else:
        site.slurm.made[reservation.name] = replace(reservation, **change)  # type: ignore[arg-type]
    server = site.server()
    await server.reconciler.round()
    assert site.agrees
    assert server.reconciler.counts.remade_total == 1


async def test_a_reservation_that_others_may_use_is_left_alone_and_counted(
    site: ClaimSite,
) -> None:
    """The gate does not touch what others changed; jobs of others there are not served."""
    await site.server().claim(ALICE, "n1")
    site.slurm.changed.update(site.slurm.made)
    server = site.server()
    await server.reconciler.round()
    assert server.reconciler.counts.unreserved == 1
    assert site.claims.held[0].step is ClaimStep.CLAIMED


async def test_a_claim_that_slurm_does_not_reserve_again_stays_and_is_counted(
    site: ClaimSite,
) -> None:
    await site.server().claim(ALICE, "n1")
    site.slurm.made.clear()
    site.slurm.refusing = "Requested nodes are busy"
    server = site.server()
    await server.reconciler.round()
    assert site.claims.held[0].step is ClaimStep.CLAIMED
    assert server.reconciler.counts.unreserved == 1
    site.slurm.refusing = ""
    await server.reconciler.round()
    assert server.reconciler.counts.unreserved == 0
    assert site.agrees


async def test_a_claim_released_during_the_round_is_not_made_again(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = site.server()
    made = (await server.claim(ALICE, "n1")).claim
    other = site.server()
    listed = site.slurm.reservations

    async def slow() -> tuple[Reservation, ...]:
        await other.release(ALICE, made.id)
        return await listed()

    monkeypatch.setattr(site.slurm, "reservations", slow)
    await server.reconciler.round()
    assert site.claims.held == ()
    assert site.slurm.made == {}


async def test_a_reservation_that_was_made_too_late_is_removed(
    site: ClaimSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one server waits for Slurm, another undoes its claim."""
    server = site.server()
    reserve = site.slurm.reserve

    async def slow(reservation: Reservation) -> None:
        (claim,) = site.claims.held
        gone = claim.at(ClaimStep.RELEASING, claim.stepped, undone="busy")
        await site.state.put(HELD + claim.id, written_claim(gone))
        await reserve(reservation)

    monkeypatch.setattr(site.slurm, "reserve", slow)
    with pytest.raises(Unavailable, match="undone by another server"):
        await server.claim(ALICE, "n1")
    assert site.slurm.made == {}


async def test_one_server_does_a_round_at_a_time(site: ClaimSite) -> None:
    first, second = site.server(), site.server()
    assert await first.reconciler._take_turn()
    assert not await second.reconciler._take_turn()
    site.clock.advance(EVERY_S)
    assert await second.reconciler._take_turn()


async def test_a_round_without_slurm_changes_nothing(site: ClaimSite) -> None:
    await site.server().claim(ALICE, "n1")
    site.slurm.away = True
    with pytest.raises(LatticeError):
        await site.server().reconciler.round()
    assert site.claims.held[0].step is ClaimStep.CLAIMED
