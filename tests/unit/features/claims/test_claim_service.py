"""Claims and releases: all nodes or none, the first wins, and the audit log has it before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lattice.access.actor import Actor, Role
from lattice.base.errors import (
    ConfigurationError,
    Conflict,
    NotFound,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.domain.allocation import State
from lattice.domain.audit import SensitiveAuditRequired
from lattice.domain.claim import FENCE, HELD, ClaimStep
from lattice.domain.vcluster import Vclusters
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.interleaved_state import InterleavedStateStore
from tests.unit.features.claims.claim_site import ADA, ALICE, BOB, ClaimServer, ClaimSite, claimer


@pytest.fixture
def site() -> ClaimSite:
    return ClaimSite()


@pytest.fixture
def server(site: ClaimSite) -> ClaimServer:
    return site.server()


# What must not happen.


@pytest.mark.spec("AUDIT-2")
async def test_nothing_is_claimed_that_is_not_recorded(
    site: ClaimSite, server: ClaimServer
) -> None:
    site.trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await server.claim(ALICE, "n1")
    assert site.claims.held == ()
    assert site.slurm.calls == []


@pytest.mark.spec("AUDIT-2")
async def test_nothing_is_released_that_is_not_recorded(
    site: ClaimSite, server: ClaimServer
) -> None:
    await server.claim(ALICE, "n1")
    site.trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await server.release(ALICE, "n1")
    assert site.reserved == {"alice": ("n1",)}
    assert site.claims.held[0].step is ClaimStep.CLAIMED


@pytest.mark.spec("AUDIT-1")
async def test_a_claim_takes_all_nodes_or_none(site: ClaimSite, server: ClaimServer) -> None:
    await server.claim(BOB, "n2")
    with pytest.raises(Conflict, match=r"bob holds n2 \(claim [0-9a-f]{12}\)"):
        await server.claim(ALICE, "n[1-3]")
    assert site.reserved == {"bob": ("n2",)}
    assert site.claims.of_node("n1") is None
    assert site.trail.acts[-1] == ("claim", "refused", "alice")


@pytest.mark.spec("AUDIT-1")
async def test_a_refusal_names_every_holder(server: ClaimServer) -> None:
    await server.claim(BOB, "n[2-3]")
    await server.claim(claimer("carol"), "n5")
    with pytest.raises(Conflict) as refusal:
        await server.claim(ALICE, "n[1-3],n5")
    assert "bob holds n[2-3]" in refusal.value.message
    assert "carol holds n5" in refusal.value.message


@pytest.mark.spec("AUDIT-1")
async def test_what_slurm_refuses_is_undone_and_said(site: ClaimSite, server: ClaimServer) -> None:
    site.slurm.refusing = "Requested nodes are busy"
    with pytest.raises(PermissionRefused, match=r"reserve n\[1-2\]: Requested nodes are busy"):
        await server.claim(ALICE, "n[1-2]")
    assert site.claims.held == ()
    assert site.claims.past == ()
    assert site.trail.acts == [("claim", "done", "alice"), ("claim", "failed", "alice")]


async def test_where_the_site_does_not_allow_it_nothing_is_left(
    site: ClaimSite, server: ClaimServer
) -> None:
    site.slurm.unasked = True
    with pytest.raises(ConfigurationError, match="does not let Lattice reserve nodes"):
        await server.claim(ALICE, "n1")
    assert site.claims.held == ()
    assert site.trail.acts == [("claim", "done", "alice"), ("claim", "failed", "alice")]


@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ("", UsageError),
        ("n[1-", UsageError),
        ("n99", NotFound),
        ("n1,b1", UsageError),
        ("n[1-600]", UsageError),
    ],
    ids=["none", "malformed", "unknown", "of an ordinary vCluster", "too many"],
)
async def test_nodes_that_can_not_be_claimed(
    site: ClaimSite, server: ClaimServer, nodes: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await server.claim(ALICE, nodes)
    assert site.trail.events == {}


async def test_without_a_sensitive_vcluster_nothing_can_be_claimed(
    site: ClaimSite, server: ClaimServer
) -> None:
    site.views.views = Vclusters().views
    with pytest.raises(UsageError, match="no vCluster for sensitive work"):
        await server.claim(ALICE, "n1")


async def test_a_caller_without_a_unix_user_claims_nothing(server: ClaimServer) -> None:
    with pytest.raises(PermissionRefused, match="no Unix user"):
        await server.claim(Actor(sub="robot", role=Role.CLAIMING_USER), "n1")


async def test_without_the_state_nothing_is_claimed(site: ClaimSite) -> None:
    state = site.state.another()
    state.away = True
    with pytest.raises(Unavailable):
        await site.server(state).claim(ALICE, "n1")
    assert site.slurm.calls == []


@pytest.mark.spec("AUDIT-1")
async def test_a_release_is_refused_while_sensitive_jobs_run_there(
    site: ClaimSite, server: ClaimServer
) -> None:
    await server.claim(ALICE, "n[1-2]")
    job = allocation(42, "alice", "research", vcluster="clinic", partition="clinic", nodes="n2")
    site.scheduler.allocations.append(job)
    with pytest.raises(Conflict, match=r"sensitive jobs of alice run on n\[1-2\]: job 42"):
        await server.release(ALICE, "n[1-2]")
    assert site.reserved == {"alice": ("n1", "n2")}
    assert site.trail.acts[-1] == ("release", "refused", "alice")
    site.scheduler.allocations = [replace(job, state=State.COMPLETED)]
    await server.release(ALICE, "n[1-2]")
    assert site.reserved == {}


async def test_a_release_is_refused_while_slurm_is_away(
    site: ClaimSite, server: ClaimServer
) -> None:
    await server.claim(ALICE, "n1")
    site.scheduler.down = True
    site.clock.advance(60)
    with pytest.raises(Unavailable, match="slurmctld does not answer"):
        await server.release(ALICE, "n1")


async def test_a_release_that_slurm_refuses_changes_nothing(
    site: ClaimSite, server: ClaimServer
) -> None:
    await server.claim(ALICE, "n1")
    site.slurm.in_use = "Requested reservation is in use"
    with pytest.raises(Conflict, match="reservation is in use"):
        await server.release(ALICE, "n1")
    assert site.claims.held[0].step is ClaimStep.CLAIMED
    assert site.trail.acts[-1] == ("release", "failed", "alice")
    site.slurm.in_use = ""
    assert (await server.release(ALICE, "n1")).changed


async def test_nobody_but_the_claimer_and_system_admins_releases(
    site: ClaimSite, server: ClaimServer
) -> None:
    made = (await server.claim(ALICE, "n[1-2]")).claim
    with pytest.raises(PermissionRefused, match=r"alice holds n1 \(claim"):
        await server.release(BOB, "n1")
    with pytest.raises(NotFound):
        await server.release(BOB, made.id)
    with pytest.raises(NotFound):
        await server.release(BOB, "0123456789ab")
    with pytest.raises(NotFound):
        await server.release(BOB, "n7")
    assert site.reserved == {"alice": ("n1", "n2")}
    await server.release(ADA, made.id)
    assert site.reserved == {}
    event = list(site.trail.events.values())[-1]
    assert (event.act.value, event.user, event.owner) == ("release", "ada", "alice")


async def test_a_claim_is_released_whole(server: ClaimServer) -> None:
    made = (await server.claim(ALICE, "n[1-2]")).claim
    for part in ("n1", "n[1-3]"):
        with pytest.raises(UsageError, match=f"claim {made.id}"):
            await server.release(ALICE, part)


async def test_a_record_that_no_server_signed_gives_no_right(
    site: ClaimSite, server: ClaimServer
) -> None:
    made = (await server.claim(ALICE, "n1")).claim
    await site.state.put(HELD + made.id, b"")
    assert site.claims.of_user("alice") == ()
    with pytest.raises(NotFound):
        await server.release(ALICE, made.id)
    # Slurm still has the reservation, so nobody else gets the node.
    with pytest.raises(PermissionRefused, match="overlaps"):
        await server.claim(BOB, "n1")


# One winner.


@pytest.mark.spec("AUDIT-1")
@pytest.mark.threat("sensitive-claim")
@pytest.mark.parametrize("seed", range(5))
async def test_of_a_hundred_claims_one_wins_and_all_others_learn_who(seed: int) -> None:
    """Over two servers, by different schedules."""
    site = ClaimSite()
    first = InterleavedStateStore(site.clock, site.state.space)
    second = first.door([(each * (seed + 3)) % 5 for each in range(2000)])
    first.turns = iter([(each * (seed + 7)) % 4 for each in range(2000)])
    servers = (site.server(first), site.server(second))

    async def attempt(number: int) -> str:
        nodes = ("n1", "n[1-2]", "n[1-8]")[number % 3]
        try:
            answer = await servers[number % 2].claim(claimer(f"user{number}"), nodes)
        except Conflict as refusal:
            return refusal.message
        assert answer.changed
        return ""

    answers = await asyncio.gather(*(attempt(number) for number in range(100)))
    assert answers.count("") == 1
    winner = f"user{answers.index('')}"
    (claim,) = site.claims.held
    assert (claim.user, claim.step) == (winner, ClaimStep.CLAIMED)
    assert site.reserved == {winner: claim.nodes}
    assert all(f"{winner} holds n" in each for each in answers if each)
    outcomes = [outcome for act, outcome, user in site.trail.acts if user == winner]
    assert outcomes == ["done"]
    # Who lost after its entry has another entry that it was refused.
    refused = {user for _, outcome, user in site.trail.acts if outcome == "refused"}
    assert len(refused) == 99


@pytest.mark.spec("AUDIT-1")
async def test_claims_of_different_nodes_do_not_hinder_each_other(site: ClaimSite) -> None:
    servers = (site.server(), site.server())
    people = [claimer(f"user{each}") for each in range(1, 9)]
    await asyncio.gather(
        *(servers[at % 2].claim(each, f"n{at}") for at, each in enumerate(people, start=1))
    )
    assert len(site.claims.held) == 8
    assert site.agrees


# What happens.


@pytest.mark.spec("AUDIT-1", "AUDIT-3")
async def test_a_claim_is_a_reservation_for_the_claimer_alone(
    site: ClaimSite, server: ClaimServer
) -> None:
    answer = await server.claim(ALICE, "n[1-2]", "trial 7")
    card = answer.claim
    assert answer.changed
    assert (card.user, card.tenant, card.nodes) == ("alice", "physics", "n[1-2]")
    assert (card.step, card.reason) == (ClaimStep.CLAIMED, "trial 7")
    (reservation,) = site.slurm.made.values()
    assert reservation.name == card.reservation == f"lattice-claim-{card.id}"
    assert (reservation.user, reservation.nodes) == ("alice", ("n1", "n2"))
    (event,) = site.trail.events.values()
    assert (event.act.value, event.node, event.of_tenant) == ("claim", "n[1-2]", "physics")
    assert (event.user, event.target, event.detail) == ("alice", card.id, "trial 7")


async def test_the_same_claim_again_changes_nothing(site: ClaimSite, server: ClaimServer) -> None:
    first = await server.claim(ALICE, "n[1-2]")
    second = await server.claim(ALICE, "n2,n1")
    assert not second.changed
    assert second.claim == first.claim
    assert len(site.trail.events) == 1
    with pytest.raises(Conflict, match=r"alice holds n\[1-2\]"):
        await server.claim(ALICE, "n[1-3]")


@pytest.mark.spec("AUDIT-1", "AUDIT-3")
async def test_released_nodes_can_be_claimed_by_others(
    site: ClaimSite, server: ClaimServer
) -> None:
    made = (await server.claim(ALICE, "n[1-2]")).claim
    site.clock.advance(60)
    released = await server.release(ALICE, "n[1-2]")
    assert released.claim.id == made.id
    assert site.slurm.made == {}
    assert site.claims.held == ()
    (past,) = site.claims.past
    assert past.until == past.since + 60
    await server.claim(BOB, "n[2-3]")
    assert site.agrees
    assert [each[:2] for each in site.trail.acts] == [
        ("claim", "done"),
        ("release", "done"),
        ("claim", "done"),
    ]


async def test_who_sees_which_claims(server: ClaimServer) -> None:
    await server.claim(ALICE, "n1")
    await server.claim(BOB, "n2")

    async def seen(actor: Actor) -> list[str]:
        return [each.user for each in (await server.service.claims(actor)).claims]

    assert await seen(ALICE) == ["alice"]
    assert await seen(claimer("dave")) == []
    assert await seen(claimer("dave", Role.USER)) == []
    assert await seen(claimer("olga", Role.OPERATOR)) == ["alice", "bob"]
    assert await seen(ADA) == ["alice", "bob"]
    assert await seen(claimer("tim", Role.TENANT_ADMIN, "biology")) == ["bob"]
    assert await seen(claimer("rita", Role.COMPLIANCE_REVIEWER, "biology")) == []


async def test_a_new_claim_moves_the_fence(site: ClaimSite, server: ClaimServer) -> None:
    made = (await server.claim(ALICE, "n1")).claim
    assert site.state.space.entries[FENCE].value == made.id.encode()
    assert isinstance(site.state, InMemoryStateStore)
