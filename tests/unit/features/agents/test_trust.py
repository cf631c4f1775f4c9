"""Trust: who is admitted, who no longer is, and what holds while the store is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.node import AgentLink, Condition
from lattice.domain.peer import PeerKind
from lattice.domain.presence import Link, Presence, PresenceReading
from lattice.domain.source import Source
from lattice.features.agents.service.records import QUARANTINE, REVOKED, TRUST
from lattice.features.agents.service.trust import TrustedNodes
from lattice.wire.peerguard import read_peer
from tests.eventually import eventually_async
from tests.fakes.agent_site import ADMIN, AgentSite
from tests.fakes.certificates import CLUSTER, new_key, request
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def site(tmp_path: Path, clock: ManualClock) -> AgentSite:
    return await AgentSite(tmp_path, clock).started()


@pytest.mark.spec("AUTH-9")
def test_a_living_certificate_of_the_cluster_is_admitted(site: AgentSite) -> None:
    node = site.node()
    site.trust.admit(node)
    site.trust.admit(replace(node, kind=PeerKind.REPLICA))
    with pytest.raises(PermissionRefused, match="another cluster"):
        site.trust.admit(replace(node, cluster="other"))


@pytest.mark.spec("AUTH-9")
def test_an_expired_one_is_told_how_to_go_on(site: AgentSite, clock: ManualClock) -> None:
    node = site.node(life=timedelta(hours=1))
    clock.advance(3 * 3600)
    with pytest.raises(PermissionRefused) as refusal:
        site.trust.admit(node)
    words = "node certificate expired 2 h ago; admin: lattice admin enrol n1"
    assert refusal.value.message == words


@pytest.mark.spec("AUTH-9")
async def test_a_revocation_holds_against_all_before_it_on_every_replica(
    site: AgentSite, clock: ManualClock
) -> None:
    other = await site.another()
    old, older = site.node(), site.node()
    untouched = site.node("n2")
    await site.trust.revoke(ADMIN, "n1", "stolen")
    await other.view.refresh()
    for each in (site, other):
        for peer in (old, older):
            with pytest.raises(PermissionRefused, match="revoked; admin: lattice admin enrol n1"):
                each.trust.admit(peer)
        each.trust.admit(untouched)


@pytest.mark.spec("AUTH-9")
async def test_a_new_enrolment_comes_back_and_the_old_stays_out(
    site: AgentSite, clock: ManualClock
) -> None:
    old = site.node()
    await site.trust.revoke(ADMIN, "n1", "stolen")
    made = await site.enrolment.create(ADMIN, "n1")
    given = await site.enrolment.enrol(made.token, "n1", request(new_key()).decode())
    clock.advance(2)
    new = read_peer(given.certificate.encode())
    site.trust.admit(new)
    renewed = await site.enrolment.renew(new, request(new_key()).decode())
    site.trust.admit(read_peer(renewed.certificate.encode()))
    with pytest.raises(PermissionRefused):
        site.trust.admit(old)
    with pytest.raises(PermissionRefused):
        await site.enrolment.renew(old, request(new_key()).decode())


async def test_restoring_takes_back_both(site: AgentSite) -> None:
    node = site.node()
    with pytest.raises(NotFound):
        await site.trust.restore(ADMIN, "n1")
    await site.trust.revoke(ADMIN, "n1", "a mistake")
    await site.trust.quarantine("n1", "spoke as n2")
    agent = await site.trust.restore(ADMIN, "n1")
    assert (agent.revoked, agent.quarantine) == (None, "")
    site.trust.admit(node)
    again = await site.trust.restore(ADMIN, "n1", repeated=True)
    assert again == agent, "the first answer was lost: there is nothing left to take back"


@pytest.mark.parametrize(("node", "reason"), [("n1", " "), ("n/1", "why")])
async def test_a_revocation_needs_a_node_and_a_reason(
    site: AgentSite, node: str, reason: str
) -> None:
    with pytest.raises(UsageError):
        await site.trust.revoke(ADMIN, node, reason)


@pytest.mark.spec("AUTH-9")
async def test_a_node_in_quarantine_is_out_until_restored_even_with_a_new_certificate(
    site: AgentSite,
) -> None:
    await site.trust.quarantine("n1", "spoke as n2")
    await site.trust.quarantine("n1", "again")
    with pytest.raises(PermissionRefused, match="quarantine; admin: lattice admin reinstate n1"):
        site.trust.admit(site.node())
    agent = (await site.trust.agents()).agents[0]
    assert (agent.node, agent.quarantine) == ("n1", "spoke as n2")
    assert agent.quarantined == site.clock.now()


@pytest.mark.spec("AUTH-9")
async def test_a_quarantine_holds_here_while_the_store_is_away(
    site: AgentSite, clock: ManualClock
) -> None:
    node = site.node()
    site.store.away = True
    await site.trust.quarantine("n1", "spoke as n2")
    with pytest.raises(PermissionRefused):
        site.trust.admit(node)
    assert (await site.trust.agents()).agents[0].quarantine == "spoke as n2"
    clock.advance(601)
    site.trust.admit(node)


@pytest.mark.spec("AUTH-9")
async def test_the_last_reading_serves_while_the_store_is_away(site: AgentSite) -> None:
    node, bad = site.node(), site.node("n2")
    await site.trust.revoke(ADMIN, "n2", "stolen")
    site.store.away = True
    site.trust.admit(node)
    with pytest.raises(PermissionRefused):
        site.trust.admit(bad)
    with pytest.raises(Unavailable):
        await site.trust.revoke(ADMIN, "n1", "stolen")


@pytest.mark.spec("AUTH-9")
async def test_before_a_first_reading_nobody_is_admitted(
    tmp_path: Path, clock: ManualClock
) -> None:
    site = AgentSite(tmp_path, clock)
    with pytest.raises(Unavailable):
        site.trust.admit(site.node())


@pytest.mark.spec("AUTH-9")
async def test_records_that_can_not_be_read_are_no_reason_to_believe(site: AgentSite) -> None:
    await site.store.put(REVOKED + "n1", b"{")
    await site.store.put(QUARANTINE + "n2", b"{")
    await site.view.refresh()
    for name in ("n1", "n2"):
        with pytest.raises(PermissionRefused):
            site.trust.admit(site.node(name))


@pytest.mark.spec("AUTH-9")
async def test_whoever_holds_links_hears_of_each_node_that_is_believed_no_more(
    site: AgentSite,
) -> None:
    other = await site.another()
    await site.trust.revoke(ADMIN, "n1", "stolen")
    await other.view.refresh()
    heard: list[str] = []
    watching = asyncio.create_task(other.trust.watch(heard.append))
    try:
        await asyncio.sleep(0)
        await site.store.put(f"{TRUST}odd", b"a key of no form that is known")
        await site.trust.quarantine("n2", "spoke as n1")
        await site.enrolment.create(ADMIN, "n3")
        await site.enrolment.renew(site.node("n4"), request(new_key()).decode())
        await site.trust.restore(ADMIN, "n1")
        await other.view.refresh()
        await eventually_async(lambda: len(heard) >= 2)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert heard == ["n1", "n2"]


class _Presences:
    def __init__(self, reading: PresenceReading) -> None:
        self._reading = reading

    def presences(self) -> PresenceReading:
        return self._reading


async def test_the_list_joins_what_is_linked_with_what_is_believed(
    site: AgentSite, clock: ManualClock
) -> None:
    now = clock.now().timestamp()
    there = Presence(
        node="n1", epoch=1, linked=True, since=now, condition=Condition.READY,
        agent_version="0.1", registered=now,
    )  # fmt: skip
    lost = replace(there, node="n2", linked=False)
    link = Link(node="n1", replica="r1", epoch=1, since=now)
    source = Source(name="state", as_of=clock.now(), age_s=0.0, ok=True)
    reading = PresenceReading({"n1": there, "n2": lost}, {"n1": link}, source)
    trust = TrustedNodes(CLUSTER, site.store, site.view, clock, _Presences(reading))
    await trust.revoke(ADMIN, "n3", "stolen")
    agents = {each.node: each for each in (await trust.agents()).agents}
    assert list(agents) == ["n1", "n2", "n3"]
    assert (agents["n1"].link, agents["n1"].replica) == (AgentLink.LINKED, "r1")
    assert agents["n1"].version == "0.1"
    assert (agents["n2"].link, agents["n2"].replica) == (AgentLink.LOST, "")
    assert (agents["n3"].link, agents["n3"].revoked_by) == (AgentLink.NEVER, "admin-1")
    assert REVOKED.startswith(TRUST)


@pytest.mark.spec("OPS-8")
async def test_an_agent_of_a_version_that_was_never_tried_is_named(
    site: AgentSite, clock: ManualClock
) -> None:
    now = clock.now().timestamp()
    records = {
        node: Presence(
            node=node, epoch=1, linked=True, since=now, condition=Condition.READY,
            agent_version=version, registered=now,
        )
        for node, version in (("n1", "0.5.1"), ("n2", "0.1.0"), ("n3", "0.7.0"), ("n4", "0.6.0"))
    }  # fmt: skip
    source = Source(name="state", as_of=clock.now(), age_s=0.0, ok=True)
    reading = PresenceReading(records, {}, source)
    trust = TrustedNodes(
        CLUSTER, site.store, site.view, clock, _Presences(reading), version="0.5.0"
    )
    lacks = {each.node: " ".join(each.lacks) for each in (await trust.agents()).agents}
    assert "more than 2 releases older than the server's (0.5.0)" in lacks["n2"]
    assert "Upgrade the servers first" in lacks["n3"]
    assert (lacks["n1"], lacks["n4"]) == ("", "")
