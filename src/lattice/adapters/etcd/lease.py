"""A lease on etcd, renewed in the background.

It counts as lost when no renewal was confirmed for its whole time. The local clock counts from when
the last confirmed request was *sent*. etcd counts from later, so the lease ends here first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from lattice.adapters.etcd.members import HAS_LEADER, TOTAL_S, Member, Members
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.state import LeaseGone

_log = logging.getLogger(__name__)

_RETRY_S = 0.2


class EtcdLease:
    """`keep` runs until the lease is released or lost; the store owns that task."""

    def __init__(
        self, members: Members, clock: Clock, number: int, ttl_s: int, sent_s: float
    ) -> None:
        self.id = number
        self._members = members
        self._clock = clock
        self._ttl_s = ttl_s
        self._confirmed_s = sent_s
        self._ended = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Also by the clock: a process that was stopped sees the loss when it continues."""
        if self._left_s() <= 0:
            self._ended.set()
        return self._ended.is_set()

    async def wait_lost(self) -> None:
        """Wait until it is lost; `keep` detects that in time."""
        await self._ended.wait()

    async def release(self) -> None:
        """End it. If the store can't be reached, it expires by itself."""
        self._ended.set()
        try:
            await self._members.ask(self._revoke, repeatable=True)
        except LeaseGone:
            return
        except Unavailable as error:
            _log.info("etcd lease %x: not released, it will expire: %s", self.id, error.message)

    async def keep(self) -> None:
        """Renew it every third of its time, and more often while that fails."""
        wait_s = self._ttl_s / 3
        try:
            while not await self._lost_within(wait_s):
                wait_s = self._ttl_s / 3 if await self._confirm() else _RETRY_S
        finally:
            self._ended.set()  # nothing renews it any more

    async def _confirm(self) -> bool:
        sent_s = self._clock.monotonic()
        try:
            ttl_s = await self._members.ask(
                self._once, repeatable=True, total_s=min(TOTAL_S, self._left_s())
            )
        except LatticeError:
            return False
        if ttl_s <= 0:
            self._ended.set()
            return False
        self._confirmed_s = sent_s
        return True

    async def _lost_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(min(wait_s, max(self._left_s(), 0.0))):
                await self._ended.wait()
        except TimeoutError:
            return self.lost
        return True

    async def _once(self, member: Member, timeout_s: float) -> int:
        # A separate call each time: a stream could hang unnoticed.
        call = member.keep_alive(self._question(), timeout=timeout_s, metadata=HAS_LEADER)
        try:
            response = await call.read()
        finally:
            call.cancel()
        if not isinstance(response, pb.LeaseKeepAliveResponse):
            raise Unavailable("etcd did not say whether a lease goes on.")
        return response.TTL

    async def _question(self) -> AsyncIterator[pb.LeaseKeepAliveRequest]:
        yield pb.LeaseKeepAliveRequest(ID=self.id)

    async def _revoke(self, member: Member, timeout_s: float) -> None:
        await member.lease.LeaseRevoke(
            pb.LeaseRevokeRequest(ID=self.id), timeout=timeout_s, metadata=HAS_LEADER
        )

    def _left_s(self) -> float:
        return self._confirmed_s + self._ttl_s - self._clock.monotonic()
