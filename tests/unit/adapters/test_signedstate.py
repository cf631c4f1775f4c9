"""Whoever can write the agreed state makes no record that is believed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.adapters.signedstate import RecordSigner, SignedStateStore
from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import LoginRequired, PermissionRefused
from lattice.base.signatures import SigningKey
from lattice.domain.peer import PeerIdentity
from lattice.domain.state import Expect, Put
from lattice.features.agents.service.records import (
    CERTIFICATE,
    ENROLMENTS,
    REVOKED,
    Certificate,
    EnrolmentToken,
    Revocation,
    token_key,
    written,
)
from lattice.features.attach.service.tickets import TICKETS, AttachTickets
from lattice.server.cluster.agents import AgentParts, as_single_server
from lattice.server.config.sections import ServerConfig
from lattice.wire.peerguard import read_peer
from tests.eventually import eventually_async
from tests.fakes.agent_site import ADMIN, opened_agents
from tests.fakes.certificates import new_key, node_pair, request
from tests.fakes.cluster import populated
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

ALICE = Actor(sub="alice-1", user="alice")
KEY = "attach/tickets/x"


class Site:
    """One store, a server's signed view of it, and somebody who writes to it by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bare = InMemoryStateStore(self.clock)
        self.key = SigningKey.generate()
        self.signed = SignedStateStore(self.bare, RecordSigner(self.key))


@pytest.fixture
def site() -> Site:
    return Site()


async def value_of(store: SignedStateStore, key: str = KEY) -> bytes:
    entry = await store.get(key)
    assert entry is not None
    return entry.value


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("etcd")
async def test_what_a_server_wrote_is_read_and_what_a_hand_wrote_is_not(site: Site) -> None:
    await site.signed.put(KEY, b'{"a":1}')
    assert await value_of(site.signed) == b'{"a":1}'
    stored = (await site.bare.get(KEY)) or pytest.fail("nothing is stored")
    for forged in (
        b'{"a":1}',
        b"",
        stored.value + b" ",
        stored.value.replace(b'"a":1', b'"a":2'),
        stored.value.replace(b"LS1 ", b"LS1  "),
        b"LS1 x y\n{}",
        b"LS1 " + b"\xff" * 50 + b"\n{}",
        RecordSigner(SigningKey.generate()).sign(KEY, b'{"a":1}'),
    ):
        await site.bare.put(KEY, forged)
        assert await value_of(site.signed) == b""
        assert [each.value for each in (await site.signed.list("attach/")).entries] == [b""]


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("etcd")
async def test_a_signed_record_holds_under_its_own_key_alone(site: Site) -> None:
    await site.signed.commit([Expect(KEY, 0)], [Put(KEY, b"for x")])
    stored = (await site.bare.get(KEY)) or pytest.fail("nothing is stored")
    await site.bare.put("attach/tickets/y", stored.value)
    assert await value_of(site.signed, "attach/tickets/y") == b""


async def test_records_of_the_key_before_hold_while_keys_are_exchanged(site: Site) -> None:
    await site.signed.put(KEY, b"old")
    successor = SigningKey.generate()
    both = SignedStateStore(site.bare, RecordSigner(successor, [site.key.public]))
    assert await value_of(both) == b"old"
    await both.put(KEY, b"new")
    assert await value_of(both) == b"new"
    assert await value_of(site.signed) == b"", "it does not know the successor yet"


async def test_a_watch_and_a_long_list_open_records_too(site: Site) -> None:
    for n in range(200):
        await site.signed.put(f"trust/certificate/n{n:03}", b"%d" % n)
    view = WatchedStateView(site.signed, "trust/", site.clock)
    task = asyncio.create_task(view.run())
    try:
        await view.wait_first()
        assert [each.value for each in view.entries.values()] == [b"%d" % n for n in range(200)]
        await site.bare.put("trust/certificate/n000", b"by hand")
        await site.signed.put("trust/certificate/n001", b"by a server")
        values = await eventually_async(
            lambda: [each.value for each in list(view.entries.values())[:2]],
            lambda seen: seen[1] == b"by a server",
        )
        assert values[0] == b""
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_many_records_are_opened_beside_the_event_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that were checked before: 10 000 of them took a tenth of a second each time."""
    for n in range(200):
        await site.signed.put(f"trust/certificate/n{n:03}", b"%d" % n)
    threads: list[str] = []
    opened = RecordSigner.open

    def noted(signer: RecordSigner, key: str, value: bytes) -> bytes | None:
        threads.append(threading.current_thread().name)
        return opened(signer, key, value)

    monkeypatch.setattr(RecordSigner, "open", noted)
    for _ in range(2):
        assert len((await site.signed.list("trust/")).entries) == 200
    assert len(threads) == 400
    assert threading.main_thread().name not in threads


async def test_a_record_that_is_not_believed_is_reported_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.bare.put(KEY, b"by hand")
    with caplog.at_level(logging.WARNING, "lattice.state"):
        for _ in range(3):
            await site.signed.get(KEY)
    assert [each.message for each in caplog.records] == ["record without a valid signature"]


@pytest.mark.spec("ATTACH-8")
@pytest.mark.threat("etcd")
async def test_a_ticket_made_by_hand_opens_nothing(site: Site) -> None:
    """Attack 41: a copy of a real ticket's record for a ticket of the attacker's choice."""
    finder = AllocationFinder(populated(site.clock), site.clock)
    tickets = AttachTickets(finder, site.signed, site.clock)
    real = await tickets.issue(ALICE, "1")
    made = "ab" * 32
    key = TICKETS + hashlib.sha256(made.encode()).hexdigest()
    record = {
        "name": "1",
        "until": site.clock.now().timestamp() + 30,
        "actor": msgspec.to_builtins(ALICE),
    }
    copied = next(iter(site.bare.space.entries.values())).value
    for value in (msgspec.json.encode(record), copied):
        await site.bare.put(key, value)
        with pytest.raises(LoginRequired):
            await tickets.redeem(made, "1")
    assert await tickets.redeem(real.ticket, "1") == ALICE


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("etcd")
async def test_trust_records_made_by_hand_give_nothing(tmp_path: Path) -> None:
    """Attack 41, on the parts of a configured server."""
    clock = ManualClock()
    store = InMemoryStateStore(clock)
    config = as_single_server(ServerConfig(), tmp_path)
    async with opened_agents(config, store, clock) as parts:
        assert parts is not None
        later = clock.now().timestamp() + 600
        token = EnrolmentToken(node="n1", expires=later, by="nobody")
        await store.put(token_key("made by hand"), written(token))
        csr = request(new_key()).decode()
        with pytest.raises(PermissionRefused):
            await parts.enrolment.enrol("made by hand", "n1", csr)
        order = await parts.enrolment.create(ADMIN, "n1")
        assert not [key for key in store.space.entries if key == token_key("made by hand")], (
            "what is not believed is swept"
        )
        assert (await parts.enrolment.enrol(order.token, "n1", csr)).node == "n1"
        forged = Certificate(serial="1", issued=0.0, expires=later + 10_000_000)
        await store.put(CERTIFICATE + "n1", written(forged))
        await parts.trust._view.refresh()
        (agent,) = (await parts.trust.agents()).agents
        assert agent.certificate_expires is None
        assert not [key for key in store.space.entries if key.startswith(ENROLMENTS)]


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize("spoiled", [False, True], ids=["from before", "spoiled"])
async def test_a_revocation_without_a_valid_signature_still_refuses(
    tmp_path: Path, spoiled: bool
) -> None:
    """One from before there were signatures keeps its moment: a node enrolled since then is in."""
    clock = ManualClock()
    store = InMemoryStateStore(clock)
    config = as_single_server(ServerConfig(), tmp_path)
    async with opened_agents(config, store, clock) as parts:
        assert parts is not None
        old = _node(parts)
        clock.advance(60)
        await parts.trust.revoke(ADMIN, "n1", "stolen")
        entry = store.space.entries[REVOKED + "n1"]
        record = Revocation(at=clock.now().timestamp(), by="admin-1", reason="stolen")
        await store.put(entry.key, b"LS1 x y\n{}" if spoiled else written(record))
        clock.advance(3600)
        new = _node(parts)
        await parts.trust._view.refresh()
        with pytest.raises(PermissionRefused, match="revoked"):
            parts.trust.admit(old)
        if spoiled:
            with pytest.raises(PermissionRefused, match="revoked"):
                parts.trust.admit(new)
        else:
            parts.trust.admit(new)


def _node(parts: AgentParts) -> PeerIdentity:
    return read_peer(node_pair(parts.replica.authority, "n1", timedelta(days=1)).certificate)
