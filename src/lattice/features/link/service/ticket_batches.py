"""Tickets on their way to another replica: those for nodes of the same replica go together.

A large job needs a ticket for each of its nodes. While one call is on its way, the next tickets are
gathered. An older replica takes the first ticket of a call; the others then go one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from lattice.base.errors import Unavailable
from lattice.features.link.model import Replica
from lattice.wire.v1.link_pb2 import PassTicketAnswer, PassTicketRequest

_MOST_TICKETS = 64
_MOST_BYTES = 128 * 1024
"""Half of the largest message that a replica accepts."""

PassTickets: TypeAlias = Callable[[Replica, PassTicketRequest], Awaitable[PassTicketAnswer]]
_Waiting: TypeAlias = tuple[PassTicketRequest, asyncio.Future[None]]


class NotLinked(Unavailable):
    """The node is not linked to that replica."""

    def __init__(self, node: str, replica: str) -> None:
        super().__init__(f"Node {node} is not linked to {replica}.", hint="Try again.")


class TicketBatches:
    """Passes tickets in few calls. `call` raises `NotLinked` and `Unavailable`."""

    def __init__(self, call: PassTickets) -> None:
        self._call = call
        self._waiting: dict[str, list[_Waiting]] = {}
        """By replica; there is a list while a task passes tickets to it."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def pass_ticket(self, replica: Replica, request: PassTicketRequest) -> None:
        """Return when the replica has taken the ticket. Raises `NotLinked` and `Unavailable`."""
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(replica.id)
        if waiting is not None:
            waiting.append((request, passed))
        else:
            self._waiting[replica.id] = [(request, passed)]
            task = asyncio.create_task(self._run(replica), name=f"tickets {replica.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await passed

    async def aclose(self) -> None:
        """Give up all that are on their way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, replica: Replica) -> None:
        waiting = self._waiting[replica.id]
        try:
            # Tickets of the same moment are gathered.
            await asyncio.sleep(0)
            while waiting:
                batch = _fitting(waiting)
                del waiting[: len(batch)]
                await self._pass_batch(replica, batch)
        except Unavailable as error:
            _fail(waiting, error)
        finally:
            del self._waiting[replica.id]
            _fail(waiting, Unavailable("This server is stopping.", hint="Try again."))

    async def _pass_batch(self, replica: Replica, batch: list[_Waiting]) -> None:
        """Pass these in one call. Raises `Unavailable` if the replica does not answer."""
        (first, passed), *others = batch
        request = PassTicketRequest()
        request.CopyFrom(first)
        request.others.extend(each for each, _ in others)
        try:
            handed = (await self._call(replica, request)).handed or [True]
        except NotLinked as error:
            _fail(batch[:1], error)
            handed = [False]
        except Unavailable as error:
            _fail(batch, error)
            raise
        except asyncio.CancelledError:
            _fail(batch, Unavailable("This server is stopping.", hint="Try again."))
            raise
        for (each, passed), is_handed in zip(batch, handed, strict=False):
            if not is_handed:
                _fail([(each, passed)], NotLinked(each.node, replica.id))
            elif not passed.done():
                passed.set_result(None)
        left = batch[len(handed) :]
        await asyncio.gather(*(self._pass_batch(replica, [each]) for each in left))


def _fitting(waiting: list[_Waiting]) -> list[_Waiting]:
    """The first of them, as many as fit in a call."""
    size = count = 0
    for request, _ in waiting[:_MOST_TICKETS]:
        size += request.ByteSize()
        if count and size > _MOST_BYTES:
            break
        count += 1
    return waiting[:count]


def _fail(batch: Iterable[_Waiting], error: Unavailable) -> None:
    for _, passed in batch:
        if not passed.done():
            passed.set_exception(error)
