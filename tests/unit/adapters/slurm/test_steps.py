"""What the steps of a run used, as slurmrestd lists them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.job_details import SlurmAccounting
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.schema.steps import run_use
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.runsummary import AccountedUse
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, RecordedSlurm

STARTED = 1795039028


def step(name: str, seconds: float, *peaks: tuple[str, str, int], joules: int = 0) -> Any:
    """As 24.11 and 26.05 write it."""
    whole = int(seconds)
    return {
        "step": {"id": f"7.{name}", "name": name},
        "time": {
            "total": {"seconds": whole, "microseconds": round((seconds - whole) * 1_000_000)},
            "start": {"set": True, "infinite": False, "number": STARTED},
        },
        "statistics": {
            "energy": {"consumed": {"set": True, "infinite": False, "number": joules}},
        },
        "tres": {
            "requested": {
                "max": [
                    {"type": kind, "name": what, "count": count, "task": 0, "node": "n3"}
                    for kind, what, count in peaks
                ]
            }
        },
    }


def run(*steps: Any, start: int = STARTED, job_id: int = 7) -> Any:
    # The total of the run itself is always zero.
    total = {"seconds": 0, "microseconds": 0}
    return {"job_id": job_id, "time": {"start": start, "total": total}, "steps": list(steps)}


def used(record: Any) -> AccountedUse | None:
    found = run_use(json.dumps(record).encode())
    return found and found.used


@pytest.mark.spec("TOP-5")
def test_the_steps_of_a_run_are_added_and_the_largest_task_counts() -> None:
    steps = (
        step("batch", 0.014448, ("mem", "", 4_681_728)),
        step("extern", 0.001812, ("mem", "", 0)),
        step("0", 2.362673, ("mem", "", 66_363_392), ("gres", "gpumem", 2**30), joules=3600),
    )
    assert used(run(*steps)) == AccountedUse(
        cpu_seconds=pytest.approx(2.378933),
        largest_task_bytes=66_363_392.0,
        largest_task_gpu_bytes=float(2**30),
        energy_joules=3600.0,
    )


@pytest.mark.spec("SRC-2")
def test_what_was_not_gathered_is_nothing() -> None:
    assert used(run()) == used(run(step("batch", 0.0, ("mem", "", 0)))) == AccountedUse()
    assert used({"steps": []}) is None


@pytest.mark.spec("SRC-2")
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=5))
def test_garbage_is_no_number(value: Any) -> None:
    broken = step("0", 1.0)
    broken["tres"]["requested"]["max"] = [{"type": "mem", "name": "", "count": value}]
    for record in (run(broken), run(broken) | {"steps": value}, {"job_id": 7, "time": value}):
        found = used(record)
        for figure in (found.cpu_seconds, found.largest_task_bytes) if found else ():
            assert figure is None or figure > 0


def accounting(slurm: RecordedSlurm, commands: SlurmCommands) -> SlurmAccounting:
    rest = slurm.rest()
    return SlurmAccounting(commands, rest, Dialects(rest, known_schemas(), ManualClock()))


def attempt() -> JobAttempt:
    found = allocation(7, "alice", "research", started=datetime.fromtimestamp(STARTED, UTC))
    return JobAttempt(found, attempts_of(found)[0])


@pytest.mark.spec("TOP-5")
async def test_the_run_that_is_meant_is_read_from_slurmrestd() -> None:
    slurm = RecordedSlurm("v0.0.45")
    earlier = run(step("0", 9.0), start=STARTED - 600)
    other = run(step("0", 8.0), job_id=8)
    slurm.serve_records("slurmdb", "jobs", [earlier, other, run(step("0", 1.5))])
    found = await accounting(slurm, RecordedCommands()).used(attempt())
    assert found == AccountedUse(cpu_seconds=1.5)
    assert slurm.asked[-1][1] == {"step": "7", "show_duplicates": "true"}
    slurm.serve_records("slurmdb", "jobs", [earlier])
    assert await accounting(slurm, RecordedCommands()).used(attempt()) is None


@pytest.mark.spec("TOP-5")
async def test_before_v0_0_40_sacct_is_asked() -> None:
    slurm, commands = RecordedSlurm("v0.0.38"), RecordedCommands()
    commands.used_text = f"7|{STARTED}|00:01.500||\n"
    assert await accounting(slurm, commands).used(attempt()) == AccountedUse(cpu_seconds=1.5)
    assert slurm.count("/slurmdb/") == 0
