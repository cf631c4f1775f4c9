"""Between the model and protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from lattice.base.errors import UsageError
from lattice.domain.measured import Shown
from lattice.features.watch.model import (
    Figure,
    WatchAlert,
    WatchEnd,
    WatchMeasured,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchProgress,
    WatchQuery,
    WatchRecord,
    WatchState,
)
from lattice.wire.v1 import watch_pb2 as pb


def query_of(request: pb.StreamMetricsRequest) -> WatchQuery:
    """Raises `UsageError`."""
    return WatchQuery(
        metrics=tuple(dict.fromkeys(map(_shown, request.metrics))),
        alerts_only=request.alerts_only,
        cursor=request.cursor,
    )


def _shown(name: str) -> Shown:
    try:
        return Shown(name)
    except ValueError:
        raise UsageError(
            "There is no such metric.", hint=f"There are {', '.join(each.value for each in Shown)}."
        ) from None


def record_message(record: WatchRecord, cursor: str = "") -> pb.WatchRecord:  # noqa: PLR0911
    """One for each kind of record."""
    match record:
        case WatchMeasured():
            return pb.WatchRecord(measured=_measured(record), cursor=cursor)
        case WatchAlert():
            return pb.WatchRecord(alert=_alert(record), cursor=cursor)
        case WatchNode():
            return pb.WatchRecord(node=_node(record), cursor=cursor)
        case WatchMode():
            return pb.WatchRecord(mode=_mode(record), cursor=cursor)
        case WatchProgress():
            return pb.WatchRecord(progress=_progress(record), cursor=cursor)
        case WatchState():
            return pb.WatchRecord(state=_state(record), cursor=cursor)
        case WatchEnd():
            return pb.WatchRecord(ended=_end(record), cursor=cursor)
        case WatchNote():
            return pb.WatchRecord(note=_note(record), cursor=cursor)


def _measured(record: WatchMeasured) -> pb.WatchMeasured:
    return pb.WatchMeasured(
        time=_stamp(record.time),
        resolution_s=record.resolution_s,
        nodes=[
            pb.WatchNodeFigures(
                node=each.node, time=_stamp(each.time), figures=_figures(each.figures)
            )
            for each in record.nodes
        ],
        summary=_figures(record.summary),
        measured=record.measured,
        node_count=record.node_count,
    )


def _figures(figures: Iterable[Figure]) -> list[pb.WatchFigure]:
    return [
        pb.WatchFigure(
            metric=each.metric.value,
            value=each.value,
            unit=each.unit,
            source=each.source.value,
            reason=each.reason,
            last_error=each.last_error,
            scope=each.scope,
        )
        for each in figures
    ]


def _alert(record: WatchAlert) -> pb.WatchAlert:
    return pb.WatchAlert(
        node=record.node,
        rule=record.rule,
        subject=record.subject,
        phase=record.phase.value,
        severity=record.severity.value,
        value=record.value,
        bound=record.bound,
        unit=record.unit,
        since=_stamp(record.since),
        time=_stamp(record.time),
        lasted_s=record.lasted_s,
        words=record.words,
        remedy=record.remedy,
        follows=record.follows,
    )


def _node(record: WatchNode) -> pb.WatchNode:
    return pb.WatchNode(
        node=record.node,
        word=record.word.value,
        time=_stamp(record.time),
        since=_stamp(record.since),
        seconds=record.seconds,
        reason=record.reason,
        follows=record.follows,
    )


def _mode(record: WatchMode) -> pb.WatchMode:
    return pb.WatchMode(
        mode=record.mode.value,
        interval_s=record.interval_s,
        until=_stamp(record.until),
        set_by=record.set_by,
        time=_stamp(record.time),
    )


def _progress(record: WatchProgress) -> pb.WatchProgress:
    return pb.WatchProgress(
        time=_stamp(record.time),
        moving=record.moving,
        output=_stamp(record.output),
        processor=_stamp(record.processor),
        storage=_stamp(record.storage),
        network=_stamp(record.network),
        last=_stamp(record.last),
    )


def _state(record: WatchState) -> pb.WatchState:
    return pb.WatchState(
        allocation=record.allocation,
        state=record.state.value,
        attempt=record.attempt,
        nodes=record.nodes,
        node_count=record.node_count,
        time=_stamp(record.time),
        words=record.words,
    )


def _end(record: WatchEnd) -> pb.WatchEnd:
    return pb.WatchEnd(
        allocation=record.allocation,
        state=record.state.value,
        attempt=record.attempt,
        exit_code=str(record.exit_code) if record.exit_code else "",
        ended=_stamp(record.ended),
        time=_stamp(record.time),
    )


def _note(record: WatchNote) -> pb.WatchNote:
    return pb.WatchNote(
        kind=record.kind.value,
        time=_stamp(record.time),
        words=record.words,
        seconds=record.seconds,
    )


def _stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
