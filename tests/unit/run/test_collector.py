"""The SDK's own OTLP exporter sends a job's spans to a collector, with what `lattice-run` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lattice.observe.span_files.reader import SpanFiles
from lattice_run.facts import attributes
from tests.fakes.cluster import allocation
from tests.otel_files import otlp_json

ROOT = Path(__file__).resolve().parents[3]
_TRAINING = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("train")
with tracer.start_as_current_span("train.epoch"):
    with tracer.start_as_current_span("checkpoint.save") as span:
        span.add_event("early_stopping", {"patience": 3})
provider.shutdown()
"""
"""Names nothing of Lattice, and no collector."""


class Collector(HTTPServer):
    """Takes OTLP over HTTP, as any collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        if self.path == "/v1/traces":
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


@pytest.mark.spec("RUN-1")
def test_a_jobs_spans_reach_a_collector_and_come_back_as_its_own(tmp_path: Path) -> None:
    fixture = ROOT / "tests" / "fixtures" / "run" / "slurm-26.05.json"
    job: dict[str, str] = json.loads(fixture.read_text())["array-step"][0]["environment"]
    with collecting() as collector:
        port = collector.server_address[1]
        environment = {
            "PATH": os.environ["PATH"],
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "lattice",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        }
        done = subprocess.run(
            [sys.executable, "-c", _TRAINING],
            env=job | environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stderr == ""
    (request,) = collector.requests
    found = otlp_json(request)
    (group,) = found["resourceSpans"]
    named = {each["key"]: _value(each["value"]) for each in group["resource"]["attributes"]}
    expected = attributes(job, "")
    assert named.items() >= expected.items()
    assert {"slurm.job.id", "slurm.cluster.name", "lattice.allocation.id"} <= named.keys()

    # What a collector writes into a file is read back as this job's.
    file = tmp_path / "spans.jsonl"
    file.write_text(json.dumps(found) + "\n")
    now = datetime.now(UTC)
    mine = allocation(
        int(named["slurm.job.id"]),
        "alice",
        "research",
        cluster=named["slurm.cluster.name"],
        submitted=now - timedelta(minutes=10),
    )
    files = SpanFiles([str(file)], mine.job_id)
    records = [*files.of(mine, now)]
    assert files.missing() == ()
    assert [each.record.name for each in records] == ["checkpoint.save", "train.epoch"]
    assert all(each.is_named for each in records)
    assert records[0].rank == expected["slurm.task.rank"]


def _value(value: dict[str, Any]) -> Any:
    ((kind, found),) = value.items()
    return int(found) if kind == "intValue" else found


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "no address"])
def test_a_training_goes_on_without_its_collector(endpoint: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "5",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "lattice",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
