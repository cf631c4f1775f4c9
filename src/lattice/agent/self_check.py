"""What the agent itself has and lacks on its node, checked every 30 s: its helper, its disk.

Servers show it in `lattice admin agents`, in `lattice diag` of a job on the node, and in doctor. A
size or a clock is reported again only when it has changed much. The reason is that each report is a
write of a server to the agreed state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.helper.counters import HelperCounterLine
from lattice.base.clock import Clock
from lattice.base.driver_reads import DriverReads
from lattice.base.errors import Unavailable
from lattice.domain.counters import LATENCY, CountersUnavailable
from lattice.domain.node import AgentFacts

_log = logging.getLogger(__name__)

EVERY_S = 30.0
_CONNECT_S = 3.0
LEAST_FREE_BYTES = 16 * 1024 * 1024
_LEAST_FREE_INODES = 16
OK = "ok"
_LATENCY_EVERY = 20
"""Checks; the eBPF program is loaded when the helper starts, so its state changes rarely."""
_LATENCY_S = 5.0
_NO_JOB = 2**32 - 1
"""The helper answers for named jobs; nobody has this one."""
_LEAST_STEP_BYTES = 1024 * 1024
_CLOCK_STEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSources:
    """Where the agent's other parts report what they measure."""

    spool_bytes: Callable[[], int | None] = lambda: None
    spool_most_bytes: int | None = None
    ahead_s: Callable[[], float | None] = lambda: None
    """How far the node's clock is ahead of the servers'; None before a measurement."""
    latency: Callable[[], Awaitable[str]] | None = None
    """`ok`, or why the kernel does not count latencies. Raises `Unavailable`."""


class SelfCheck:
    """`current` is what was missing at the last check."""

    def __init__(
        self,
        helper: Path,
        state_dir: Path,
        sources: OwnSources | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._helper = helper
        self._state_dir = state_dir
        self._sources = sources or OwnSources()
        self._sleep = sleep
        self._lacks: tuple[str, ...] = ()
        self._facts = AgentFacts()
        self._checks = 0
        self._latency = ""

    def current(self) -> tuple[str, ...]:
        return self._lacks

    def facts(self) -> AgentFacts:
        return self._facts

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await self._sleep(EVERY_S)

    async def check(self) -> None:
        refusal = await _refusal(self._helper)
        lacks = (*self._of_helper(refusal), *_of_disk(self._state_dir))
        for each in sorted(set(lacks) - set(self._lacks)):
            _log.warning("agent lacks", extra={"what": each})
        if self._lacks and not lacks:
            _log.info("agent lacks nothing any more")
        self._lacks = lacks
        self._facts = await self._measured(refusal)

    async def _measured(self, refusal: str) -> AgentFacts:
        before, sources = self._facts, self._sources
        return AgentFacts(
            helper=refusal or OK,
            latency="" if refusal else await self._of_latency(),
            spool_bytes=_steady_size(before.spool_bytes, sources.spool_bytes()),
            spool_most_bytes=sources.spool_most_bytes,
            free_bytes=_steady_size(before.free_bytes, _free_bytes(self._state_dir)),
            clock_ahead_s=_steady_clock(before.clock_ahead_s, sources.ahead_s()),
        )

    async def _of_latency(self) -> str:
        if self._sources.latency is not None:
            # After the helper was away it may have another program.
            due = not self._facts.latency or self._checks % _LATENCY_EVERY == 0
            self._checks += 1
            if due:
                try:
                    self._latency = await self._sources.latency()
                except Unavailable:
                    self._latency = ""
        return self._latency

    def _of_helper(self, reason: str) -> tuple[str, ...]:
        if not reason:
            return ()
        lack = (
            f"lattice-helper: {self._helper}: {reason}. No terminals in jobs, no output files that "
            "only their owner may read. On the node: systemctl restart lattice-helper"
        )
        return (lack,)


async def _refusal(path: Path) -> str:
    """Why the helper can't be reached; empty if it can. An empty connection costs it nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, str(path))
        except TimeoutError:
            return "no answer"
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _of_disk(folder: Path) -> Iterator[str]:
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        yield f"state folder {folder}: {error.strerror}"
        return
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_flag & os.ST_RDONLY:
        yield f"state folder {folder}: its file system is read-only"
    elif free_bytes < LEAST_FREE_BYTES:
        yield (
            f"state folder {folder}: {free_bytes // 1024} KiB are free. Certificates can't be "
            "renewed, and after a restart output may be sent twice. Make room there"
        )
    elif disk.f_files and disk.f_favail < _LEAST_FREE_INODES:
        yield f"state folder {folder}: no inode is free. Remove files there"


def _free_bytes(folder: Path) -> int | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _steady_size(before: int | None, now: int | None) -> int | None:
    """The earlier measurement, until the size has doubled or halved."""
    if before is None or now is None or abs(now - before) < _LEAST_STEP_BYTES:
        return now if before is None or now is None else before
    return before if before / 2 < now < before * 2 else now


def _steady_clock(before_s: float | None, now_s: float | None) -> float | None:
    """The earlier measurement, until the clock is half a second elsewhere."""
    if before_s is None or now_s is None or abs(now_s - before_s) >= _CLOCK_STEP_S:
        return now_s if now_s is None else round(now_s, 3)
    return before_s


def latency_state(helper: Path, clock: Clock) -> Callable[[], Awaitable[str]]:
    """Asks the helper whether the kernel counts latencies, in a conversation of its own."""

    def read() -> str:
        line = HelperCounterLine(helper, clock)
        try:
            answer = line.ask([LATENCY], [_NO_JOB])
        except CountersUnavailable as error:
            raise Unavailable(error.reason) from None
        finally:
            line.close()
        return answer.failed.get(LATENCY, OK)

    return DriverReads(read, "latency state", _LATENCY_S, "lattice-helper does not answer")
