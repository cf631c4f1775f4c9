"""The checks of the metric store. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.base.moment import age
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.measured import Inspected, milliseconds

_SLOW_S = 1.0
_OLD_S = 180.0
"""Six of the usual intervals between two samples of a job."""

QUERY = Topic("metrics.query", "the metric store answers")
WRITE = Topic("metrics.write", "the metric store takes samples")
NEWEST = Topic("metrics.newest", "samples of jobs arrive")

_NONE = "no metric store is configured: what ran cannot be shown or compared afterwards"
_START = "Start the metric store, and check telemetry.tsdb_endpoint and its credentials."


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    query: Inspected[bool]
    write: Inspected[bool]
    newest: Inspected[float | None]
    """When the newest sample of a job was measured, in seconds since 1970; None: there is none."""
    now: float
    jobs: int | None
    """Running for so long that samples of them are due; None: not known."""


def metric_checks(facts: MetricFacts) -> Iterator[Check]:
    yield _timed(QUERY, facts.query, "answered")
    yield _timed(WRITE, facts.write, "took a sample")
    yield newest(facts)


def _timed(topic: Topic, found: Inspected[bool], done: str) -> Check:
    if found.off:
        return topic.off(_NONE)
    if found.value is None:
        return topic.failed(found.reason, _START)
    evidence = f"{done} in {milliseconds(found.took_s)}"
    if found.took_s > _SLOW_S:
        return topic.warning(evidence, "Give the metric store more memory or a faster disk.")
    return topic.ok(evidence)


def newest(facts: MetricFacts) -> Check:
    found = facts.newest
    if found.off:
        return NEWEST.off(_NONE)
    if found.reason:
        return NEWEST.unknown(found.reason)
    if found.value is not None and facts.now - found.value <= _OLD_S:
        return NEWEST.ok(f"the newest is {age(max(facts.now - found.value, 0.0))} old")
    if facts.jobs is None:
        return NEWEST.unknown("Slurm has not answered, so nobody knows which samples are due")
    if not facts.jobs:
        return NEWEST.ok("no job has run for long enough that samples are due")
    evidence = (
        f"none within the last {_OLD_S / 60:.0f} min"
        if found.value is None
        else f"the newest is {age(facts.now - found.value)} old"
    )
    return NEWEST.failed(
        f"{evidence}, and {facts.jobs} jobs run on nodes with an agent",
        "Check the log of an agent of such a node for `telemetry`, and telemetry.enabled there.",
    )
