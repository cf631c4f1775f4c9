"""OpenTelemetry's resource detector: `OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=lattice`.

What is in `OTEL_RESOURCE_ATTRIBUTES` has precedence; the SDK merges it last.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource, ResourceDetector

from lattice_run.facts import current


class JobDetector(ResourceDetector):
    """The job's attributes for every span, metric and log record of the process."""

    def detect(self) -> Resource:
        return Resource(current())
