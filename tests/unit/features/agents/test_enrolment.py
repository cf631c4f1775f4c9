"""Enrolment: a token works once, for one node, for a while; and everything else sounds the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cryptography import x509

from lattice.base.errors import PermissionRefused, RateLimited, Unavailable, UsageError
from lattice.domain.peer import PeerKind
from lattice.features.agents.service.records import ENROLMENTS, token_key
from lattice.wire.peerguard import read_peer
from tests.fakes.agent_site import ADMIN, GRANT_KEY, AgentSite
from tests.fakes.certificates import CLUSTER, new_key, request
from tests.fakes.manual_clock import ManualClock


def csr(name: str = "n1") -> str:
    return request(new_key(), name).decode()


@pytest.fixture
async def site(tmp_path: Path) -> AgentSite:
    return await AgentSite(tmp_path, ManualClock()).started()


async def _refusal(site: AgentSite, token: str, node: str = "n1") -> tuple[str, str | None]:
    with pytest.raises(PermissionRefused) as refusal:
        await site.enrolment.enrol(token, node, csr(node))
    return refusal.value.message, refusal.value.hint


@pytest.mark.spec("AUTH-9")
async def test_a_token_gives_a_certificate_and_all_a_node_must_know(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n1")
    given = await site.enrolment.enrol(made.token, "n1", csr())
    peer = read_peer(given.certificate.encode())
    assert (peer.kind, peer.name, peer.cluster) == (PeerKind.NODE, "n1", CLUSTER)
    assert given.not_after == peer.not_after
    assert bytes.fromhex(given.grant_keys[0]) == GRANT_KEY
    x509.load_pem_x509_certificate(given.certificate.encode()).verify_directly_issued_by(
        x509.load_pem_x509_certificate(given.authorities.encode())
    )
    listed = (await site.trust.agents()).agents
    assert listed == ()  # the copy has not been read again
    await site.view.refresh()
    listed = (await site.trust.agents()).agents
    assert [(each.node, each.certificate_expires) for each in listed] == [("n1", peer.not_after)]


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_the_token_itself_is_kept_nowhere(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n1")
    stored = str(site.store.space.entries)
    assert made.token not in stored
    assert list(site.store.space.entries) == [token_key(made.token)]
    assert len(made.token) >= 43
    assert made.token != (await site.enrolment.create(ADMIN, "n1")).token


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_wrong_used_expired_and_foreign_tokens_sound_alike(site: AgentSite) -> None:
    used = await site.enrolment.create(ADMIN, "n1")
    await site.enrolment.enrol(used.token, "n1", csr())
    foreign = await site.enrolment.create(ADMIN, "n2")
    late = await site.enrolment.create(ADMIN, "n1", 60)
    _clock_of(site).advance(61)
    tokens = ("", "wrong", "x" * 5000, used.token, foreign.token, late.token)
    assert len({await _refusal(site, each) for each in tokens}) == 1
    assert await site.enrolment.enrol(foreign.token, "n2", csr("n2")), "a mistake must not spend it"


def _clock_of(site: AgentSite) -> ManualClock:
    assert isinstance(site.clock, ManualClock)
    return site.clock


@pytest.mark.spec("AUTH-9")
async def test_a_request_that_can_not_be_signed_does_not_spend_the_token(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n1")
    for bad in ("nothing", csr("n2")):
        with pytest.raises(UsageError):
            await site.enrolment.enrol(made.token, "n1", bad)
    assert await site.enrolment.enrol(made.token, "n1", csr())


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_of_those_who_race_with_one_token_one_wins(site: AgentSite) -> None:
    other = await site.another()
    for _ in range(20):
        _clock_of(site).advance(10)
        made = await site.enrolment.create(ADMIN, "n1")
        racers = [
            each.enrolment.enrol(made.token, "n1", csr()) for each in (site, other, site, other)
        ]
        ends = await asyncio.gather(*racers, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in ends) == 1
        assert all(
            isinstance(each, PermissionRefused) for each in ends if isinstance(each, Exception)
        )


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_racing_looks_before_either_spends_still_let_one_win(site: AgentSite) -> None:
    """Both have read the token before either commits."""
    other = await site.another()
    made = await site.enrolment.create(ADMIN, "n1")
    both = asyncio.Barrier(2)
    for each in (site, other):
        found = each.store.get

        async def get_together(key: str, found: object = found) -> object:
            entry = await found(key)  # type: ignore[operator]
            if key.startswith(ENROLMENTS):
                await both.wait()
            return entry

        each.store.get = get_together  # type: ignore[method-assign, assignment]
    ends = await asyncio.gather(
        *(each.enrolment.enrol(made.token, "n1", csr()) for each in (site, other)),
        return_exceptions=True,
    )
    assert sorted(isinstance(each, PermissionRefused) for each in ends) == [False, True]


async def test_tokens_nobody_came_for_are_swept_away(site: AgentSite) -> None:
    for _ in range(60):
        await site.enrolment.create(ADMIN, "n1", 60)
    _clock_of(site).advance(61)
    await site.enrolment.create(ADMIN, "n1")
    assert len(site.store.space.entries) == 11
    await site.enrolment.create(ADMIN, "n1")
    assert len(site.store.space.entries) == 2


@pytest.mark.parametrize(("node", "life_s"), [("n 1", 0), ("", 0), ("n1", 59), ("n1", 604801)])
async def test_an_order_that_makes_no_sense_is_refused(
    site: AgentSite, node: str, life_s: int
) -> None:
    with pytest.raises(UsageError):
        await site.enrolment.create(ADMIN, node, life_s)


async def _flood(site: AgentSite, address: str) -> int:
    """Enrol with a wrong token until the rate limit refuses it; return how often."""
    for tries in range(20_000):
        with pytest.raises((RateLimited, PermissionRefused)) as refusal:
            await site.enrolment.enrol("wrong", "n1", "", address)
        if isinstance(refusal.value, RateLimited):
            assert refusal.value.retry_after_s == 1
            return tries
    raise AssertionError("there is no limit")


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_a_flood_from_one_address_leaves_enrolment_to_others(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n1")
    assert await _flood(site, "10.0.0.66") == 600
    with pytest.raises(RateLimited, match=r"10\.0\.0\.66"):
        await site.enrolment.enrol(made.token, "n1", csr(), "10.0.0.66")
    assert await site.enrolment.enrol(made.token, "n1", csr(), "10.0.0.7")
    _clock_of(site).advance(1)
    assert await _flood(site, "10.0.0.66") == 10


async def test_a_whole_ipv6_network_is_one_sender(site: AgentSite) -> None:
    assert await _flood(site, "2001:db8::1") == 600
    assert await _flood(site, "2001:db8::2:1") == 0
    assert await _flood(site, "2001:db8:0:1::1") == 600


async def test_an_ipv4_sender_is_the_same_in_its_form_of_ipv6(site: AgentSite) -> None:
    assert await _flood(site, "10.0.0.66") == 600
    assert await _flood(site, "::ffff:10.0.0.66") == 0


async def test_all_together_are_held_to_a_rate(site: AgentSite) -> None:
    done = [await _flood(site, f"10.0.0.{each}") for each in range(1, 22)]
    assert done == [600] * 20 + [0]
    _clock_of(site).advance(1)
    assert await _flood(site, "10.0.1.1") == 200


@pytest.mark.spec("AUTH-9")
async def test_a_node_renews_with_a_new_key_also_while_the_store_is_away(site: AgentSite) -> None:
    peer = site.node("n1")
    given = await site.enrolment.renew(peer, csr())
    assert read_peer(given.certificate.encode()).name == "n1"
    site.store.away = True
    again = await site.enrolment.renew(peer, csr())
    assert again.certificate != given.certificate
    with pytest.raises(UsageError, match="somebody else than n1"):
        await site.enrolment.renew(peer, csr("n2"))
    with pytest.raises(Unavailable):
        await site.enrolment.create(ADMIN, "n1")
    with pytest.raises(Unavailable):
        await site.enrolment.enrol("any", "n1", csr())


@pytest.mark.spec("AUTH-9")
async def test_the_token_of_development_lets_anyone_be_any_node_but_those_refused(
    tmp_path: Path,
) -> None:
    site = await AgentSite(tmp_path, ManualClock(), development_token="d" * 32).started()
    for node in ("n1", "n2", "n1"):
        given = await site.enrolment.enrol("d" * 32, node, csr(node))
        assert read_peer(given.certificate.encode()).name == node
    await site.trust.revoke(ADMIN, "n1", "stolen")
    await _refusal(site, "d" * 32)
    await site.trust.quarantine("n2", "spoke as n3")
    await _refusal(site, "d" * 32, "n2")
    await _refusal(site, "e" * 32)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_a_key_for_many_nodes_is_good_once_for_each(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n[1-3],x")
    for node in ("n1", "n3", "x"):
        assert (await site.enrolment.enrol(made.token, node, csr(node))).node == node
    for node, named in (("n1", "n1"), ("n4", "n4"), ("n[1-3],x", "n1"), ("n", "n")):
        with pytest.raises(PermissionRefused):
            await site.enrolment.enrol(made.token, node, csr(named))
    assert await site.enrolment.enrol(made.token, "n2", csr("n2"))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
async def test_of_those_who_race_as_one_node_of_many_one_wins(site: AgentSite) -> None:
    other = await site.another()
    made = await site.enrolment.create(ADMIN, "n[1-2]")
    racers = [each.enrolment.enrol(made.token, "n1", csr()) for each in (site, other, site, other)]
    ends = await asyncio.gather(*racers, return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in ends) == 1
    assert await other.enrolment.enrol(made.token, "n2", csr("n2"))


@pytest.mark.spec("AUTH-9")
async def test_a_key_for_nodes_without_a_disk_is_good_at_each_boot(site: AgentSite) -> None:
    made = await site.enrolment.create(ADMIN, "n[1-2]", 90 * 86400, again=True)
    for _ in range(3):
        assert await site.enrolment.enrol(made.token, "n1", csr())
    _clock_of(site).advance(91 * 86400)
    await _refusal(site, made.token)
    single = await site.enrolment.create(ADMIN, "n1", again=True)
    for _ in range(2):
        assert await site.enrolment.enrol(single.token, "n1", csr())


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize("nodes", ["", "n[1-", "n[1-99999999]", "a b", "../x", "n[1-2],../x"])
async def test_names_that_no_node_can_have(site: AgentSite, nodes: str) -> None:
    with pytest.raises(UsageError):
        await site.enrolment.create(ADMIN, nodes)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("enrolment-token")
@pytest.mark.parametrize(
    ("address", "accepted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fd00::7", True),
        ("10.2.0.1", False),
        ("::1", False),
        ("", False),
        ("10.1.2.3.evil", False),
    ],
)
async def test_a_token_for_networks_is_refused_from_elsewhere(
    site: AgentSite, address: str, accepted: bool
) -> None:
    made = await site.enrolment.create(ADMIN, "n1", networks=["10.1.0.0/16", "fd00::/64"])
    if accepted:
        assert await site.enrolment.enrol(made.token, "n1", csr(), address=address)
        return
    with pytest.raises(PermissionRefused) as refusal:
        await site.enrolment.enrol(made.token, "n1", csr(), address=address)
    assert (refusal.value.message, refusal.value.hint) == await _refusal(site, "wrong")
    assert await site.enrolment.enrol(made.token, "n1", csr(), address="10.1.2.3")


@pytest.mark.spec("AUTH-9")
async def test_what_is_no_network_is_refused(site: AgentSite) -> None:
    with pytest.raises(UsageError, match="is no network"):
        await site.enrolment.create(ADMIN, "n1", networks=["10.1.0.1/16"])
