"""What the thin client of etcd costs over a bare gRPC stub with the same messages.

    python -m bench.state                brings up three members of its own

One JSON line a figure. `value` is the median, `low` and `high` hold the middle half of the rounds,
`bare` is what it is held against and `ratio` is value to bare. Rounds are interleaved, so that a
busy moment of the machine falls on both.

It runs a second time inside the lab's network, where etcd listens: gRPC opens sockets from threads
of its own, which can't be moved there one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from bench.figures import Figure, against
from lab.laboratory import Lab
from lattice.adapters.etcd.members import EtcdTls, Members
from lattice.adapters.etcd.store import EtcdStateStore, store_of
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.adapters.etcd.wire import rpc_pb2_grpc
from lattice.base.clock import SystemClock
from lattice.domain.state import Changed, Expect, Put

ROUNDS = 15
CALLS = 40
PUT_GOAL = 1.15
SEEN_GOAL = 1.5
_VALUE = b"v" * 300


class Bare:
    """One channel, one stub, nothing else."""

    def __init__(self, endpoint: str, tls: EtcdTls) -> None:
        read = {name: getattr(tls, name).read_bytes() for name in ("ca", "cert", "key")}
        credentials = grpc.ssl_channel_credentials(read["ca"], read["key"], read["cert"])
        options = [("grpc.enable_http_proxy", 0)]
        target = endpoint.removeprefix("https://")
        self.channel = aio.secure_channel(target, credentials, options=options)
        self.kv = rpc_pb2_grpc.KVStub(self.channel)
        self.watch: Any = rpc_pb2_grpc.WatchStub(self.channel).Watch

    async def put(self) -> None:
        await self.kv.Put(pb.PutRequest(key=b"/bench/bare", value=_VALUE), timeout=5)

    async def get(self) -> None:
        await self.kv.Range(pb.RangeRequest(key=b"/bench/bare"), timeout=5)

    async def commit(self) -> None:
        compare = pb.Compare(target=pb.Compare.MOD, key=b"/bench/none", mod_revision=0)
        put = pb.RequestOp(request_put=pb.PutRequest(key=b"/bench/bare", value=_VALUE))
        await self.kv.Txn(pb.TxnRequest(compare=[compare], success=[put]), timeout=5)


class Ours:
    """The same by the port."""

    def __init__(self, store: EtcdStateStore) -> None:
        self.store = store

    async def put(self) -> None:
        await self.store.put("ours", _VALUE)

    async def get(self) -> None:
        await self.store.get("ours")

    async def commit(self) -> None:
        await self.store.commit([Expect("none", 0)], [Put("ours", _VALUE)])


async def timed(call: Callable[[], Awaitable[None]]) -> float:
    """The median of some calls, one after the other."""
    spent = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


async def calls(bare: Bare, ours: Ours) -> list[Figure]:
    figures = []
    for name, goal in (("put", PUT_GOAL), ("commit", None), ("get", None)):
        rounds: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            rounds[0].append(await timed(getattr(ours, name)))
            rounds[1].append(await timed(getattr(bare, name)))
        figures.append(against(f"etcd: {name}, against a bare stub", "s", *rounds, goal))
    return figures


async def seen(bare: Bare, ours: Ours) -> Figure:
    """From before the put until the watcher has the change in its hands."""
    call = bare.watch()
    create = pb.WatchCreateRequest(key=b"/bench/bare")
    await call.write(pb.WatchRequest(create_request=create))
    await call.read()

    async def bare_seen() -> None:
        await bare.put()
        await call.read()

    rounds: tuple[list[float], list[float]] = ([], [])
    listing = await ours.store.list("ours")
    async with ours.store.watch("ours", listing.revision) as batches:

        async def ours_seen() -> None:
            waiting = asyncio.ensure_future(_next(batches))
            await ours.put()
            await waiting

        await ours_seen()
        for _ in range(ROUNDS):
            rounds[0].append(await timed(ours_seen))
            rounds[1].append(await timed(bare_seen))
    call.cancel()
    return against("etcd: a change seen, against a bare stream", "s", *rounds, SEEN_GOAL)


async def _next(batches: Any) -> tuple[Changed, ...]:
    batch: tuple[Changed, ...] = await anext(batches)
    return batch


async def inside(endpoints: list[str], tls: EtcdTls) -> int:
    clock = SystemClock()
    bare = Bare(endpoints[0], tls)
    members = Members(endpoints, tls, clock, first=lambda _count: 0)
    async with store_of(members, clock, root="/bench/") as store:
        ours = Ours(store)
        await timed(bare.put)
        await timed(ours.put)
        figures = [*await calls(bare, ours), await seen(bare, ours)]
    await bare.channel.close(None)
    for figure in figures:
        figure.print()
    return 1 if any(figure.ok is False for figure in figures) else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.state")
    parser.add_argument("--inside", nargs="+", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--tls", nargs=3, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return asyncio.run(inside(options.inside, EtcdTls(*options.tls)))
    lab = Lab("benchstate", parts=("etcd",))
    try:
        lab.up()
        client = lab.etcd.client
        files = [str(each) for each in (client.authority, client.certificate, client.key)]
        enter = ["nsenter", f"--net={lab.network.control_file}"]
        again = [sys.executable, "-m", "bench.state", "--inside", *lab.etcd.endpoints]
        return subprocess.run([*enter, *again, "--tls", *files], check=False).returncode
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
