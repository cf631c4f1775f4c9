"""Files of spans, of any content: bounded records with sound times, or a count of the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from lattice.domain.span import LONGEST_MARK_TEXT, LONGEST_SPAN_NAME, WrittenMark
from lattice.features.timeline.model import MOST_LINE_POINTS, MOST_SPAN_NAMES
from lattice.features.timeline.span_rows import SpanMerger
from lattice.observe.span_files.objects import ObjectSplitter
from lattice.observe.span_files.records import RecordDecoder

_BEGIN, _UNTIL = (datetime(2026, 11, day, tzinfo=UTC) for day in (15, 16))
_MOST_BYTES = 2048
TOKENS = tuple(
    each.encode()
    for each in (
        *("{", "}", "{\n", "\n}", "\n    ", "[", "]", ",", "},", "\n", "null"),
        *('"name": "step"', '"context": {"span_id": "0x2"}', '"parent_id": "0x1"', '"events": ['),
        *('"start_time": "2026-11-15T13:00:00.000000Z"', '"end_time": "2026-11-15T13:00:01Z"'),
        *('"timestamp": "2026-11-15T13:00:00Z"', '"body": "text"', '"severity_number": 13'),
        *('"severity_text": "WARN"', '"event_name": "early_stopping"', '"attributes": {'),
        *('"resource": {"attributes": {', '"slurm.job.id": "42"', '"slurm.task.rank": 0'),
        *('"resourceSpans": [', '"resourceLogs": [', '"scopeSpans": [', '"scopeLogs": ['),
        *('"spans": [', '"logRecords": [', '"startTimeUnixNano": "1794747600000000000"'),
        *('"endTimeUnixNano": 1794747601000000000', '"timeUnixNano": "1"', '"key": "a"'),
        *('"value": {"stringValue": "b"}', "1e999", "-1", "9" * 30, "\\ud800", "\\u0000"),
    )
)


def _console(**more: object) -> dict[str, object]:
    return {
        "name": "train.epoch",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "parent_id": "0x1",
        "start_time": "2026-11-15T13:00:00.000000Z",
        "end_time": "2026-11-15T13:10:00.000000Z",
        "events": [{"name": "drift", "timestamp": "2026-11-15T13:01:00Z", "attributes": {"mb": 2}}],
        "resource": {"attributes": {"slurm.job.id": "42", "slurm.task.rank": 0}},
    } | more


def _collected(**more: object) -> dict[str, object]:
    pairs = [{"key": "slurm.job.id", "value": {"stringValue": "42"}}]
    span = {
        "name": "checkpoint.save",
        "spanId": "02",
        "startTimeUnixNano": "1794747600000000000",
        "endTimeUnixNano": "1794747601000000000",
        "events": [{"name": "slow", "timeUnixNano": "1794747600500000000", "attributes": pairs}],
    }
    group = {"resource": {"attributes": pairs}, "scopeSpans": [{"spans": [span | more]}]}
    return {"resourceSpans": [group]}


_LOG: dict[str, object] = {
    "body": "slow",
    "severity_number": 13,
    "timestamp": "2026-11-15T13:00:00Z",
    "resource": {"attributes": {}},
}


def seeds() -> Iterator[bytes]:
    """Each form as it should be, and with something wrong."""
    log = {"timeUnixNano": "1794747600000000000", "severityNumber": 9, "body": {"stringValue": "a"}}
    objects: tuple[dict[str, object], ...] = (
        _console(),
        _console(end_time="2026-11-15T12:00:00Z"),
        _console(start_time="1000000000-01-01T00:00:00Z", name="\ud800"),
        _collected(),
        _collected(endTimeUnixNano="9" * 30, name="epoch 7"),
        _collected(startTimeUnixNano=-1),
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]},
        _LOG,
        _LOG | {"event_name": "early_stopping", "resource": "text"},
        {"resourceMetrics": []},
    )
    for each in objects:
        yield json.dumps(each).encode() + b"\n"
        yield json.dumps(each, indent=4).encode() + b"\n"
    yield json.dumps([_console(), _console()], indent=2).encode()
    yield b'{\n    "name": "cut",\nloss 0.5\n{\n}\n{"a":1}{"b":2}\n'
    yield b'{"resource":' + b"[" * 2000


def try_one(data: bytes) -> None:
    """The bytes are a file."""
    splitter, decoder = ObjectSplitter(_MOST_BYTES), RecordDecoder()
    merger = SpanMerger(_BEGIN, _UNTIL)
    count = 0
    for found in splitter.objects(data.split(b"\n")):
        assert b"\n" not in found
        for job, record in decoder.records(found):
            assert len(record.name) <= LONGEST_SPAN_NAME
            for mark in (record,) if isinstance(record, WrittenMark) else record.marks:
                assert len(mark.text) <= LONGEST_MARK_TEXT
                assert math.isfinite(mark.time_s)
            merger.add(record, is_named=job is not None, rank=job.rank if job else -1)
            count += 1
    splitter.end()
    assert splitter.broken + decoder.broken + splitter.other + decoder.other >= 0
    spans, marks = merger.spans(), merger.marks()
    assert count == 0 or spans or marks
    assert max(len(spans), len(marks)) <= MOST_SPAN_NAMES
    for row in spans:
        assert row.count > 0
        assert len(row.stretches) <= MOST_LINE_POINTS
        assert all(each.started <= each.ended for each in row.stretches)
    # A command writes it as JSON.
    msgspec.json.encode((spans, marks))
