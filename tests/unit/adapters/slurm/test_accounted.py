"""What sacct says that a run used: the run that is meant, and no zero for what is not gathered."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.job_details import read_used
from lattice.domain.runsummary import AccountedUse

STARTED = datetime.fromtimestamp(1794700000, UTC)
TWO_RUNS = """\
42|1794690000|10:00.000||0
42.batch|1794690000|10:00.000|9999999K|
42|1794700000|1-02:03:04||
42.batch|1794700001|00:10.500|2048K|
42.0|1794700002|1-02:02:53.500|1.5G|
"""


@pytest.mark.spec("TOP-5")
def test_the_run_that_is_meant() -> None:
    assert read_used(TWO_RUNS, STARTED) == AccountedUse(
        cpu_seconds=93784.0, largest_task_bytes=1.5 * 2**30
    )


@pytest.mark.spec("TOP-5")
def test_minutes_and_energy() -> None:
    told = "42|1794700001|02:03.250|512|3600\n"
    assert read_used(told, STARTED) == AccountedUse(
        cpu_seconds=123.25, largest_task_bytes=512.0, energy_joules=3600.0
    )


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "told", ["42|1794700000|00:00:00|0|0\n", "42|1794700000|||\n", "42|1794700000|INVALID|?|x\n"]
)
def test_what_was_not_gathered_is_nothing(told: str) -> None:
    assert read_used(told, STARTED) == AccountedUse()


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("told", ["", "42|Unknown|01:00|1K|1\n", "42|1794690000|01:00|1K|1\n", "|"])
def test_another_run_is_not_taken_for_it(told: str) -> None:
    assert read_used(told, STARTED) is None


@pytest.mark.spec("SRC-2")
def test_one_that_never_began_used_nothing() -> None:
    assert read_used(TWO_RUNS, None) is None


@pytest.mark.spec("SRC-2")
@given(st.text(max_size=200))
def test_garbage_is_no_number(text: str) -> None:
    found = read_used(f"42|1794700000|{text}|{text}|{text}\n", STARTED)
    for value in (found.cpu_seconds, found.largest_task_bytes) if found else ():
        assert value is None or value > 0
