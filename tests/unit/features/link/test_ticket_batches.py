"""Tickets to another replica: few calls, and no node pays for another."""

from __future__ import annotations

import asyncio

import pytest

from lattice.base.errors import Unavailable
from lattice.features.link.model import Replica
from lattice.features.link.service.ticket_batches import NotLinked, TicketBatches
from lattice.wire.v1.link_pb2 import PassTicketAnswer, PassTicketRequest, Ticket

HERE = Replica(id="b", address="b:50052", since=0.0)


def ticket(node: str, size: int = 0) -> PassTicketRequest:
    return PassTicketRequest(node=node, ticket=Ticket(id=f"for {node}", opening=b"x" * size))


class Peer:
    """Another replica; `linked` are its nodes. An older one takes one ticket a call."""

    def __init__(self, *linked: str, older: bool = False) -> None:
        self.linked = linked
        self.older = older
        self.calls: list[int] = []
        self.sizes: list[int] = []
        self.handed: list[str] = []
        self.is_gone = False

    async def call(self, replica: Replica, request: PassTicketRequest) -> PassTicketAnswer:
        assert replica is HERE
        self.calls.append(1 + len(request.others))
        self.sizes.append(request.ByteSize())
        await asyncio.sleep(0)
        if self.is_gone:
            raise Unavailable("It does not answer.")
        if request.others and not self.older:
            return PassTicketAnswer(handed=map(self._hand, (request, *request.others)))
        if not self._hand(request):
            raise NotLinked(request.node, replica.id)
        return PassTicketAnswer()

    def _hand(self, request: PassTicketRequest) -> bool:
        assert request.ticket.id == f"for {request.node}"
        if request.node in self.linked:
            self.handed.append(request.node)
        return request.node in self.linked


async def passed(peer: Peer, *tickets: PassTicketRequest) -> list[str]:
    """The nodes of the tickets that were not taken."""
    batches = TicketBatches(peer.call)
    found = await asyncio.gather(
        *(batches.pass_ticket(HERE, each) for each in tickets), return_exceptions=True
    )
    for each in found:
        assert each is None or isinstance(each, Unavailable), each
    return [each.node for each, error in zip(tickets, found, strict=True) if error]


NODES = tuple(f"n{number}" for number in range(200))


async def test_tickets_of_one_moment_go_in_few_calls() -> None:
    peer = Peer(*NODES)
    assert await passed(peer, *map(ticket, NODES)) == []
    assert sorted(peer.handed) == sorted(NODES)
    assert peer.calls == [64, 64, 64, 8]


async def test_a_call_stays_below_the_largest_message() -> None:
    peer = Peer(*NODES)
    assert await passed(peer, *(ticket(node, 16 * 1024) for node in NODES[:20])) == []
    assert len(peer.handed) == 20
    assert max(peer.sizes) < 256 * 1024


@pytest.mark.parametrize("older", [False, True])
async def test_a_node_that_moved_does_not_cost_the_others_theirs(older: bool) -> None:
    peer = Peer(*NODES[1:4], *NODES[5:8], older=older)
    assert await passed(peer, *map(ticket, NODES[:8])) == ["n0", "n4"]
    assert sorted(peer.handed) == ["n1", "n2", "n3", "n5", "n6", "n7"]


async def test_an_older_replica_gets_one_after_the_other() -> None:
    peer = Peer(*NODES, older=True)
    assert await passed(peer, *map(ticket, NODES[:5])) == []
    assert sorted(peer.handed) == ["n0", "n1", "n2", "n3", "n4"]


async def test_a_replica_that_is_gone_fails_all_that_wait_for_it() -> None:
    peer = Peer(*NODES)
    peer.is_gone = True
    assert await passed(peer, *map(ticket, NODES)) == list(NODES)
    assert peer.calls == [64], "the others do not wait for another failure"


async def test_the_next_ticket_after_a_failure_is_tried() -> None:
    peer = Peer("n1")
    batches = TicketBatches(peer.call)
    peer.is_gone = True
    with pytest.raises(Unavailable):
        await batches.pass_ticket(HERE, ticket("n1"))
    peer.is_gone = False
    await batches.pass_ticket(HERE, ticket("n1"))
    assert peer.handed == ["n1"]


async def test_those_on_their_way_fail_when_the_server_stops() -> None:
    called = asyncio.Event()

    async def call(_replica: Replica, _request: PassTicketRequest) -> PassTicketAnswer:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError

    batches = TicketBatches(call)
    waiting = [asyncio.ensure_future(batches.pass_ticket(HERE, ticket("n1")))]
    await called.wait()
    waiting.append(asyncio.ensure_future(batches.pass_ticket(HERE, ticket("n2"))))
    await asyncio.sleep(0)
    await batches.aclose()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, Unavailable) for each in found), found
