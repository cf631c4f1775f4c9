"""What every release of Slurm tells of a run: its size, its files and its use, by either way."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from lab.laboratory import Lab
from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.job_details import read_used
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.scheduler import SlurmScheduler
from lattice.base.clock import SystemClock
from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation, Array, State, parse_reference
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.logs import LogKind
from lattice.domain.scheduler import PastQuestion, Scope
from lattice.domain.vcluster import Vclusters
from tests.eventually import eventually_async

pytestmark = pytest.mark.lab

EVERYTHING = Scope(everything=True)


@pytest.fixture
def commands(quiet_lab: Lab) -> SlurmCommands:
    room = quiet_lab.control.room
    return SlurmCommands(quiet_lab.layout.slurm_conf, prefix=room.argv([]))


@pytest.fixture
async def slurm(quiet_lab: Lab, commands: SlurmCommands) -> AsyncIterator[SlurmScheduler]:
    rest = SlurmRest(f"unix:{quiet_lab.slurm.files.rest_socket}")
    scheduler = SlurmScheduler(rest, commands, Vclusters(), SystemClock(), 0.5)
    await scheduler.refresh()
    yield scheduler
    await scheduler.past_reader.aclose()
    await rest.aclose()


async def now(slurm: SlurmScheduler, job: int) -> Allocation:
    await slurm.refresh()
    return next(each for each in slurm.live().cluster.allocations if each.job_id == job)


async def finished(slurm: SlurmScheduler, job: int) -> Allocation:
    """As the accounting store has it; exactly one allocation."""
    question = PastQuestion(scope=EVERYTHING, reference=parse_reference(str(job)))

    async def found() -> tuple[Allocation, ...]:
        slurm.past_reader._remembered.clear()
        rows = await slurm.past(question)
        return rows if all(each.state.finished for each in rows) else ()

    (only,) = await eventually_async(found)
    return only


@pytest.mark.spec("ALLOC-1", "ALLOC-6")
async def test_a_run_that_changes_its_size_is_one_run(
    quiet_lab: Lab, slurm: SlurmScheduler
) -> None:
    job = quiet_lab.sbatch("alice", "-N2", wrap="sleep 600")
    quiet_lab.wait_job_state(job, "RUNNING")
    before = await now(slurm, job)
    assert before.node_count == 2
    quiet_lab.run_as("alice", ["scontrol", "update", f"jobid={job}", "numnodes=1"], check=True)
    after = await now(slurm, job)
    assert (after.node_count, after.ref, after.sluid) == (1, before.ref, before.sluid)
    quiet_lab.jobs.cancel(job)
    past = await finished(slurm, job)
    assert (past.ref, past.started, past.attempts) == (before.ref, before.started, ())
    assert past.state is State.CANCELLED
    assert past.sluid == before.sluid
    assert bool(past.sluid) == (quiet_lab.slurm.release == "26.05")


@pytest.mark.spec("LOG-2")
async def test_each_task_of_an_array_has_its_own_file(
    quiet_lab: Lab, slurm: SlurmScheduler
) -> None:
    array = quiet_lab.sbatch("alice", "--array=1-2", "-o", "%x-%A_%a.out", "-J", "a b",
                             wrap="sleep 600")  # fmt: skip
    for task in (1, 2):
        quiet_lab.wait_job_state(f"{array}_{task}", "RUNNING")
    await slurm.refresh()
    tasks = {each.id: each for each in slurm.live().cluster.allocations}
    # One of them has the array's id.
    assert array in {tasks[f"{array}_{task}"].job_id for task in (1, 2)}
    for task in (1, 2):
        found = await slurm.job_files.of(tasks[f"{array}_{task}"])
        assert found.files == {LogKind.STDOUT: f"/home/alice/a b-{array}_{task}.out"}
        assert found.host in quiet_lab.slurm.nodes
    gone = replace(tasks[f"{array}_1"], job_id=999_999)
    for array_id in (array, 999_999):
        with pytest.raises(NotFound):
            await slurm.job_files.of(replace(gone, array=Array(array_id, 1)))


@pytest.mark.spec("LOG-2")
async def test_the_task_with_the_id_of_its_array_is_shown_alone(
    quiet_lab: Lab, commands: SlurmCommands
) -> None:
    array = quiet_lab.sbatch("alice", "--array=1-3", wrap="sleep 600")
    for task in (1, 2, 3):
        quiet_lab.wait_job_state(f"{array}_{task}", "RUNNING")
        shown = await commands.job_shown(f"{array}_{task}")
        assert re.findall(r"ArrayTaskId=(\S+)", shown) == [str(task)]
    assert (await commands.job_shown(str(array))).count("ArrayTaskId=") == 3
    with pytest.raises(CommandFailed, match=f"Job {array}_77 not found"):
        await commands.job_shown(f"{array}_77")


@pytest.mark.spec("TOP-5", "SRC-1")
async def test_what_a_run_used_is_what_sacct_says(
    quiet_lab: Lab, slurm: SlurmScheduler, commands: SlurmCommands
) -> None:
    # Slurm samples every two seconds.
    work = "import time; x = bytearray(60 << 20); sum(range(20_000_000)); time.sleep(5)"
    job = quiet_lab.sbatch("alice", "--mem=300M", wrap=f"srun python3 -c '{work}'")
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=120)
    past = await finished(slurm, job)
    attempt = JobAttempt(past, attempts_of(past)[-1])
    used = await eventually_async(lambda: slurm.accounting.used(attempt))
    said = read_used(await commands.used(job), past.started)
    assert said is not None
    assert used.cpu_seconds == pytest.approx(said.cpu_seconds, abs=0.01)
    assert used.largest_task_bytes == pytest.approx(said.largest_task_bytes, rel=0.01)
    assert used.largest_task_bytes > 60 << 20
    assert used.energy_joules is used.largest_task_gpu_bytes is None
