"""What the agreed state of 10 000 nodes costs a server: a changed key, and the check of all keys.

    python -m bench.nodes

One JSON line a figure, as processor time. `value` is the median of the rounds, `low` and `high`
hold the middle half. For changes the store is in memory. For checks the answers are messages of
etcd, as bytes; `bare` is a list of all keys in one message, as each check was before.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.figures import Figure, against, measured
from lattice.adapters.etcd import store as store_module
from lattice.adapters.etcd.store import EtcdStateStore
from lattice.adapters.etcd.wire.rpc_pb2 import KeyValue, RangeRequest, RangeResponse, ResponseHeader
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import SystemClock
from lattice.domain.presence import LINKS, NODES, Link, Times, linked, written
from lattice.domain.state import Entry, Put
from lattice.features.link.model import Replica
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.routes import Routes
from lattice.server.cluster.presence import PresenceKeeper
from tests.fakes.in_memory_state import InMemoryStateStore

COUNT, CHANGES, ROUNDS = 10_000, 400, 21
_AT_ONCE = 50


class Server:
    """A replica's copies of the agreed state, and those who read them."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.store = InMemoryStateStore(clock)
        self.links = WatchedStateView(self.store, LINKS, clock)
        self.nodes = WatchedStateView(self.store, NODES, clock)
        membership = Membership(self.store, Replica(id="a", address="a:1", since=0.0))
        self.routes = Routes(self.store, self.links, self.nodes, membership, clock)
        self.presences = PresenceKeeper(self.store, self.links, self.nodes, clock, Times())

    def read(self) -> None:
        self.routes.update()
        self.presences.presences()

    async def link(self, first: int, count: int, since: float) -> None:
        for begin in range(first, first + count, _AT_ONCE):
            changes = []
            for number in range(begin, min(begin + _AT_ONCE, first + count)):
                link = Link(node=f"n{number % COUNT}", replica="a", epoch=1, since=since)
                record = linked(None, link, since)
                assert record is not None
                changes += [Put(LINKS + link.node, written(link))]
                changes += [Put(NODES + link.node, written(record))]
            await self.store.commit([], changes)


async def longest_pause(work: asyncio.Future[None]) -> float:
    """The longest that the event loop gave nothing else a turn until this was done."""
    longest, before = 0.0, time.process_time()
    while not work.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    await work
    return longest


async def changes(server: Server) -> Figure:
    """Views, routes and presences follow what another replica writes, with the writing itself."""
    used = []
    views = [asyncio.ensure_future(each.run()) for each in (server.links, server.nodes)]
    try:
        for round_ in range(ROUNDS):
            since = round_ + 2.0
            await asyncio.sleep(0.1)
            begun = time.process_time()
            await server.link(round_ * CHANGES, CHANGES, since)
            last = f"n{((round_ + 1) * CHANGES - 1) % COUNT}"
            while not _is_read(server, last, since):
                await asyncio.sleep(0)
                server.read()
            used.append((time.process_time() - begun) / (2 * CHANGES) * 1e6)
    finally:
        for view in views:
            view.cancel()
        await asyncio.gather(*views, return_exceptions=True)
    name = f"a changed key of {COUNT} nodes: written, watched, routes and presences"
    return measured(name, "µs", used, at_most=200.0)


def _is_read(server: Server, node: str, since: float) -> bool:
    route = server.routes.of(node)
    return route is not None and route.since == since


class Answers:
    """The members of an etcd and their `KV`: each answer is encoded once, and decoded each time."""

    def __init__(self, keys: Sequence[Entry]) -> None:
        self.kv = self
        self._keys = [
            KeyValue(
                key=b"/lattice/" + each.key.encode(),
                value=each.value,
                mod_revision=each.revision,
                create_revision=each.created,
            )
            for each in keys
        ]
        self._encoded: dict[bytes, bytes] = {}

    async def ask(self, send: Any, **_: object) -> Any:
        await asyncio.sleep(0)
        return await send(self, 1.0)

    async def Range(self, request: RangeRequest, **_: object) -> RangeResponse:  # noqa: N802
        asked = request.SerializeToString()
        if asked not in self._encoded:
            self._encoded[asked] = self._answer(request).SerializeToString()
        return RangeResponse.FromString(self._encoded[asked])

    def _answer(self, request: RangeRequest) -> RangeResponse:
        later = [each for each in self._keys if each.key >= request.key]
        newer = [each for each in later if each.mod_revision >= request.min_mod_revision]
        shown = newer[: request.limit or None]
        return RangeResponse(
            header=ResponseHeader(revision=max(each.mod_revision for each in self._keys)),
            kvs=shown,
            more=len(shown) < len(newer),
            count=len(later),
        )


async def checks(keys: Sequence[Entry]) -> list[Figure]:
    answers: Any = Answers(keys)
    clock = SystemClock()
    view = WatchedStateView(EtcdStateStore(answers, clock), LINKS, clock)
    ways = {"check": 1000, "list": 1000, "before": 1_000_000}
    spent: dict[str, list[float]] = {each: [] for each in ways}
    paused: dict[str, list[float]] = {each: [] for each in ways}
    for _ in range(ROUNDS + 1):
        for name, at_once in ways.items():
            store_module._LISTED_AT_ONCE = at_once  # noqa: SLF001
            view._lists = 1  # noqa: SLF001
            asked = view._check() if name == "check" else view.refresh()  # noqa: SLF001
            begun = time.process_time()
            paused[name].append(await longest_pause(asyncio.ensure_future(asked)))
            spent[name].append(time.process_time() - begun)
    # In the first round the answers are encoded.
    found = {name: each[1:] for name, each in spent.items()}
    pauses = {name: each[1:] for name, each in paused.items()}
    check, whole = f"the half-minute's check of {COUNT} keys", f"a list of {COUNT} keys in parts"
    return [
        against(check, "s", found["check"], found["before"], 1 / 5),
        against(f"{check}: the longest pause", "s", pauses["check"], pauses["before"], 1 / 5),
        against(whole, "s", found["list"], found["before"], None),
        against(f"{whole}: the longest pause", "s", pauses["list"], pauses["before"], None),
    ]


async def measure() -> bool:
    server = Server()
    await server.link(0, COUNT, 1.0)
    for view in (server.links, server.nodes):
        await view.refresh()
    server.read()
    figures = [await changes(server), *await checks(tuple(server.links.entries.values()))]
    for figure in figures:
        figure.print()
    return all(figure.ok is not False for figure in figures)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure()) else 1)
