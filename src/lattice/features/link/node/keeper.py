"""Keeps one link to one replica and reconnects when it is lost.

gRPC probes the connection of a link every 5 s and drops it after 15 s of silence. Pings are rarer;
one is sent within 5 s if the node's health or its clock has changed. The next link is opened on the
standby connection. If that fails, the replicas are dialled in rounds.

A replica without the state store can't publish a link. The agent keeps such a link while it looks
for another replica, and drops it after the new link is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from lattice.base.clock import Clock
from lattice.domain.node import NodeHealth
from lattice.features.link.convert import health_message
from lattice.features.link.model import REPLACED
from lattice.features.link.node.dialler import Dialling, LinkChannel
from lattice.features.link.node.redial import Redial
from lattice.features.link.node.standby import Standby
from lattice.wire.carriers import EOF
from lattice.wire.dial_reasons import call_failure
from lattice.wire.v1 import link_pb2 as pb

_log = logging.getLogger(__name__)

_UNPUBLISHED_S = 15.0
_PUBLISHED_WITHIN_S = 3.0
_SCOUT_EVERY_S = 30.0
_LONGEST_SCOUT_S = 300.0
_PING_CHECK_S = 5.0
_CLOCK_SET_S = 0.5
"""A clock is not slewed so far between two pings."""
_CHECK_S = 1.0
_PUBLISHED_CHECK_S = 5.0
"""Soon enough to notice that a link is no longer published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelf:
    """What an agent reports about itself when it links."""

    node: str
    boot_id: str
    instance: str
    agent_version: str
    health: Callable[[], NodeHealth] = NodeHealth
    """Returns the health of the node now."""


class LineLost(Exception):
    """The link is lost, or never opened; the text has the reason."""


class LineRefused(LineLost):
    """The replica does not accept this node's certificate."""


class LinkLine:
    """One link, from its dial to its end."""

    def __init__(self, connection: LinkChannel, clock: Clock) -> None:
        self.address = connection.address
        self.welcome = pb.Welcome()
        self.published = False
        self._published_at = clock.monotonic()
        self._last_seen = clock.monotonic()
        self._connection = connection
        connection.has_link = True
        self._clock = clock
        self._call: Any = connection.channel.stream_stream(
            "/lattice.v1.LinkService/Link",
            request_serializer=pb.LinkUp.SerializeToString,
            response_deserializer=pb.LinkDown.FromString,
        )
        self._number = 0
        self._ahead_us: int | None = None
        self._round_trip_us: int | None = None
        self._health: Callable[[], NodeHealth] = NodeHealth
        self._pinged_s = float("-inf")
        self._pinged_health = NodeHealth()
        self._pinged_time_s = 0.0
        self._pinged_ahead_us = 0

    @property
    def unpublished_s(self) -> float:
        """For how long other replicas have not been able to find this link."""
        return 0.0 if self.published else self._clock.monotonic() - self._published_at

    @property
    def ahead_s(self) -> float | None:
        """How far the node's clock is ahead of the replica's; None before a measurement.

        0 if the difference is below the error of the measurement.
        """
        if self._ahead_us is None or self._round_trip_us is None:
            return None
        known = abs(self._ahead_us) > self._round_trip_us / 2
        return self._ahead_us / 1e6 if known else 0.0

    def calls(self) -> AbstractAsyncContextManager[aio.Channel]:
        """The connection, for calls of this replica. They may outlast the link."""
        return self._connection.calls()

    async def open(self, me: NodeSelf, patience_s: float) -> None:
        """Dial and read the welcome. Raises `LineLost`."""
        try:
            # The call itself waits for the connection, and fails at once if it is refused.
            async with asyncio.timeout(patience_s):
                self._call = self._call()
                hello = pb.Hello(
                    node=me.node,
                    boot_id=me.boot_id,
                    instance=me.instance,
                    agent_version=me.agent_version,
                    health=health_message(me.health()),
                    probes=True,
                )
                await self._call.write(pb.LinkUp(hello=hello))
                first = await self._call.read()
        except TimeoutError:
            raise LineLost("no answer in time") from None
        except (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise await _lost(error, self._call) from None
        if first is EOF or first.WhichOneof("message") != "welcome":
            raise await _lost(None, self._call)
        self.welcome = first.welcome
        self._health = me.health
        self._note_published(published=self.welcome.published)
        self._last_seen = self._clock.monotonic()

    async def wait_published(self, on_ticket: Callable[[pb.Ticket], None]) -> bool:
        """True once other replicas can find this link; False after 3 s or a lost link."""
        try:
            async with asyncio.timeout(_PUBLISHED_WITHIN_S):
                await self._send_ping()
                while not self.published:
                    self._take(await self._call.read(), on_ticket)
        except (TimeoutError, LineLost, aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def run(self, on_ticket: Callable[[pb.Ticket], None]) -> None:
        """Ping and read until the link ends, which raises `LineLost`."""
        pinging = asyncio.ensure_future(self._ping())
        reading = asyncio.ensure_future(self._read(on_ticket))
        try:
            done, _ = await asyncio.wait((pinging, reading), return_when=asyncio.FIRST_COMPLETED)
            if any(each.cancelled() for each in done):
                # grpc raises it for a call that was cancelled here; nobody has cancelled this task.
                raise await _lost(None, self._call)
            done.pop().result()
        except (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError) as error:
            raise await _lost(error, self._call) from None
        finally:
            for task in (pinging, reading):
                task.cancel()
            await asyncio.gather(pinging, reading, return_exceptions=True)

    async def close(self) -> None:
        if isinstance(self._call, aio.Call):
            self._call.cancel()
        await self._connection.close()

    async def _read(self, on_ticket: Callable[[pb.Ticket], None]) -> None:
        while (message := await self._call.read()) is not EOF:
            self._last_seen = self._clock.monotonic()
            self._take(message, on_ticket)
        raise await _lost(None, self._call)

    def _take(self, message: Any, on_ticket: Callable[[pb.Ticket], None]) -> None:
        if message is EOF:
            raise LineLost("the line is closed")
        match message.WhichOneof("message"):
            case "pong":
                self._measure(message.pong)
            case "ticket":
                on_ticket(message.ticket)
            case "welcome":
                self.welcome = message.welcome  # the replicas have changed
            case "leave":
                raise LineLost(message.leave.reason)

    async def _ping(self) -> None:
        every_s = max(0.1, self.welcome.ping_every_ms / 1000)
        silence_s = max(every_s, self.welcome.silence_ms / 1000)
        check_s = min(every_s, _PING_CHECK_S)
        writing: asyncio.Future[None] | None = None
        try:
            while True:
                silent_s = self._clock.monotonic() - self._last_seen
                if silent_s > silence_s:
                    raise LineLost(f"nothing was heard for {silent_s:.0f} s")
                # A blocked write must not delay the check for silence. It goes on, since grpc ends
                # a call whose write is cancelled.
                if writing is None or writing.done():
                    if writing is not None:
                        writing.result()
                        writing = None
                    if self._is_ping_due(every_s):
                        writing = asyncio.ensure_future(self._send_ping())
                await asyncio.sleep(check_s)
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    def _is_ping_due(self, every_s: float) -> bool:
        """Also if the replica should know at once: the health or the clock has changed."""
        set_s = self._clock.now().timestamp() - self._clock.monotonic() - self._pinged_time_s
        learned_us = (self._ahead_us or 0) - self._pinged_ahead_us
        return (
            self._clock.monotonic() - self._pinged_s > every_s - _PING_CHECK_S / 2
            or max(abs(set_s), abs(learned_us) / 1e6) > _CLOCK_SET_S
            or self._health() != self._pinged_health
        )

    async def _send_ping(self) -> None:
        self._number += 1
        self._pinged_s, self._pinged_health = self._clock.monotonic(), self._health()
        self._pinged_time_s = self._clock.now().timestamp() - self._pinged_s
        self._pinged_ahead_us = self._ahead_us or 0
        ping = pb.Ping(
            number=self._number,
            sent_us=self._now_us(),
            ahead_us=self._ahead_us,
            round_trip_us=self._round_trip_us,
            health=health_message(self._pinged_health),
        )
        await self._call.write(pb.LinkUp(ping=ping))

    def _measure(self, pong: pb.Pong) -> None:
        self._note_published(published=pong.published)
        if not pong.number:
            return  # not an answer: the replica reports that the link is published
        round_trip_us = self._now_us() - pong.sent_us
        if 0 <= round_trip_us < 60_000_000:
            self._round_trip_us = round_trip_us
            self._ahead_us = pong.sent_us + round_trip_us // 2 - pong.received_us

    def _note_published(self, *, published: bool) -> None:
        if published or self.published:
            self._published_at = self._clock.monotonic()
        self.published = published

    def _now_us(self) -> int:
        return int(self._clock.now().timestamp() * 1e6)


class LinkKeeper:
    """`run` keeps a link until cancelled. `line` is the current one, or None."""

    def __init__(
        self,
        me: NodeSelf,
        dialling: Dialling,
        redial: Redial,
        clock: Clock,
        on_ticket: Callable[[pb.Ticket], None],
        on_welcome: Callable[[pb.Welcome], None],
        *,
        on_refused: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.line: LinkLine | None = None
        self._links = 0
        self._me = me
        self._dialling = dialling
        self._redial = redial
        self._clock = clock
        self._on_ticket = on_ticket
        self._on_welcome = on_welcome
        self._on_refused = on_refused
        self._sleep = sleep
        self._renewed = asyncio.Event()
        self._standby = Standby(dialling, redial, sleep=sleep)

    def renew(self) -> None:
        """Open a new link with the renewed identity; the old one closes after that."""
        self._renewed.set()

    async def run(self) -> None:
        first = True
        try:
            while True:
                line = await self._dial_standby()
                if line is None:
                    if not first:
                        await self._sleep(self._redial.wait_s())
                    line = await self._dial(self._redial.round())
                first = False
                if line is None:
                    self._redial.nobody()
                    continue
                await self._hold(line)
        finally:
            if self.line is not None:
                await self.line.close()
            await self._standby.aclose()

    async def _dial_standby(self) -> LinkLine | None:
        """A link on the standby connection, if there is one that accepts it."""
        if not self._standby.address:
            return None
        await self._sleep(self._redial.standby_wait_s())
        ready = self._standby.take()
        if ready is None:
            return None
        line = LinkLine(ready.link, self._clock)
        if await self._open(line, self._redial.standby_patience_s(ready.address)):
            self._redial.linked(ready.address)
            return line
        self._redial.lost(ready.address)
        return None

    async def _dial(self, addresses: list[str], *, published: bool = False) -> LinkLine | None:
        """The first replica that accepts the link; with `published`, one that can publish it."""
        for address in addresses:
            line = LinkLine(self._dialling.link_channel(address), self._clock)
            if not await self._open(line, self._redial.patience_s):
                continue
            if published and not await line.wait_published(self._on_ticket):
                await line.close()
                continue
            self._redial.linked(address)
            return line
        return None

    async def _open(self, line: LinkLine, patience_s: float) -> bool:
        """Open a link; close its connection and return False if the replica does not accept it."""
        opened = False
        try:
            await line.open(self._me, patience_s)
            opened = True
        except LineLost as lost:
            _log.warning("link to %s: %s", line.address, lost)
            if isinstance(lost, LineRefused):
                self._on_refused()
        finally:
            if not opened:
                await line.close()
        return opened

    async def _hold(self, line: LinkLine | None) -> None:
        while line is not None:
            self.line = line
            self._links += 1
            # Equal lines are written once in five minutes, and each link is one of its own.
            _log.info(
                "linked to %s at %s (link %d)", line.welcome.replica, line.address, self._links
            )
            self._learn(line.welcome)
            line = await self._run(line)

    def _learn(self, welcome: pb.Welcome) -> None:
        self._redial.set_replicas(welcome.replicas)
        self._on_welcome(welcome)

    async def _meanwhile(
        self, running: asyncio.Future[None], addresses: list[str], *, published: bool = False
    ) -> LinkLine | None:
        """Dial while a link runs; None at once if that link ends first, for another reason."""
        dialling = asyncio.ensure_future(self._dial(addresses, published=published))
        await asyncio.wait((running, dialling), return_when=asyncio.FIRST_COMPLETED)
        if dialling.done() or str(running.exception()) == REPLACED:
            return await dialling
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)
        return None

    async def _run(self, line: LinkLine) -> LinkLine | None:
        """Run until this link ends, or until a better one is open, which is returned."""
        welcome = line.welcome
        running = asyncio.ensure_future(line.run(self._on_ticket))
        standby = asyncio.ensure_future(self._standby.run(line.address, welcome.replica))
        standby.add_done_callback(_log_defect)
        scouted, scout_s = self._clock.monotonic(), _SCOUT_EVERY_S / 2
        better: LinkLine | None = None
        renewed = asyncio.ensure_future(self._renewed.wait())
        try:
            while not running.done() and better is None:
                check_s = _PUBLISHED_CHECK_S if line.published else _CHECK_S
                if line.published:
                    scout_s = _SCOUT_EVERY_S / 2
                await asyncio.wait(
                    (running, renewed), timeout=check_s, return_when=asyncio.FIRST_COMPLETED
                )
                if running.done():
                    break
                if line.welcome is not welcome:
                    welcome = line.welcome
                    self._learn(welcome)
                if renewed.done():
                    self._renewed.clear()
                    renewed = asyncio.ensure_future(self._renewed.wait())
                    better = await self._meanwhile(running, [line.address])
                elif (
                    line.unpublished_s > _UNPUBLISHED_S
                    and self._clock.monotonic() - scouted > scout_s
                ):
                    scouted = self._clock.monotonic()
                    # While no replica has the state store, thousands of agents must not keep
                    # dialling.
                    scout_s = self._redial.scout_s(scout_s, _LONGEST_SCOUT_S)
                    others = self._redial.others(line.address)
                    better = await self._meanwhile(running, others, published=True)
            if better is None:
                self._redial.lost(line.address)
                reason = running.exception() or "the line is closed"
                _log.warning("link to %s lost: %s", line.address, reason)
            return better
        finally:
            for task in (running, standby, renewed):
                task.cancel()
            await asyncio.gather(running, standby, renewed, return_exceptions=True)
            self.line = None
            await line.close()


def _log_defect(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (defect := task.exception()) is not None:
        _log.error("standby connection: not foreseen", exc_info=defect)


async def _lost(error: Exception | None, call: Any) -> LineLost:
    if isinstance(error, aio.AioRpcError):
        code, details = error.code(), error.details()
    elif isinstance(call, aio.Call) and call.done():
        code, details = await call.code(), await call.details()
    else:
        return LineLost("the line is closed")
    refused = code is grpc.StatusCode.PERMISSION_DENIED
    return (LineRefused if refused else LineLost)(call_failure(code, details))
