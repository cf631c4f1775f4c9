"""A node's page for a scraper: each value with its moment, nothing stale, nothing broken out of."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricKind, Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.node.exposition import ExposedFigure, page

T0 = 1_794_702_390.0


def snapshot(*readings: Sample | Absence, inode: int = 1, at: float = T0) -> JobSnapshot:
    return JobSnapshot(JobIdentity("b", 7, inode, T0 + inode), at, 30.0, readings)


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float, float | None]]]:
    return {
        family.name: [
            (each.labels, each.value, float(each.timestamp) if each.timestamp else None)
            for each in family.samples
        ]
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.spec("TOP-2")
def test_a_value_has_its_labels_and_the_moment_it_was_read() -> None:
    labels = labelled(gpu_uuid='GPU-"1\\')
    samples = (
        Sample("cpu_seconds_total", 12.5, T0 + 0.25),
        Sample("gpu_power_watts", 300.0, T0, labels=labels),
        Absence("threads", "not readable"),
    )
    figures = [
        ExposedFigure(
            "lattice_agent_samples_lost_total", MetricKind.COUNTER, "samples dropped", 3.0
        )
    ]
    told = parsed(page("n1", [snapshot(*samples)], figures, T0 + 1))
    here = {"alloc": "7", "node": "n1", "source": "host_local_probe"}
    assert told == {
        "lattice_cpu_seconds": [(here, 12.5, T0 + 0.25)],
        "lattice_gpu_power_watts": [({**here, "gpu_uuid": 'GPU-"1\\'}, 300.0, T0)],
        "lattice_agent_samples_lost": [({"node": "n1"}, 3.0, None)],
    }


@pytest.mark.spec("SRC-2")
def test_what_is_stale_is_left_out() -> None:
    taken = snapshot(Sample("threads", 3.0, T0))
    assert "lattice_threads" in page("n1", [taken], (), T0 + 60)
    assert "lattice_threads" not in page("n1", [taken], (), T0 + 70)


@pytest.mark.spec("TOP-2")
def test_of_two_lives_of_a_job_the_newer_one_is_told() -> None:
    lives = [
        snapshot(Sample("threads", 3.0, T0), inode=2),
        snapshot(Sample("threads", 9.0, T0), inode=1),
    ]
    ((_, value, _),) = parsed(page("n1", lives, (), T0))["lattice_threads"]
    assert value == 3.0
