"""A connection to the next replica, made before the link is lost.

After a replica's death its agents open their links elsewhere at once. A handshake costs both sides
several times as much as the link, so it is made in advance. The connection has no link, but may
have streams. The agent calls on it every two minutes: that finds a frozen replica, and lets the
replica count it.

If the next replica does not answer, the one after it is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from lattice.features.link.node.dialler import Dialling, LinkChannel
from lattice.features.link.node.redial import Redial
from lattice.wire.v1 import link_pb2 as pb

_CALL_EVERY_S = 120.0
_CALL_S = 5.0
_CHECK_S = 5.0
_LONGEST_REST_S = 300.0
_MOST_DOUBLED = 10


@dataclass(frozen=True, slots=True)
class ReadyConnection:
    """A connection on which a replica has answered."""

    link: LinkChannel
    generation: int
    """Of the identity that it was made with."""

    @property
    def address(self) -> str:
        return self.link.address


class Standby:
    """`run` keeps a connection ready until cancelled; `take` returns it for a link."""

    def __init__(
        self,
        dialling: Dialling,
        redial: Redial,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._dialling = dialling
        self._redial = redial
        self._sleep = sleep
        self._ready: ReadyConnection | None = None
        self._linked_to = ""
        self._same: set[str] = set()
        """Other addresses of the replica that has the link."""

    @property
    def address(self) -> str:
        """The replica of the connection; empty without one that can be used."""
        ready = self._ready
        return ready.address if ready is not None and self._is_usable(ready) else ""

    def take(self) -> ReadyConnection | None:
        """The connection, which the caller closes from now on; None if it can't be used."""
        if not self.address:
            return None
        ready, self._ready = self._ready, None
        return ready

    async def run(self, linked_to: str, replica: str) -> None:
        """Keep a connection ready to the next replica after the one that has the link.

        That one is `replica`, dialled at `linked_to`.
        """
        self._linked_to = linked_to
        self._same.clear()
        failures = 0
        while True:
            await self._sleep(self._redial.standby_delay_s())
            if await self._renew(replica):
                failures = 0
                await self._rest(_CALL_EVERY_S)
            else:
                failures = min(failures + 1, _MOST_DOUBLED)
                await self._rest(min(_LONGEST_REST_S, _CHECK_S * 2.0**failures))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._replace(None)

    async def _renew(self, replica: str) -> bool:
        """True once another replica has answered; the connection to it is the only one then."""
        for address in self._redial.others(self._linked_to):
            if address in self._same:
                continue
            connection = self._current(address) or self._connect(address)
            if await self._is_accepted(connection, replica):
                await self._replace(connection)
                return True
            if connection is self._ready:
                await self._replace(None)
        await self._replace(None)
        return False

    def _current(self, address: str) -> ReadyConnection | None:
        ready = self._ready
        return ready if ready and ready.address == address and self._is_usable(ready) else None

    def _connect(self, address: str) -> ReadyConnection:
        generation = self._dialling.generation
        return ReadyConnection(self._dialling.link_channel(address), generation)

    async def _is_accepted(self, connection: ReadyConnection, replica: str) -> bool:
        accepted = False
        try:
            answered = await _ask(connection.link.channel)
            accepted = answered is not None and answered != replica
            if answered == replica:
                self._same.add(connection.address)
        finally:
            # Also if the link was lost meanwhile. One that is in use stays, to be taken.
            if not accepted and connection is not self._ready:
                await connection.link.close()
        return accepted

    async def _replace(self, connection: ReadyConnection | None) -> None:
        before, self._ready = self._ready, connection
        if before is not None and before is not connection:
            await before.link.close()

    async def _rest(self, rest_s: float) -> None:
        """Wait; return early if the connection or the list of replicas is no longer good."""
        others = self._redial.others(self._linked_to)
        while rest_s > 0:
            await self._sleep(min(_CHECK_S, rest_s))
            rest_s -= _CHECK_S
            if self._redial.others(self._linked_to) != others:
                return
            if self._ready is not None and not self._is_usable(self._ready):
                return

    def _is_usable(self, connection: ReadyConnection) -> bool:
        return (
            connection.address != self._linked_to
            and connection.generation == self._dialling.generation
            and connection.link.is_ready
        )


async def _ask(channel: aio.Channel) -> str | None:
    """The id of the replica, empty if it is an older one; None if it does not answer."""
    call: Any = channel.unary_unary(
        "/lattice.v1.LinkService/Standby",
        request_serializer=pb.StandbyRequest.SerializeToString,
        response_deserializer=pb.StandbyAnswer.FromString,
    )
    try:
        answer = await call(pb.StandbyRequest(), timeout=_CALL_S)
    except aio.AioRpcError as error:
        return "" if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
    return str(answer.replica)
