"""Between the model and protobuf."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from lattice.base.errors import UsageError
from lattice.domain.logs import LogKind
from lattice.features.logs.model import (
    LogBlock,
    LogGap,
    LogPage,
    LogQuery,
    LogRecord,
    LogStreams,
)
from lattice.wire.v1 import logs_pb2 as pb


def kind_of(text: str) -> LogKind:
    """Raises `UsageError`."""
    try:
        return LogKind(text)
    except ValueError:
        raise UsageError("A stream is stdout or stderr.") from None


def query_of(request: pb.ReadLogsRequest) -> LogQuery:
    """Raises `UsageError`."""
    return LogQuery(
        attempt=request.attempt,
        streams=(kind_of(request.stream),) if request.stream else (),
        nodes=tuple(request.nodes),
        ranks=tuple(request.ranks),
        since=_moment(request, "since"),
        until=_moment(request, "until"),
        tail=request.tail or None,
        grep=request.grep,
        exclude=request.exclude,
        offset=request.offset if request.HasField("offset") else None,
        limit=request.limit,
        cursor=request.cursor,
        follow=request.follow,
    )


def record_message(record: LogRecord, cursor: str = "") -> pb.LogRecord:
    if isinstance(record, LogBlock):
        block = pb.LogBlock(
            node=record.node,
            stream=record.stream.value,
            source=record.source,
            rank=record.rank,
            seq=record.seq,
            count=record.count,
            offset=record.offset,
            time=_stamp(record.time),
            late=record.late,
            text=record.text,
            cut=record.cut,
            unfinished=record.unfinished,
        )
        return pb.LogRecord(block=block, cursor=cursor)
    if isinstance(record, LogGap):
        gap = pb.LogGap(
            node=record.node,
            stream=record.stream.value,
            source=record.source,
            seq=record.seq,
            offset=record.offset,
            time=_stamp(record.time),
            cause=record.cause.value,
            lost_bytes=record.lost_bytes,
        )
        return pb.LogRecord(gap=gap, cursor=cursor)
    note = pb.LogNote(
        kind=record.kind.value,
        time=_stamp(record.time),
        node=record.node,
        words=record.words,
        seconds=record.seconds,
        lines=record.lines,
    )
    return pb.LogRecord(note=note, cursor=cursor)


def page_message(page: LogPage) -> pb.LogPage:
    return pb.LogPage(
        allocation=page.allocation,
        attempt=page.attempt,
        attempts=page.attempts,
        records=[record_message(each) for each in page.records],
        cursor=page.cursor,
        ranked=page.ranked,
        finished=page.finished,
    )


def streams_message(streams: LogStreams) -> pb.LogStreams:
    return pb.LogStreams(
        allocation=streams.allocation,
        attempt=streams.attempt,
        attempts=streams.attempts,
        finished=streams.finished,
        streams=[
            pb.LogStreamFacts(
                node=each.node,
                stream=each.stream.value,
                source=each.source,
                rank=each.rank,
                bytes=each.bytes,
                lines=each.lines,
                first=_stamp(each.first),
                last=_stamp(each.last),
                path=each.path,
            )
            for each in streams.streams
        ],
    )


def _stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _moment(message: Any, name: str) -> datetime | None:
    if not message.HasField(name):
        return None
    found: datetime = getattr(message, name).ToDatetime(tzinfo=UTC)
    return found
