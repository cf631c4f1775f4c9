"""Requests and records of logs as messages of gRPC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lattice.base.errors import UsageError
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogPage, NoteKind
from lattice.features.logs.operations import ReadLogsRequest, StreamLogsRequest
from lattice.features.logs.wiring import page_message, record_message
from lattice.wire.convert import value_of
from lattice.wire.v1 import logs_pb2 as pb

NOW = datetime(2026, 11, 15, 14, 2, tzinfo=UTC)
BLOCK = LogBlock(
    node="n1", stream=LogKind.STDOUT, source="0.3", rank=0, seq=7, count=1, offset=70, time=NOW,
    text="a\n",
)  # fmt: skip
GAP = LogGap(
    node="n1", stream=LogKind.STDERR, source="batch", seq=8, offset=72, time=NOW,
    cause=next(iter(GapCause)),
)  # fmt: skip
NOTE = LogNote(kind=NoteKind.END, time=NOW, words="completed")


@pytest.mark.parametrize("kind", [ReadLogsRequest, StreamLogsRequest])
def test_a_request_with_nothing_but_a_name(kind: type[ReadLogsRequest | StreamLogsRequest]) -> None:
    assert value_of(pb.ReadLogsRequest(id="7"), kind) == kind(id="7")


def test_a_request_with_everything() -> None:
    asked = pb.ReadLogsRequest(
        id="7", attempt=2, stream="stderr", nodes=["n1", "n2"], ranks=[0, 3], tail=5, grep="a",
        exclude="b", limit=9, cursor="c", follow=True, offset=0,
    )  # fmt: skip
    asked.since.FromDatetime(NOW)
    assert value_of(asked, ReadLogsRequest) == ReadLogsRequest(
        id="7", attempt=2, stream=(LogKind.STDERR,), nodes=("n1", "n2"), ranks=(0, 3), since=NOW,
        tail=5, grep="a", exclude="b", limit=9, cursor="c", follow=True, offset=0,
    )  # fmt: skip


def test_a_stream_that_is_none() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        value_of(pb.ReadLogsRequest(id="7", stream="nonsense"), ReadLogsRequest)


def test_a_record_of_each_kind() -> None:
    block, gap, note = (record_message(each, "c") for each in (BLOCK, GAP, NOTE))
    assert (block.cursor, block.block.text, block.block.stream) == ("c", "a\n", "stdout")
    assert block.block.HasField("rank"), "the first task is a task"
    assert gap.gap.time.ToDatetime(tzinfo=UTC) == NOW
    assert not gap.gap.HasField("lost_bytes"), "not even that is known"
    assert (note.note.kind, note.note.words) == ("end", "completed")


def test_a_page() -> None:
    page = LogPage(
        allocation="7", attempt=1, attempts=2, records=(BLOCK, GAP, NOTE), cursor="c", ranked=True
    )
    message = page_message(page)
    assert [each.WhichOneof("record") for each in message.records] == ["block", "gap", "note"]
    assert (message.allocation, message.attempts, message.cursor) == ("7", 2, "c")
    assert message.ranked
    assert not message.finished
