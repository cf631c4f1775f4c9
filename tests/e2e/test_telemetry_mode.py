"""How closely a job is measured: switched by its owner, felt within seconds, reverted by itself."""

from __future__ import annotations

import time

import pytest

from lab.laboratory import Lab
from tests.e2e.measured import Measured
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import eventually

pytestmark = pytest.mark.lab


def _samples(measured: Measured, job: int, window: str) -> float:
    counted = f'count_over_time(lattice_cpu_seconds_total{{alloc="{job}"}}[{window})'
    found = measured.query(counted)
    return float(found[0]["value"][1]) if found else 0.0


@pytest.mark.story
@pytest.mark.spec("WATCH-3")
def test_debug_measures_every_second_and_reverts(lab: Lab, alice: Person) -> None:
    measured = Measured(lab, alice)
    with debugged(lab, alice, wrap="sleep 600") as job:
        # Of three seconds that have just passed, each has a sample.
        eventually(
            lambda: _samples(measured, job, f"3s] @ {int(time.time()) - 2}"),
            lambda count: count >= 3,
        )
        said = alice.tries("telemetry", str(job), "--mode", "debug", "--duration", "10s")
        assert said.code == 0
        eventually(lambda: alice.asks("telemetry", str(job))["mode"], lambda mode: mode == "prod")
        time.sleep(6)
        before = _samples(measured, job, "10m]")
        time.sleep(4)
        assert _samples(measured, job, "10m]") <= before + 1, "no longer every second"


@pytest.mark.timing
@pytest.mark.spec("WATCH-3")
def test_debug_takes_effect_within_five_seconds(lab: Lab, alice: Person) -> None:
    measured = Measured(lab, alice)
    with debugged(lab, alice, wrap="sleep 600") as job:
        # Of the three seconds that begin five seconds from now, each has a sample.
        then = int(time.time()) + 8
        eventually(
            lambda: _samples(measured, job, f"3s] @ {then}"),
            lambda count: count >= 3,
            patience_s=20,
        )


@pytest.mark.spec("WATCH-3")
def test_nobody_but_the_owner_switches(lab: Lab, alice: Person, bob: Person, carol: Person) -> None:
    with debugged(lab, alice, wrap="sleep 600") as job:
        for person in (bob, carol):
            said = person.tries("telemetry", str(job), "--mode", "prod")
            assert said.code != 0
        assert alice.asks("telemetry", str(job))["mode"] == "debug"
        bad = alice.tries("telemetry", str(job), "--mode", "debug", "--duration", "3d")
        assert bad.code == 2
        assert "1 d" in bad.err
