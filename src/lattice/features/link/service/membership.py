"""A replica's lease in the state store, and its record under it.

Everything that must end with the replica is put under this lease: routes of its links, its slots.
After a loss the replica takes a new lease as soon as the store answers. Then it calls everybody
that put keys under the old lease, to put them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.state import Lease, StateStore
from lattice.features.link.model import REPLICAS, Replica, written

_log = logging.getLogger(__name__)

LEASE_S = 10
_RETRY_S = 1.0


class Membership:
    """`lease` is 0 while there is no valid one."""

    def __init__(self, store: StateStore, me: Replica) -> None:
        self.me = me
        self._store = store
        self._lease: Lease | None = None
        self._on_new: list[Callable[[], None]] = []

    @property
    def lease(self) -> int:
        """The id of the current lease, or 0."""
        return 0 if self._lease is None or self._lease.lost else self._lease.id

    def require_lease(self) -> int:
        """The id of the current lease; raises `Unavailable` without one."""
        if not self.lease:
            raise Unavailable(
                "This server has lost its place in the agreed state.",
                hint="It takes it again as soon as etcd answers; try again in a few seconds.",
            )
        return self.lease

    def on_new_lease(self, notify: Callable[[], None]) -> None:
        """Call `notify` for every new lease: the keys under the last one are gone."""
        self._on_new.append(notify)

    async def run(self) -> None:
        """Hold a lease until cancelled, then release it at once."""
        try:
            while True:
                try:
                    await self._hold()
                except LatticeError as error:
                    _log.warning("membership: %s", error.message)
                    await asyncio.sleep(_RETRY_S)
        finally:
            await self._let_go()

    async def _hold(self) -> None:
        self._lease = await self._store.lease(LEASE_S)
        await self._store.put(REPLICAS + self.me.id, written(self.me), self._lease.id)
        for notify in self._on_new:
            notify()
        await self._lease.wait_lost()
        _log.warning("membership: the lease is lost")

    async def _let_go(self) -> None:
        if self._lease is not None:
            with suppress(LatticeError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._lease.release()
