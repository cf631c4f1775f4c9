"""How many entries a second the audit log commits, against bare puts of the same size in etcd.

    python -m bench.audit_commits        brings up three members of its own

The callers of both wait for each of their entries, and do nothing else. There are as many of them
on both sides, and the rounds are interleaved. With two servers each has half of the callers, and
they compete for the end of the chain: with one caller each the entries can only take turns, so that
has no goal. It runs a second time inside the lab's network.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from bench.figures import Figure, load, paired
from bench.state import Bare
from lab.laboratory import Lab
from lattice.access.grants import GrantSigner
from lattice.adapters.etcd.members import EtcdTls, Members
from lattice.adapters.etcd.store import store_of
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.audit import (
    AuditAct,
    AuditEvent,
    SensitiveAuditRequired,
    encode,
    entry_of,
)
from lattice.domain.audit_chain import LINK_HEX
from lattice.features.audit.service.chain import AuditChain
from lattice.features.audit.service.log import AuditLog

CALLERS = ((1, 1), (1, 16), (1, 128), (2, 2), (2, 16), (2, 128))
"""Servers, and callers of all of them together."""
ROUNDS = 9
ROUND_S = 1.5
GOAL = 0.7
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one side."""

    a_second: float
    median_s: float
    late_s: float
    """99 of 100 waited no longer."""
    refused: int
    """Not confirmed in time."""


def event(number: int) -> AuditEvent:
    return AuditEvent(
        event=f"{number:032x}",
        act=AuditAct.LOG_READ,
        sub=f"8c0f7a52-user-{number % 997}",
        user=f"user{number % 997}",
        role="User",
        allocation=f"{number % 50_000}@1772366400",
        owner=f"user{number % 991}",
        of_tenant="physics",
        address="10.0.0.17",
        detail="shared",
    )


async def one_round(call: Callable[[int], Awaitable[object]], callers: int) -> Round:
    spent: list[float] = []
    refused: list[float] = []
    began = time.perf_counter()
    end = began + ROUND_S

    async def caller() -> None:
        while (now := time.perf_counter()) < end:
            try:
                await call(next(_NUMBERS))
            except (SensitiveAuditRequired, aio.AioRpcError):
                refused.append(now)
                continue
            spent.append(time.perf_counter() - now)

    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - began
    late = statistics.quantiles(spent, n=100)[-1]
    return Round(len(spent) / took, statistics.median(spent), late, len(refused))


def figures_of(servers: int, callers: int, ours: list[Round], bare: list[Round]) -> list[Figure]:
    def both(of: Callable[[Round], float]) -> tuple[list[float], list[float]]:
        return [of(each) for each in ours], [of(each) for each in bare]

    by = "1 server" if servers == 1 else f"{servers} servers"
    name = f"{callers} at once by {by}, against bare puts"
    return [
        paired(
            f"audit: entries a second, {name}",
            "1/s",
            *both(lambda each: each.a_second),
            at_least=GOAL if callers != servers or servers == 1 else None,
        ),
        paired(f"audit: median wait, {name}", "s", *both(lambda each: each.median_s)),
        paired(f"audit: wait of 99 %, {name}", "s", *both(lambda each: each.late_s)),
    ]


async def inside(endpoints: list[str], tls: EtcdTls, rounds: int) -> int:
    clock = SystemClock()
    bare = Bare(endpoints[0], tls)
    entry = entry_of(event(0), 123_456, clock.now())
    value = b"v" * (LINK_HEX + len(b" \n") + len(encode(entry)))
    signer = GrantSigner(SigningKey.generate(), clock)

    def members() -> Members:
        return Members(endpoints, tls, clock, first=lambda _count: 0)

    async def cluster() -> str:
        return "bench"

    async def put(number: int) -> object:
        key = f"/bench/bare/{number:020d}".encode()
        return await bare.kv.Put(pb.PutRequest(key=key, value=value), timeout=5)

    good = True
    for servers, callers in CALLERS:
        root = f"/bench/{servers}-{callers}/"
        async with store_of(members(), clock, root=root) as store:
            logs = [
                AuditLog(AuditChain(store, clock, signer.sign_audit, signer.public_keys, cluster))
                for _ in range(servers)
            ]
            writers = [asyncio.create_task(each.run()) for each in logs]

            async def require(number: int, logs: list[AuditLog] = logs) -> object:
                return await logs[number % len(logs)].require(event(number))

            sides: tuple[list[Round], list[Round]] = ([], [])
            await one_round(require, callers)
            await one_round(put, callers)
            for number in range(rounds):
                turns = [(sides[0], require), (sides[1], put)]
                for found, call in turns[:: 1 if number % 2 else -1]:
                    found.append(await one_round(call, callers))
            for writer in writers:
                writer.cancel()
            committed = sum(each.committed_total for each in logs)
            batches = max(len(each.chain.batches) for each in logs)
        for figure in figures_of(servers, callers, *sides):
            good &= figure.ok is not False
            figure.print(entry_bytes=len(value), batch=round(committed / batches, 1), load=load())
    await bare.channel.close(None)
    return 0 if good else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.audit_commits")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--inside", nargs="+", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--tls", nargs=3, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return asyncio.run(inside(options.inside, EtcdTls(*options.tls), options.rounds))
    lab = Lab("benchaudit", parts=("etcd",))
    try:
        lab.up()
        client = lab.etcd.client
        files = [str(each) for each in (client.authority, client.certificate, client.key)]
        enter = ["nsenter", f"--net={lab.network.control_file}"]
        again = [sys.executable, "-m", "bench.audit_commits", "--rounds", str(options.rounds)]
        command = [*enter, *again, "--inside", *lab.etcd.endpoints, "--tls", *files]
        return subprocess.run(command, check=False).returncode
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
