"""The events of a job's runs on a node, as a message."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.run_events import (
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_ATTRIBUTES,
    NodeEvents,
    RunEvent,
    RunEventKind,
)
from lattice.features.telemetry.convert.batches import add_labels, is_moment, labels_of
from lattice.features.telemetry.convert.snapshots import BadSnapshot
from lattice.wire.v1 import telemetry_pb2 as pb

_MOST_RUNS = 64
_MOST_EVENTS = 4096
_LONGEST_SUBJECT = 128


def events_message(runs: Iterable[NodeEvents]) -> pb.LookTell:
    """Build an answer from as many of the runs as fit, in their order."""
    message = pb.LookTell(events=pb.RunEventList())
    for each in runs:
        run = message.events.runs.add(began=each.began, since=each.since, dropped=each.dropped)
        for event in each.events:
            _add(run, event)
        if message.ByteSize() > LARGEST_MESSAGE_BYTES or len(message.events.runs) > _MOST_RUNS:
            del message.events.runs[-1]
            break
    return message


def events_of(payload: bytes, node: str) -> tuple[NodeEvents, ...]:
    """Parse an answer; empty if the node does not have the job. Raises `BadSnapshot`."""
    try:
        message = pb.LookTell.FromString(payload)
    except DecodeError:
        raise BadSnapshot("not a tell") from None
    runs = message.events.runs
    if len(runs) > _MOST_RUNS or sum(len(each.events) for each in runs) > _MOST_EVENTS:
        raise BadSnapshot("it tells of more events than there can be")
    return tuple(_run_of(each, node) for each in runs)


def _run_of(message: pb.NodeRunEvents, node: str) -> NodeEvents:
    if not is_moment(message.began) or not is_moment(message.since):
        raise BadSnapshot("events of no moment")
    return NodeEvents(
        node=node,
        began=message.began,
        since=message.since,
        dropped=message.dropped,
        events=tuple(map(_event_of, message.events)),
    )


def _event_of(message: pb.RunEvent) -> RunEvent:
    ended = message.ended if message.HasField("ended") else None
    if not is_moment(message.time) or (ended is not None and not is_moment(ended)):
        raise BadSnapshot("an event of no moment")
    try:
        kind = RunEventKind(message.kind)
    except ValueError:
        raise BadSnapshot("an event of no kind") from None
    return RunEvent(
        kind=kind,
        time=message.time,
        ended=ended,
        lasts=message.lasts and ended is None,
        name=message.name[:LONGEST_NAME],
        subject=message.subject[:_LONGEST_SUBJECT],
        text=message.text[:LONGEST_TEXT],
        attributes=tuple(
            (name[:LONGEST_NAME], value[:LONGEST_TEXT])
            for name, value in labels_of(message.attributes)[:MOST_ATTRIBUTES]
        ),
    )


def _add(run: pb.NodeRunEvents, event: RunEvent) -> None:
    added = run.events.add(
        kind=event.kind.value,
        time=event.time,
        ended=event.ended,
        lasts=event.lasts,
        name=event.name,
        subject=event.subject,
        text=event.text,
    )
    add_labels(added.attributes, event.attributes)
