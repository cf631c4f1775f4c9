"""Passes the servers' time to the root helper, on a node with a wrong clock.

The helper trusts only a server's signature; the agent only passes it on. It does so when the link
measures a difference, and again when the helper refuses a grant for its time. The latter happens if
the helper has no proven time yet, or if the clock was set since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from lattice.adapters.helper.clock import HelperClock
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.features.link.node.dialler import Linked, linked_calls
from lattice.features.link.node.servertime import ServerTime
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1.agents_pb2_grpc import AgentIdentityServiceStub

_log = logging.getLogger("lattice.agent.clock")

_WORTH_S = 2.0
"""Grants tolerate more, but times with a resolution of a second don't."""
_CHANGED_S = 1.0
_CHECK_EVERY_S = 2.0
_AGAIN_S = 600.0
_RETRY_S = 30.0
_ASK_S = 4.0
"""The helper waits five seconds for its answer."""
_LONGEST_REASON = 80
"""A node's refusal is cut at 300 characters."""

Ask = Callable[[str], Awaitable[str]]
"""Requests a server's time, signed with this nonce."""


class HelperTime:
    """The port `HelperReply`. `run` sends the time before it is needed."""

    def __init__(
        self,
        helper: HelperClock,
        ask: Ask,
        servers: ServerTime,
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`servers` is the time that the link measures, `clock` the node's own."""
        self._helper = helper
        self._ask = ask
        self._servers = servers
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._sent: tuple[float, float] | None = None
        """The last difference that was sent, and when by the monotonic clock."""
        self._retry_at = 0.0
        self._trouble = ""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._due():
                await self.send_time()
            await self._sleep(_CHECK_EVERY_S)

    async def send_time(self) -> str:
        """Why the helper could not be given the time, or an empty string."""
        ahead_s, asked = self._servers.ahead_s or 0.0, self._clock.monotonic()
        async with self._turn:
            if self._sent is not None and self._sent[1] > asked:
                return ""  # another task did it while this one waited
            try:
                await self._helper.set(await self._ask(await self._helper.challenge()))
            except LatticeError as error:
                self._retry_at = self._clock.monotonic() + _RETRY_S
                if self._trouble != error.message:
                    self._trouble = error.message
                    _log.warning(
                        "the helper can't be told the time",
                        extra={"ahead_s": round(ahead_s, 3), "reason": error.message},
                    )
                return error.message
            self._sent, self._trouble = (ahead_s, self._clock.monotonic()), ""
            _log.info("the helper was told the time", extra={"ahead_s": round(ahead_s, 3)})
            return ""

    def message(self, why: str) -> str:
        """Both clocks, for a caller with a grant that the helper refuses for its time."""
        node, server = self._clock.now(), self._servers.now()
        ahead_s = (node - server).total_seconds()
        reason = why.removesuffix(".")[:_LONGEST_REASON]
        if abs(ahead_s) < _WORTH_S:
            return f"lattice-helper goes by another time than the servers, untold: {reason}"
        side = "ahead of" if ahead_s > 0 else "behind"
        return (
            f"the node's clock is {abs(ahead_s):.0f} s {side} the servers' ({node:%H:%M:%S} there, "
            f"{server:%H:%M:%S} here, UTC), and lattice-helper there can't be told the time: "
            f"{reason}. An administrator sets the node's clock (chronyc makestep)"
        )

    def _due(self) -> bool:
        ahead_s, now = self._servers.ahead_s, self._clock.monotonic()
        if ahead_s is None or now < self._retry_at:
            return False
        if self._sent is None:
            return abs(ahead_s) > _WORTH_S
        before_s, at = self._sent
        return abs(ahead_s - before_s) > _CHANGED_S or now - at > _AGAIN_S


class LinkedTime:
    """Requests the time from the linked replica; `link` returns None while there is none."""

    def __init__(self, link: Callable[[], Linked | None]) -> None:
        self._link = link

    async def __call__(self, nonce: str) -> str:
        async with linked_calls(self._link()) as channel:
            stub: Any = AgentIdentityServiceStub(channel)
            request = pb.TellTimeRequest(nonce=nonce)
            answer: pb.ToldTime = await stub.TellTime(request, timeout=_ASK_S)
        return answer.signed
