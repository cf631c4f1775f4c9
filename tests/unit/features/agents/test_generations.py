"""Generations: the use of a certificate spends the one before it, and that betrays a thief."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.features.agents.service.records import (
    CERTIFICATE,
    QUARANTINE,
    Certificate,
    is_spent,
    next_generation,
    read,
    with_used,
)
from lattice.wire.peerguard import read_peer
from tests.fakes.agent_site import ADMIN, AgentSite
from tests.fakes.certificates import new_key, request
from tests.fakes.interleaved_state import InterleavedStateStore
from tests.fakes.manual_clock import ManualClock


def csr() -> str:
    return request(new_key()).decode()


async def renewed(site: AgentSite, peer: PeerIdentity) -> PeerIdentity:
    return read_peer((await site.enrolment.renew(peer, csr())).certificate.encode())


async def enrolled(site: AgentSite) -> PeerIdentity:
    made = await site.enrolment.create(ADMIN, "n1")
    given = await site.enrolment.enrol(made.token, "n1", csr())
    return read_peer(given.certificate.encode())


def record_of(site: AgentSite) -> Certificate:
    return read(site.store.space.entries[CERTIFICATE + "n1"].value, Certificate)


def in_quarantine(site: AgentSite) -> bool:
    return QUARANTINE + "n1" in site.store.space.entries


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def site(tmp_path: Path, clock: ManualClock) -> AgentSite:
    return await AgentSite(tmp_path, clock).started()


@pytest.mark.spec("AUTH-9")
async def test_each_certificate_has_a_higher_generation_than_the_one_before(
    site: AgentSite,
) -> None:
    first = await enrolled(site)
    second = await renewed(site, first)
    third = await enrolled(site)
    assert [each.generation for each in (first, second, third)] == [1, 2, 3]


@pytest.mark.spec("AUTH-9")
async def test_an_agent_that_lost_the_answer_renews_again_with_the_old_one(
    site: AgentSite,
) -> None:
    first = await enrolled(site)
    await site.trust.note_use(first)
    for _ in range(3):
        await renewed(site, first)
    assert not in_quarantine(site)
    last = await renewed(site, first)
    await site.trust.note_use(last)
    await renewed(site, last)
    assert not in_quarantine(site)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_renewal_from_a_spent_generation_puts_the_node_in_quarantine_everywhere(
    site: AgentSite,
) -> None:
    """Attack 35."""
    other = await site.another()
    stolen = await enrolled(site)
    new = await renewed(site, stolen)
    await site.trust.note_use(new)
    with pytest.raises(PermissionRefused) as refusal:
        await other.enrolment.renew(stolen, csr())
    next_steps = "lattice admin reinstate n1, then lattice admin enrol n1"
    assert refusal.value.message == f"n1 is in quarantine; admin: {next_steps}"
    await site.view.refresh()
    for each in (site, other):
        for peer in (stolen, new):
            with pytest.raises(PermissionRefused, match=next_steps):
                each.trust.admit(peer)
    (agent,) = (await site.trust.agents()).agents
    assert agent.quarantine == "its certificate 1 asked for another after 2 was used"


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_thief_who_renews_first_spends_the_certificate_of_the_node(
    site: AgentSite,
) -> None:
    genuine = await enrolled(site)
    forged = await renewed(site, genuine)
    await renewed(site, forged)
    with pytest.raises(PermissionRefused, match="quarantine"):
        await renewed(site, genuine)
    assert in_quarantine(site)


@pytest.mark.spec("AUTH-9")
async def test_after_it_no_certificate_from_before_comes_back_and_a_new_enrolment_does(
    site: AgentSite, clock: ManualClock
) -> None:
    stolen = await enrolled(site)
    new = await renewed(site, stolen)
    await site.trust.note_use(new)
    with pytest.raises(PermissionRefused):
        await renewed(site, stolen)
    agent = await site.trust.restore(ADMIN, "n1")
    assert agent.quarantine == ""
    assert agent.revoked_reason == "a spent certificate was used; next: lattice admin enrol n1"
    for each in (stolen, new):
        with pytest.raises(PermissionRefused, match="lattice admin enrol n1"):
            site.trust.admit(each)
    back = await enrolled(site)
    clock.advance(2)
    site.trust.admit(back)
    assert (await renewed(site, back)).generation == 4


@pytest.mark.spec("AUTH-9")
async def test_calls_under_the_old_certificate_go_on_while_its_connection_lives(
    site: AgentSite,
) -> None:
    old = await enrolled(site)
    await site.trust.note_use(old)
    new = await renewed(site, old)
    await site.trust.note_use(new)
    await site.trust.note_use(old)
    site.trust.admit(old)
    assert (record_of(site).used, in_quarantine(site)) == (2, False)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("bootstrap-files")
async def test_a_certificate_made_elsewhere_begins_anew_as_often_as_the_site_gives_it_out(
    site: AgentSite,
) -> None:
    """A node without a disk starts from the same bootstrap files at each boot."""
    made = site.node("n1")
    assert made.generation == 0
    first = await renewed(site, made)
    await site.trust.note_use(first)
    second = await renewed(site, made)
    await site.trust.note_use(second)
    assert not in_quarantine(site)
    with pytest.raises(PermissionRefused, match="quarantine"):
        await renewed(site, first)


@pytest.mark.spec("AUTH-9")
async def test_a_use_is_noted_once_and_by_a_node_alone(site: AgentSite) -> None:
    first = await enrolled(site)
    await site.trust.note_use(first)
    revision = site.store.space.revision
    for peer in (first, replace(first, kind=PeerKind.REPLICA), site.node("n2")):
        await site.trust.note_use(peer)
    assert site.store.space.revision == revision
    assert (record_of(site).used, record_of(site).used_serial) == (1, f"{first.serial:x}")


@pytest.mark.spec("AUTH-9")
async def test_a_use_while_the_state_is_away_counts_here_and_is_noted_later(
    site: AgentSite, clock: ManualClock
) -> None:
    stolen = await enrolled(site)
    await site.view.refresh()
    new = await renewed(site, stolen)
    site.store.away = True
    await site.trust.note_use(new)
    with pytest.raises(PermissionRefused, match="then lattice admin enrol n1"):
        await renewed(site, stolen)
    assert (record_of(site).used, in_quarantine(site)) == (1, False)
    site.store.away = False
    await site.trust.note_use(new)
    assert record_of(site).used == 1, "not asked again at every call"
    clock.advance(11)
    await site.trust.note_use(new)
    assert record_of(site).used == 2


@pytest.mark.spec("AUTH-9")
async def test_a_use_whose_record_changes_at_every_try_is_noted_later(
    site: AgentSite,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await enrolled(site)

    async def conflict(*_: object) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(site.store, "commit", conflict)
        await site.trust.note_use(first)
    assert (record_of(site).used, caplog.messages) == (0, ["use not noted"])
    clock.advance(11)
    await site.trust.note_use(first)
    assert record_of(site).used == 1


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize("away", [False, True])
async def test_of_two_successors_the_one_used_first_goes_on(site: AgentSite, away: bool) -> None:
    first = await enrolled(site)
    await site.view.refresh()
    site.store.away = away
    forged, genuine = await renewed(site, first), await renewed(site, first)
    assert genuine.generation == forged.generation == 2
    site.store.away = False
    await site.trust.note_use(genuine)
    await site.trust.note_use(forged)
    assert record_of(site).serial == f"{genuine.serial:x}"
    assert (await renewed(site, genuine)).generation == 3
    with pytest.raises(PermissionRefused, match="quarantine"):
        await renewed(site, forged)


async def test_a_record_that_can_not_be_read_lets_no_one_renew(site: AgentSite) -> None:
    first = await enrolled(site)
    await site.store.put(CERTIFICATE + "n1", b"{")
    with pytest.raises(PermissionRefused, match="can't be read; admin: lattice admin enrol n1"):
        await renewed(site, first)
    await site.trust.note_use(first)
    assert (await renewed(site, await enrolled(site))).generation == 2


RECORDS = st.builds(
    Certificate,
    serial=st.just("a"),
    issued=st.just(0.0),
    expires=st.just(0.0),
    generation=st.integers(0, 9),
    used=st.integers(0, 9),
    used_serial=st.sampled_from("123"),
)


@given(RECORDS | st.none(), st.integers(0, 9), st.integers(1, 3))
def test_a_use_never_lowers_what_is_used_nor_spends_what_was_used(
    record: Certificate | None, generation: int, serial: int
) -> None:
    clock = ManualClock()
    peer = PeerIdentity(
        kind=PeerKind.NODE, name="n1", cluster="c", serial=serial, not_before=clock.now(),
        not_after=clock.now(), generation=generation,
    )  # fmt: skip
    after = with_used(record, peer)
    if after is None:
        assert generation <= (record.used if record else 0)
        return
    assert after.used == generation > (record.used if record else 0)
    assert not is_spent(after, peer)
    assert is_spent(after, replace(peer, generation=generation, serial=serial + 1))
    assert next_generation(after, peer) > generation


@dataclass
class Holder:
    """Whoever holds a certificate of the node: the agent, or a thief with a copy."""

    peer: PeerIdentity
    refused: list[str] = field(default_factory=list)

    async def act(self, act: str, site: AgentSite) -> None:
        try:
            site.trust.admit(self.peer)
            await site.trust.note_use(self.peer)
            if act != "use":
                got = await renewed(site, self.peer)
                if act == "renew":
                    self.peer = got
        except Unavailable:
            pass
        except LatticeError as error:
            self.refused.append(error.message)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["use", "renew", "renew, and the answer is lost"]),
        st.lists(st.integers(0, 3), max_size=12),
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as made:
        yield Path(made)


@pytest.mark.spec("AUTH-9")
@given(ACTS, ACTS)
async def test_an_agent_alone_is_never_suspected_whichever_replicas_it_asks(
    folder: Path, acts: list[tuple[str, list[int]]], others: list[tuple[str, list[int]]]
) -> None:
    clock = ManualClock()
    shared = InterleavedStateStore(clock)
    first = await AgentSite(folder, clock, await _with_authority(folder, clock, shared)).started()
    agent = Holder(await enrolled(first))
    for act, turns in [*acts, *others]:
        replica = await AgentSite(folder, clock, shared.door(turns)).started()
        # A call on the connection of before runs beside it.
        await asyncio.gather(agent.act(act, replica), replica.trust.note_use(agent.peer))
    assert (agent.refused, in_quarantine(first)) == ([], False)
    assert record_of(first).generation >= record_of(first).used


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
@given(ACTS, ACTS, st.booleans())
async def test_however_two_holders_race_over_two_replicas_they_are_found_out(
    folder: Path,
    acts: list[tuple[str, list[int]]],
    others: list[tuple[str, list[int]]],
    thief_first: bool,
) -> None:
    clock = ManualClock()
    shared = InterleavedStateStore(clock)
    first = await AgentSite(folder, clock, await _with_authority(folder, clock, shared)).started()
    agent = Holder(await enrolled(first))
    thief = Holder(agent.peer)

    async def live(holder: Holder, course: list[tuple[str, list[int]]]) -> None:
        for act, turns in course:
            await holder.act(act, await AgentSite(folder, clock, shared.door(turns)).started())

    await asyncio.gather(live(agent, acts), live(thief, others))
    both = (thief, agent) if thief_first else (agent, thief)
    for holder in both * 2:
        await holder.act("renew", await AgentSite(folder, clock, shared.door([])).started())
    assert in_quarantine(first)
    for holder in both:
        with pytest.raises(PermissionRefused, match="quarantine"):
            (await AgentSite(folder, clock, shared.door([])).started()).trust.admit(holder.peer)


async def _with_authority(
    folder: Path, clock: ManualClock, shared: InterleavedStateStore
) -> InterleavedStateStore:
    if not (folder / "ca.pem").exists():
        AgentSite(folder, clock)
    return shared.door([])
