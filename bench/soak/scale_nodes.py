"""Agents of `just soak scale`, a thousand and more in a process: the wire is real, the node is not.

Each has a certificate of its own, a link with its pings and its spare connection. It sends samples,
answers log feeds and sends watchers what it measures. A line is written when its turn comes, also
while nobody follows. What a server acknowledged is noted, so that the store can be compared.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import say
from bench.ingest_nodes import catalogue
from bench.simulated_logs import LogFeed, LogFile
from bench.simulated_nodes import snapshot
from bench.soak.scale_plan import Plan, PlannedJob
from lattice.agent.linked_telemetry import LinkedTelemetry
from lattice.base.errors import LatticeError
from lattice.base.process import MANY, settle
from lattice.domain.alert import Progress
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Provenance
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import CarrierLost, Session, StreamKind
from lattice.features.link.node import keeper
from lattice.features.telemetry.convert.snapshots import Want, node_snapshot_message, opening_of
from lattice.features.telemetry.node.buffer import SampleRow
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.wire.conduit import ConduitClosed
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.integration.link.site import Agent, Site

STARTS_A_SECOND = 40
"""Agents of one process: a site's agents don't start in one moment, and the machine is shared."""
_TRY_AGAIN_S = 10.0
_REPORT_S = 3.0
_REASON_LETTERS, _MOST_REASONS = 120, 8
NUMBERED = "cpu_cores"
"""A series of each node: its values are the numbers of the batches."""


@dataclass
class Rates:
    """What the nodes do. They begin with nothing, and are asked for more in phases."""

    sample_s: float = 0.0
    line_s: float = 0.0
    large_line_s: float = 0.0


@dataclass
class Sent:
    """What became of the batches of all nodes of a process."""

    samples: int = 0
    refused: int = 0
    reason: str = ""
    tries_failed: int = 0
    acknowledged: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of acknowledged batches, by node."""


class ScaleNode:
    """One node: its agent, its job, and what the job writes."""

    def __init__(
        self, site: Site, name: str, job: PlannedJob, plan: Plan, addresses: Sequence[str],
        seed: int, measured: Measured,
    ) -> None:  # fmt: skip
        self.name = name
        self.job = job
        self.lines = 0
        rank = job.nodes.index(name)
        self.files = [LogFile(f"0.{rank}")]
        self.feeds: list[LogFeed] = []
        self._began = plan.began
        self._measured = measured
        self._layout = tuple((*each, Provenance.HOST_LOCAL_PROBE) for each in catalogue(name))
        self._identity = JobIdentity("", job.id, 0, plan.began)
        self._batches = 0
        serves = {StreamKind.LOGS: self._logs, StreamKind.METRICS: self._metrics}
        self.agent = Agent(site, name, addresses, seed=seed, serves=serves)
        self._telemetry = LinkedTelemetry(lambda: self.agent.keeper.line)

    @property
    def address(self) -> str:
        """Of the replica that it is linked to; empty without a link."""
        line = self.agent.keeper.line
        return line.address if line else ""

    async def _logs(self, session: Session, opening: bytes) -> None:
        feed = LogFeed(session, opening, self.files, self.job.id)
        await feed.report()
        self.feeds.append(feed)
        try:
            await feed.answer()
        finally:
            self.feeds.remove(feed)

    async def _metrics(self, session: Session, opening: bytes) -> None:
        want = opening_of(opening).want
        if want is Want.EVENTS:
            return
        await session.send(self._measured.now(self.job.id))
        while want is Want.FOLLOW:
            await self._measured.next()
            await session.send(self._measured.now(self.job.id))

    async def write(self) -> None:
        """A numbered line, to the file and to every open feed."""
        self.lines += 1
        text = f"{self.name} line {self.lines} loss {1 / self.lines:.6f}\n".encode()
        texts = self.files[0].write(text, int(time.time() * 1000))
        for feed in tuple(self.feeds):
            try:
                await feed.push(texts)
            except (ConduitClosed, CarrierLost):
                continue

    async def send(self, sent: Sent) -> None:
        """One batch, tried at one replica after the other until one has stored it."""
        self._batches += 1
        number = self._batches
        time_ms = int(time.time() * 1000)
        size = len(self._layout)
        values, late_ms = array("d", [float(number)] * size), array("H", [0] * size)
        row = SampleRow(self._identity, time_ms, self._layout, values, late_ms)
        while True:
            try:
                stored = await self._telemetry.store(OutgoingRows([row], lambda _: self._began))
            except LatticeError:
                sent.tries_failed += 1
                await asyncio.sleep(_TRY_AGAIN_S)
                continue
            sent.samples += stored.stored
            sent.refused += stored.refused
            sent.reason = stored.reason or sent.reason
            if stored.stored:
                sent.acknowledged.setdefault(self.name, []).append(number)
            return


class Measured:
    """What the nodes of a job measured last: encoded once for all of them."""

    def __init__(self, began: float, every_s: int) -> None:
        self._began = began
        self._every_s = every_s
        self._time = time.time() // every_s * every_s
        self._of: dict[int, bytes] = {}
        self._changed = asyncio.Condition()

    def now(self, job: int) -> bytes:
        if job not in self._of:
            older = self._snapshot(job, self._time - self._every_s)
            newest = self._snapshot(job, self._time)
            progress = Progress(output=self._time, processor=self._time)
            message = node_snapshot_message(self._began, older, newest, (), progress)
            self._of[job] = pb.LookTell(sight=message).SerializeToString()
        return self._of[job]

    async def next(self) -> None:
        async with self._changed:
            await self._changed.wait()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._time + self._every_s - time.time())
            self._time += self._every_s
            self._of.clear()
            async with self._changed:
                self._changed.notify_all()

    def _snapshot(self, job: int, at: float) -> JobSnapshot:
        return snapshot(job, self._began, at, self._every_s)


class LostLinks(logging.Handler):
    """Why links of this process were lost or not opened, by reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reasons: Counter[str] = Counter()
        logger = logging.getLogger(keeper.__name__)
        logger.addHandler(self)
        logger.propagate = False
        logging.disable(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        text = re.sub(r"[0-9.]+:[0-9]+|[0-9]+ s", "…", record.getMessage())
        self.reasons[text[:_REASON_LETTERS]] += 1


class Crowd:
    """The nodes of one process."""

    def __init__(
        self, folder: Path, plan: Plan, share: range, measure_s: int, addresses: Sequence[str]
    ) -> None:
        site = Site(folder)
        self.measured = Measured(plan.began, measure_s)
        self._rates = Rates()
        self._changed = asyncio.Event()
        self.sent = Sent()
        self._lost = LostLinks()
        self.nodes = []
        for place in share:
            name = plan.names[place]
            job = plan.of_node[name]
            self.nodes.append(ScaleNode(site, name, job, plan, addresses, place, self.measured))
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """One after the other."""
        self._begin(self.measured.run())
        for node in self.nodes:
            node.agent.start()
            self._begin(self._play(node))
            await asyncio.sleep(1 / STARTS_A_SECOND)

    def set_rates(self, rates: Rates) -> None:
        """From now on, also for nodes that wait for their first."""
        self._rates = rates
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _begin(self, act: Any) -> None:
        task = asyncio.create_task(act)
        self._tasks.add(task)

    async def _play(self, node: ScaleNode) -> None:
        dice = random.Random(node.name)
        writes = asyncio.create_task(self._write(node, dice))
        try:
            await self._send(node, dice)
        finally:
            writes.cancel()

    async def _write(self, node: ScaleNode, dice: random.Random) -> None:
        while True:
            line_s = self._rates.large_line_s if node.job.id == 1 else self._rates.line_s
            if not line_s:
                await self._changed.wait()
                continue
            await asyncio.sleep(dice.uniform(0.5, 1.5) * line_s)
            if self._rates.line_s:
                await node.write()

    async def _send(self, node: ScaleNode, dice: random.Random) -> None:
        first = True
        while True:
            sample_s = self._rates.sample_s
            if not sample_s:
                await self._changed.wait()
                continue
            if first:
                first = False
                await asyncio.sleep(dice.uniform(0, sample_s))
            begun = time.monotonic()
            await node.send(self.sent)
            await asyncio.sleep(max(0.0, begun + sample_s - time.monotonic()))

    def report(self) -> dict[str, Any]:
        return {
            "linked": sum(bool(each.address) for each in self.nodes),
            "samples": self.sent.samples,
            "refused": self.sent.refused,
            "reason": self.sent.reason,
            "tries_failed": self.sent.tries_failed,
            "feeds": sum(len(each.feeds) for each in self.nodes),
            "lines": sum(each.lines for each in self.nodes),
            "links_lost": dict(self._lost.reasons.most_common(_MOST_REASONS)),
        }

    def write_end(self, file: Path) -> None:
        """How many lines each node wrote, and which of its batches were acknowledged."""
        lines = {each.name: each.lines for each in self.nodes}
        file.write_text(json.dumps({"lines": lines, "batches": self.sent.acknowledged}))


async def nodes(
    folder: Path, plan: Plan, share: range, measure_s: int, addresses: Sequence[str]
) -> None:
    """The input has rates as JSON, and at the end the name of a file for what was done."""
    crowd = Crowd(folder, plan, share, measure_s, addresses)
    settle(MANY)
    say({"made": len(crowd.nodes)})
    loop = asyncio.get_running_loop()
    if not await loop.run_in_executor(None, sys.stdin.readline):
        return
    starting = asyncio.create_task(crowd.start())

    async def report() -> None:
        while True:
            say(crowd.report())
            await asyncio.sleep(_REPORT_S)

    reporting = asyncio.create_task(report())
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        asked = json.loads(line)
        if "end" in asked:
            crowd.write_end(Path(asked["end"]))
        else:
            crowd.set_rates(Rates(**asked))
    reporting.cancel()
    starting.cancel()
