"""Samples as agents sent them, and the two forms in which servers get them."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import StoredBatch, Unpacked, batch_of
from lattice.features.telemetry.node.buffer import SampleRow
from lattice.features.telemetry.node.row_messages import DeclaredNames, OutgoingRows
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.wire.v1 import telemetry_pb2 as pb

TAPES = sorted((Path(__file__).parent / "fixtures" / "wire").glob("agent-*.jsonl"))


def recorded(file: Path) -> tuple[str, list[pb.SampleBatch]]:
    """The node of a recording, and what it sent."""
    about, *lines = (json.loads(line) for line in file.read_text().splitlines())
    batches = [
        pb.SampleBatch.FromString(bytes.fromhex(each["message"]))
        for each in lines
        if (each["rpc"], each["from"]) == ("MetricIntake/StoreSamples", "agent")
    ]
    return about["node"], batches


def rows_of(batch: Unpacked) -> list[SampleRow]:
    """The rows that an agent had before it made a batch of them."""
    found = []
    for job in batch.jobs:
        for place, time_ms in enumerate(job.times_ms):
            there = [each for each in job.series if not math.isnan(each.values[place])]
            found.append(
                SampleRow(
                    JobIdentity("", job.job_id, 1, job.started),
                    time_ms,
                    tuple((each.metric, each.labels, each.source) for each in there),
                    array("d", (each.values[place] for each in there)),
                    array("H", (each.late_ms[place] if each.late_ms else 0 for each in there)),
                )
            )
    return found


class AsBatches:
    """A node of the release before: the names stand in every batch."""

    def __init__(self, intake: SampleIntake, node: str) -> None:
        self._intake = intake
        self._node = node

    async def send(self, batch: pb.SampleBatch) -> StoredBatch:
        wired = pb.SampleBatch.FromString(batch.SerializeToString())
        return await self._intake.store(self._node, batch_of(wired))


class AsRows:
    """A node of today on one stream: names once, then numbers."""

    def __init__(self, intake: SampleIntake, node: str) -> None:
        self._intake = intake
        self._series = intake.series_of(node)
        self._names = DeclaredNames()

    async def send(self, batch: pb.SampleBatch) -> StoredBatch:
        added = StoredBatch(0)
        for message in self.messages(rows_of(batch_of(batch))):
            wired = pb.SampleRows.FromString(message.SerializeToString())
            stored = await self._intake.store_rows(self._series, wired)
            added = StoredBatch(added.stored + stored.stored, added.refused + stored.refused)
        return added

    def messages(self, rows: Sequence[SampleRow]) -> list[pb.SampleRows]:
        return list(self._names.messages(OutgoingRows(rows, lambda each: each.started)))


Form: TypeAlias = Callable[[SampleIntake, str], AsBatches | AsRows]
