"""A caller's jobs by Slurm's commands: the documents of every release, read with one decoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.adapters.slurm.command_scheduler import CommandScheduler
from lattice.base.errors import Unavailable
from lattice.domain.allocation import parse_reference
from lattice.domain.scheduler import PastQuestion, Scope
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RECORDED, RecordedCommands

PLACES = [RECORDED / "22.05/v0.0.38", RECORDED / "24.11/v0.0.42", RECORDED / "26.05/v0.0.45"]
ALICE = Scope(users=frozenset({"alice"}))


class PrintedJobs(RecordedCommands):
    """Prints what slurmrestd was recorded to send: the commands of a release write the same."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place
        self.options: list[list[str]] = []
        self.away = False

    async def live_jobs(self, user: str) -> str:  # noqa: ARG002
        if self.away:
            raise Unavailable("slurm_load_jobs error: Unable to contact slurm controller")
        return (self.place / "jobs.json").read_text()

    async def past_jobs(self, options: Sequence[str]) -> str:
        self.options.append(list(options))
        return (self.place / "past-jobs.json").read_text()


@pytest.fixture(params=PLACES, ids=lambda place: place.parent.name)
def printed(request: pytest.FixtureRequest) -> PrintedJobs:
    return PrintedJobs(request.param)


def scheduler(printed: PrintedJobs) -> CommandScheduler:
    return CommandScheduler(printed, "alice", ManualClock())


@pytest.mark.spec("TRY-3")
async def test_live_jobs_of_each_release(printed: PrintedJobs) -> None:
    reading = await scheduler(printed).fresh()
    recorded = json.loads((printed.place / "jobs.json").read_text())["jobs"]
    assert reading.source.ok, reading.source.error
    assert len(reading.cluster.allocations) == len(recorded)
    assert {each.cluster for each in reading.cluster.allocations} == {"lab"}


@pytest.mark.spec("TRY-3")
async def test_past_jobs_of_each_release(printed: PrintedJobs) -> None:
    question = PastQuestion(scope=ALICE, reference=parse_reference("1"))
    await scheduler(printed).past(question)
    everything = await scheduler(printed).past(PastQuestion(scope=ALICE))
    assert everything
    assert {each.user for each in everything} == {"alice"}
    assert printed.options[0] == ["-j", "1", "-u", "alice"]


async def test_a_silent_controller_leaves_the_last_reading(printed: PrintedJobs) -> None:
    slurm = scheduler(printed)
    before = await slurm.fresh()
    printed.away = True
    after = await slurm.fresh()
    assert after.cluster.allocations == before.cluster.allocations
    assert not after.source.ok
    assert "Unable to contact" in str(after.source.error)
