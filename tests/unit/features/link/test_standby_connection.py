"""The connection that an agent keeps ready for its next link."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import grpc
from grpc import aio

from lattice.features.link.node.dialler import Dialling, LinkChannel
from lattice.features.link.node.redial import STANDBY_WITHIN_S, Redial
from lattice.features.link.node.standby import Standby
from lattice.wire.v1.link_pb2 import StandbyAnswer

ROUND_S = 120.0 + STANDBY_WITHIN_S
"""Within this time an agent calls again."""


class Time:
    """Stands for `asyncio.sleep`; passes when it is moved."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, future))
        await future

    async def move(self, seconds: float) -> None:
        until = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await settle()
        self._now = until


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class FakeChannel:
    """A connection of gRPC, as far as the standby uses it."""

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self.closed = False
        self.connected = False
        self.calls = 0
        self._network = network

    def get_state(self) -> grpc.ChannelConnectivity:
        ready = self.connected and not self.closed
        return grpc.ChannelConnectivity.READY if ready else grpc.ChannelConnectivity.IDLE

    def unary_unary(self, method: str, **_: Any) -> Any:
        assert method == "/lattice.v1.LinkService/Standby"
        return self._call

    async def _call(self, _request: Any, timeout: float) -> StandbyAnswer:
        assert timeout > 0
        self.calls += 1
        answer = self._network.replicas.get(self.address, grpc.StatusCode.UNAVAILABLE)
        if answer == "hangs":
            await asyncio.Event().wait()
        if answer is grpc.StatusCode.UNAVAILABLE:
            self.connected = False
        else:
            self.connected = True
        if isinstance(answer, grpc.StatusCode):
            raise aio.AioRpcError(answer, aio.Metadata(), aio.Metadata())
        return StandbyAnswer(replica=answer)

    async def close(self, _grace: float | None) -> None:
        self.closed = True


class Network:
    """Replicas by address, each with its id or with the status of its answer."""

    def __init__(self, **replicas: str | grpc.StatusCode) -> None:
        self.replicas: dict[str, str | grpc.StatusCode] = dict(replicas)
        self.generation = 1
        self.channels: list[FakeChannel] = []
        self.time = Time()
        self.redial = Redial("n1", sorted(replicas), Random(1))
        self.standby = Standby(cast("Dialling", self), self.redial, sleep=self.time.sleep)
        self.order = self.redial.round()

    def link_channel(self, address: str) -> LinkChannel:
        self.channels.append(FakeChannel(self, address))
        return LinkChannel(address, cast("aio.Channel", self.channels[-1]))

    @property
    def open(self) -> list[str]:
        return [each.address for each in self.channels if not each.closed]

    def dials(self, address: str) -> int:
        return sum(each.address == address for each in self.channels)

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[str]:
        """While the agent has a link to its first replica; yields that one's address."""
        address = self.order[0]
        running = asyncio.ensure_future(
            self.standby.run(address, cast("str", self.replicas[address]))
        )
        try:
            await self.time.move(STANDBY_WITHIN_S)
            yield address
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def three() -> Network:
    return Network(a="A", b="B", c="C")


async def test_the_next_replica_in_the_nodes_order_is_connected_and_called_again() -> None:
    network = three()
    async with network.linked():
        assert network.standby.address == network.order[1]
        for _ in range(5):
            await network.time.move(ROUND_S)
        assert network.open == [network.order[1]]
        assert len(network.channels) == 1
        assert network.channels[0].calls >= 5


async def test_with_one_replica_there_is_no_connection() -> None:
    network = Network(a="A")
    async with network.linked():
        await network.time.move(3600)
        assert network.channels == []
        assert network.standby.take() is None


async def test_a_replica_that_does_not_answer_is_passed_over_until_it_does() -> None:
    network = three()
    _, second, third = network.order
    network.replicas[second] = grpc.StatusCode.DEADLINE_EXCEEDED
    async with network.linked():
        assert network.standby.address == third
        await network.time.move(ROUND_S)
        assert network.open == [third]
        network.replicas[second] = "again"
        await network.time.move(ROUND_S)
        assert network.standby.address == second
        assert network.open == [second]


async def test_while_nobody_answers_the_dials_become_rarer_and_leave_nothing_open() -> None:
    network = three()
    for address in network.order[1:]:
        network.replicas[address] = grpc.StatusCode.UNAVAILABLE
    async with network.linked():
        await network.time.move(3600)
        assert network.open == []
        assert 10 <= network.dials(network.order[1]) <= 24
        network.replicas[network.order[1]] = "B"
        await network.time.move(300 + STANDBY_WITHIN_S)
        assert network.standby.address == network.order[1]


async def test_another_address_of_the_linked_replica_is_no_standby_and_is_dialled_once() -> None:
    network = three()
    first, second, third = network.order
    network.replicas[second] = network.replicas[first]
    async with network.linked():
        for _ in range(5):
            await network.time.move(ROUND_S)
        assert network.open == [third]
        assert network.dials(second) == 1


async def test_an_older_replica_without_the_call_is_a_standby_too() -> None:
    network = three()
    network.replicas[network.order[1]] = grpc.StatusCode.UNIMPLEMENTED
    async with network.linked():
        assert network.standby.address == network.order[1]


async def test_a_node_that_a_replica_refuses_has_no_connection_there() -> None:
    network = three()
    for address in network.order[1:]:
        network.replicas[address] = grpc.StatusCode.PERMISSION_DENIED
    async with network.linked():
        assert network.open == []
        assert network.standby.take() is None


async def test_a_renewed_identity_replaces_the_connection() -> None:
    network = three()
    async with network.linked():
        before = network.channels[-1]
        network.generation = 2
        assert network.standby.take() is None, "the old identity must not open a link"
        assert not before.closed
        await network.time.move(STANDBY_WITHIN_S + 5)
        assert before.closed
        taken = network.standby.take()
        assert taken is not None
        assert (taken.address, taken.generation) == (network.order[1], 2)


async def test_a_replica_that_leaves_the_list_loses_the_connection() -> None:
    network = Network(a="A")
    (first,) = network.order
    network.replicas |= {"b": "B", "c": "C"}
    async with network.linked():
        for other in ("b", "c"):
            network.redial.set_replicas([first, other])
            await network.time.move(STANDBY_WITHIN_S + 5)
            assert network.open == [other]
        network.redial.set_replicas([first])
        await network.time.move(STANDBY_WITHIN_S + 5)
        assert network.open == []


async def test_a_lost_connection_is_not_taken_and_is_made_again() -> None:
    network = three()
    async with network.linked():
        network.channels[-1].connected = False
        assert network.standby.take() is None
        await network.time.move(STANDBY_WITHIN_S + 5)
        assert network.channels[0].closed
        assert network.standby.address == network.order[1]


async def test_a_frozen_replica_is_found_by_the_next_call() -> None:
    network = three()
    _, second, third = network.order
    async with network.linked():
        network.replicas[second] = grpc.StatusCode.DEADLINE_EXCEEDED
        assert network.standby.address == second, "it still answers TCP"
        await network.time.move(ROUND_S)
        assert network.open == [third]


async def test_a_taken_connection_is_the_callers_to_close() -> None:
    network = three()
    async with network.linked():
        pass
    taken = network.standby.take()
    assert taken is not None
    assert network.standby.take() is None
    await network.standby.aclose()
    assert network.open == [taken.address]


async def test_a_link_lost_during_a_call_leaves_the_connection_and_closes_a_new_one() -> None:
    network = three()
    _, second, _ = network.order
    async with network.linked():
        network.replicas[second] = "hangs"
        await network.time.move(ROUND_S)
    assert network.standby.address == second
    await network.standby.aclose()
    async with network.linked():
        assert network.open == [second], "it waits for an answer"
    await settle()
    assert network.open == []
