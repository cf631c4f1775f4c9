"""Decodes objects of OpenTelemetry: what `to_json` of the Python SDK writes, and OTLP/JSON. Pure.

Every length is bounded here. Text stays as it is, and is made inert where it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from lattice.domain.span import (
    LONGEST_MARK_TEXT,
    LONGEST_SPAN_NAME,
    NamedJob,
    WrittenMark,
    WrittenSpan,
)

_NOTHING = msgspec.Raw(b"")
_MOST_MARKS = 1000
"""Events of one span."""
_MOST_SHOWN = 3
"""Attributes of an event in its text."""
_MOST_RESOURCES = 1000
_LONGEST_TIME = 40
_MOST_DIGITS = 9
_NEWEST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999."""
_SEVERITIES = ("trace", "debug", "info", "warn", "error", "fatal")
_EXCEPTION = ("exception.type", "exception.message")


class _Context(msgspec.Struct):
    span_id: str = ""


class _Event(msgspec.Struct):
    name: str = ""
    timestamp: str | None = None
    attributes: msgspec.Raw = _NOTHING


class _OtlpEvent(msgspec.Struct, rename="camel"):
    name: str = ""
    time_unix_nano: int | str = 0
    attributes: msgspec.Raw = _NOTHING


class _OtlpSpan(msgspec.Struct, rename="camel"):
    name: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    events: list[_OtlpEvent] = msgspec.field(default_factory=list)


class _OtlpLog(msgspec.Struct, rename="camel"):
    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    severity_number: int | str = 0
    severity_text: str = ""
    event_name: str = ""
    body: msgspec.Raw = _NOTHING
    attributes: msgspec.Raw = _NOTHING


class _ScopeSpans(msgspec.Struct):
    spans: list[_OtlpSpan] = msgspec.field(default_factory=list)


class _ScopeLogs(msgspec.Struct, rename="camel"):
    log_records: list[_OtlpLog] = msgspec.field(default_factory=list)


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: msgspec.Raw = _NOTHING
    scope_spans: list[_ScopeSpans] = msgspec.field(default_factory=list)


class _ResourceLogs(msgspec.Struct, rename="camel"):
    resource: msgspec.Raw = _NOTHING
    scope_logs: list[_ScopeLogs] = msgspec.field(default_factory=list)


class _Object(msgspec.Struct):
    """All forms in one, so that an object is decoded once."""

    name: str | None = None
    context: _Context | None = None
    parent_id: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    events: list[_Event] | None = None
    resource: msgspec.Raw = _NOTHING
    body: msgspec.Raw = _NOTHING
    severity_number: int | str | None = None
    severity_text: str | None = None
    timestamp: str | None = None
    observed_timestamp: str | None = None
    event_name: str | None = None
    attributes: msgspec.Raw = _NOTHING
    spans: list[_ResourceSpans] | None = msgspec.field(name="resourceSpans", default=None)
    logs: list[_ResourceLogs] | None = msgspec.field(name="resourceLogs", default=None)


class _Value(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None


class _KeyValue(msgspec.Struct):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Resource(msgspec.Struct):
    attributes: msgspec.Raw = _NOTHING


_objects = msgspec.json.Decoder(_Object)
_resources = msgspec.json.Decoder(_Resource)
_pairs = msgspec.json.Decoder(list[_KeyValue])
_mappings = msgspec.json.Decoder(dict[str, Any])
_bodies = msgspec.json.Decoder(_Value)
_anything = msgspec.json.Decoder()
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""A `ValueError` is a text that is no Unicode, or a number with thousands of digits."""

WrittenRecord = tuple[NamedJob | None, WrittenSpan | WrittenMark]


class RecordDecoder:
    """Decodes object by object, and counts what is none."""

    def __init__(self) -> None:
        self.broken = 0
        """Objects that are no JSON, and spans whose times can't be used."""
        self.other = 0
        """Objects that are something else, such as metrics."""
        self._jobs: dict[bytes, NamedJob | None] = {}

    def records(self, text: bytes) -> Iterator[WrittenRecord]:
        """The spans and log records of one object, each with the job that it names."""
        try:
            found = _objects.decode(text)
        except _UNREADABLE:
            self.broken += 1
            return
        if found.spans is not None or found.logs is not None:
            yield from self._otlp(found)
        elif found.name is not None and found.context is not None:
            yield from self._record(found.resource, _span(found))
        elif found.timestamp or found.observed_timestamp:
            yield from self._record(found.resource, _log(found))
        else:
            self.other += 1

    def _record(
        self, resource: msgspec.Raw, record: WrittenSpan | WrittenMark | None
    ) -> Iterator[WrittenRecord]:
        if record is None:
            self.broken += 1
        else:
            yield self._job(bytes(resource)), record

    def _otlp(self, found: _Object) -> Iterator[WrittenRecord]:
        for group in found.spans or ():
            for scope in group.scope_spans:
                for span in scope.spans:
                    yield from self._record(group.resource, _otlp_span(span))
        for logs in found.logs or ():
            for part in logs.scope_logs:
                for log in part.log_records:
                    yield from self._record(logs.resource, _otlp_log(log))

    def _job(self, resource: bytes) -> NamedJob | None:
        """Most records of a file have the same resource, to the byte."""
        if resource not in self._jobs:
            if len(self._jobs) >= _MOST_RESOURCES:
                self._jobs.clear()
            self._jobs[resource] = _named_job(resource)
        return self._jobs[resource]


def _span(found: _Object) -> WrittenSpan | None:
    begin_s, end_s = _iso_s(found.start_time), _iso_s(found.end_time)
    if begin_s is None or end_s is None or end_s < begin_s or found.context is None:
        return None
    marks = (
        WrittenMark(_short(each.name), time_s, _attribute_text(each.attributes), is_log=False)
        for each in (found.events or ())[:_MOST_MARKS]
        if (time_s := _iso_s(each.timestamp)) is not None
    )
    name, parent = _short(found.name or ""), found.parent_id or ""
    return WrittenSpan(
        name, begin_s, end_s, _short(found.context.span_id), _short(parent), tuple(marks)
    )


def _log(found: _Object) -> WrittenMark | None:
    time_s = _iso_s(found.timestamp) or _iso_s(found.observed_timestamp)
    if time_s is None:
        return None
    if found.event_name:
        text = _text_of(found.body) or _attribute_text(found.attributes)
        return WrittenMark(_short(found.event_name), time_s, text, is_log=False)
    severity = _severity(found.severity_number, found.severity_text or "")
    return WrittenMark(severity, time_s, _text_of(found.body), is_log=True)


def _otlp_span(span: _OtlpSpan) -> WrittenSpan | None:
    begin_s, end_s = (
        _nanoseconds_s(span.start_time_unix_nano),
        _nanoseconds_s(span.end_time_unix_nano),
    )
    if begin_s is None or end_s is None or end_s < begin_s:
        return None
    marks = (
        WrittenMark(_short(each.name), time_s, _attribute_text(each.attributes), is_log=False)
        for each in span.events[:_MOST_MARKS]
        if (time_s := _nanoseconds_s(each.time_unix_nano)) is not None
    )
    parent = _short(span.parent_span_id)
    return WrittenSpan(
        _short(span.name), begin_s, end_s, _short(span.span_id), parent, tuple(marks)
    )


def _otlp_log(log: _OtlpLog) -> WrittenMark | None:
    time_s = _nanoseconds_s(log.time_unix_nano) or _nanoseconds_s(log.observed_time_unix_nano)
    if time_s is None:
        return None
    text = _otlp_text(log.body)
    if log.event_name:
        text = text or _attribute_text(log.attributes)
        return WrittenMark(_short(log.event_name), time_s, text, is_log=False)
    return WrittenMark(_severity(log.severity_number, log.severity_text), time_s, text, is_log=True)


def _severity(number: int | str | None, text: str) -> str:
    """OpenTelemetry has four numbers for each word; older SDKs write them as text."""
    if isinstance(number, int) and 1 <= number <= 4 * len(_SEVERITIES):
        return _SEVERITIES[(number - 1) // 4]
    plain = text.lower()
    if plain == "warning":
        return "warn"
    return "fatal" if plain == "critical" else plain if plain in _SEVERITIES else ""


def _named_job(resource: bytes) -> NamedJob | None:
    try:
        found = _attributes(_resources.decode(resource).attributes)
    except _UNREADABLE:
        # Older SDKs write the resource of a log record as a text.
        return None
    job_id = str(found.get("slurm.job.id", ""))
    if not job_id:
        return None
    return NamedJob(
        job_id=job_id[: _MOST_DIGITS + 1],
        cluster=_short(str(found.get("slurm.cluster.name", ""))),
        attempt=_number(found.get("lattice.allocation.attempt"), 0),
        rank=_number(found.get("slurm.task.rank"), -1),
    )


def _attributes(raw: msgspec.Raw) -> Mapping[str, Any]:
    """In the SDK's form an object, in OTLP's a list of pairs. Raises if it is neither."""
    text = bytes(raw).lstrip()
    if text.startswith(b"["):
        return {each.key: _plain(each.value) for each in _pairs.decode(text)}
    return _mappings.decode(text) if text not in {b"", b"null"} else {}


def _plain(value: _Value) -> Any:
    found = (value.string_value, value.int_value, value.double_value, value.bool_value)
    return next((each for each in found if each is not None), "")


def _attribute_text(raw: msgspec.Raw) -> str:
    """A few of the attributes, as text for people."""
    try:
        found = _attributes(raw)
        if _EXCEPTION[0] in found:
            parts = (str(found.get(name, ""))[:LONGEST_MARK_TEXT] for name in _EXCEPTION)
            return ": ".join(each for each in parts if each)[:LONGEST_MARK_TEXT]
        shown = [*found.items()][:_MOST_SHOWN]
        text = ", ".join(f"{name[:50]} {str(value)[:LONGEST_MARK_TEXT]}" for name, value in shown)
    except _UNREADABLE:
        return ""
    return text[:LONGEST_MARK_TEXT]


def _text_of(body: msgspec.Raw) -> str:
    try:
        found = _anything.decode(body) if bytes(body) else None
        return "" if found is None else str(found)[:LONGEST_MARK_TEXT]
    except _UNREADABLE:
        return ""


def _otlp_text(body: msgspec.Raw) -> str:
    try:
        return str(_plain(_bodies.decode(body)))[:LONGEST_MARK_TEXT] if bytes(body) else ""
    except _UNREADABLE:
        return ""


def _short(text: str) -> str:
    return text[:LONGEST_SPAN_NAME]


def _number(value: object, otherwise: int) -> int:
    text = str(value)
    sound = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if sound else otherwise


def _iso_s(text: str | None) -> float | None:
    if not text or len(text) > _LONGEST_TIME:
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        found = time.timestamp()
    except (ValueError, OverflowError):
        return None
    return found if found > 0 else None


def _nanoseconds_s(value: int | str) -> float | None:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()) or len(value) > len(str(_NEWEST_NS)):
            return None
        value = int(value)
    return value / 1e9 if 0 < value <= _NEWEST_NS else None
