"""Spans and log records as OpenTelemetry's own SDK writes them, with times that a test chooses."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import (
    ConsoleLogRecordExporter,
    InMemoryLogRecordExporter,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer, set_span_in_context

JOB = {"slurm.job.id": "42", "slurm.cluster.name": "lab", "lattice.allocation.attempt": 1}
Act = Callable[[Tracer], None]


def nanoseconds(time: datetime) -> int:
    return int(time.timestamp()) * 10**9 + time.microsecond * 1000


def one_span(
    tracer: Tracer,
    name: str,
    begin: datetime,
    end: datetime,
    inner: Iterable[tuple[str, datetime, datetime]] = (),
    events: Iterable[tuple[str, datetime, Mapping[str, Any]]] = (),
) -> None:
    """A span with others in it."""
    span = tracer.start_span(name, start_time=nanoseconds(begin))
    for each, first, last in inner:
        within = tracer.start_span(each, set_span_in_context(span), start_time=nanoseconds(first))
        within.end(nanoseconds(last))
    for each, time, attributes in events:
        span.add_event(each, dict(attributes), nanoseconds(time))
    span.end(nanoseconds(end))


def recorded(act: Act, resource: Mapping[str, Any]) -> tuple[ReadableSpan, ...]:
    """What was ended, in that order."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(dict(resource)))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    act(provider.get_tracer("train"))
    return exporter.get_finished_spans()


def indented(act: Act, resource: Mapping[str, Any] = JOB) -> str:
    """As `ConsoleSpanExporter` writes by itself."""
    out = io.StringIO()
    ConsoleSpanExporter(out=out).export(recorded(act, resource))
    return out.getvalue()


def lines(act: Act, resource: Mapping[str, Any] = JOB) -> str:
    """One object a line."""
    out = io.StringIO()
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    exporter.export(recorded(act, resource))
    return out.getvalue()


def otlp_lines(act: Act, resource: Mapping[str, Any] = JOB) -> str:
    """OTLP/JSON: one request a line, as the file exporter of a collector writes it."""
    return json.dumps(otlp_json(encode_spans(recorded(act, resource)))) + "\n"


def otlp_json(request: Any) -> dict[str, Any]:
    """OTLP/JSON differs from protobuf's own: ids are hexadecimal."""
    found: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for group in found.get("resourceSpans", ()):
        for scope in group.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return found


def logged(
    time: datetime, text: str, name: str = "", resource: Mapping[str, Any] = JOB
) -> tuple[ReadableLogRecord, ...]:
    """A warning, or an event with a name."""
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call] # the SDK's
    provider = LoggerProvider(resource=Resource(dict(resource)))
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    record = LogRecord(
        timestamp=nanoseconds(time),
        severity_number=SeverityNumber.WARN,
        severity_text="WARN",
        body=text,
        event_name=name or None,
    )
    provider.get_logger("train").emit(record)
    return exporter.get_finished_logs()


def indented_logs(records: tuple[ReadableLogRecord, ...]) -> str:
    """As `ConsoleLogRecordExporter` writes by itself."""
    out = io.StringIO()
    ConsoleLogRecordExporter(out=out).export(records)
    return out.getvalue()


def otlp_log_lines(records: tuple[ReadableLogRecord, ...]) -> str:
    """OTLP/JSON: one request a line."""
    return json.dumps(otlp_json(encode_logs(records))) + "\n"
