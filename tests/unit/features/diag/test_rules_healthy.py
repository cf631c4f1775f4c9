"""Jobs that are well: no rule cries, whatever the load."""

from __future__ import annotations

import pytest

from lattice.features.diag.model import Verdict
from lattice.features.diag.rules.engine import verdict_of
from tests.unit.features.diag.wards import healthy

RUNS = 200


@pytest.mark.spec("DIAG-1")
def test_two_hundred_healthy_runs_of_varied_load_raise_no_alarm() -> None:
    for seed in range(RUNS):
        ward = healthy(
            seed,
            nodes=(1, 2, 4, 8, 16)[seed % 5],
            gpus=seed % 3 != 0,
            ranks=(1, 4, 8, 16)[seed % 4],
        )
        found = ward.judged()
        sick = [(each.rule, each.evidence) for each in found if each.verdict.is_sick]
        assert not sick, (seed, sick)
        assert verdict_of(found) is Verdict.OK, (
            seed,
            [(each.rule, each.reason) for each in found if each.verdict is Verdict.UNKNOWN],
        )


@pytest.mark.spec("DIAG-1", "DIAG-5")
def test_a_healthy_job_has_a_line_for_every_rule() -> None:
    told = {each.rule for each in healthy().judged()}
    assert told >= {
        "bandwidth",
        "buffered_output",
        "clock",
        "congestion",
        "data_loader",
        "gpu_errors",
        "gpu_hang",
        "gpu_health",
        "gpu_idle",
        "group_span",
        "hung_mount",
        "io_latency",
        "job_hang",
        "link_down",
        "link_errors",
        "link_flapping",
        "link_speed",
        "memory_limit",
        "node_silent",
        "oom_kill",
        "retransmits",
        "slow_mount",
        "straggler",
        "throttle",
    }


@pytest.mark.spec("DIAG-1")
def test_a_job_without_gpus_has_no_line_about_them() -> None:
    assert not [each for each in healthy(gpus=False).judged() if each.area.value == "gpu"]


@pytest.mark.spec("DIAG-1")
def test_every_line_that_is_well_says_who_measured() -> None:
    for each in healthy().judged():
        assert each.source, each.rule
        assert each.verdict is not Verdict.OK or not each.remedy
