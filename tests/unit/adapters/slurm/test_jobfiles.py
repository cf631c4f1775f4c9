"""The files of a job: from slurmrestd, or from what scontrol prints."""

from __future__ import annotations

import json

import pytest

from lattice.adapters.slurm.commands import CommandFailed, CommandMissing
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.job_details import SlurmJobFiles, parse_outputs
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.allocation import Allocation, Array
from lattice.domain.logs import LogKind
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, RecordedSlurm

SHOWN = """JobId=20 JobName=wrap
   UserId=alice(3001) GroupId=alice(3001) MCS_label=N/A
   BatchHost=n3
   StdErr={err}
   StdIn=/dev/null
   StdOut={out}
   Power=
"""


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    ("out", "err", "files"),
    [
        ("/h/a.out", "/h/a.out", {LogKind.STDOUT: "/h/a.out"}),
        ("/h/a.out", "/h/a.err", {LogKind.STDOUT: "/h/a.out", LogKind.STDERR: "/h/a.err"}),
        ("/dev/null", "/h/a.err", {LogKind.STDERR: "/h/a.err"}),
        ("/h/with space=x", "/h/with space=x", {LogKind.STDOUT: "/h/with space=x"}),
        ("(null)", "(null)", {}),
    ],
)
def test_files(out: str, err: str, files: dict[LogKind, str]) -> None:
    found = parse_outputs(SHOWN.format(out=out, err=err), 20)
    assert found is not None
    assert (found.host, found.files) == ("n3", files)


@pytest.mark.spec("LOG-2")
def test_the_task_that_has_the_id_of_its_array_is_not_another_task() -> None:
    last = SHOWN.format(out="/h/a_4.out", err="/h/a_4.out")
    first = SHOWN.replace("JobId=20", "JobId=21").format(out="/h/a_3.out", err="/h/a_3.out")
    for job_id, path in ((20, "/h/a_4.out"), (21, "/h/a_3.out")):
        found = parse_outputs(f"{last}\n{first}", job_id)
        assert found is not None
        assert found.files == {LogKind.STDOUT: path}
    assert parse_outputs(f"{last}\n{first}", 22) is None


def files_of(version: str) -> tuple[SlurmJobFiles, RecordedSlurm, RecordedCommands]:
    slurm, commands = RecordedSlurm(version), RecordedCommands()
    rest = slurm.rest()
    return (
        SlurmJobFiles(commands, rest, Dialects(rest, known_schemas(), ManualClock())),
        slurm,
        commands,
    )


def job(job_id: int, array: Array | None = None) -> Allocation:
    return allocation(job_id, "alice", "research", array=array)


def array_of(*jobs: tuple[int, str]) -> dict[str, object]:
    every = [
        {"job_id": job_id, "batch_host": "n3", "stdout_expanded": path, "stderr_expanded": ""}
        for job_id, path in jobs
    ]
    return {"errors": [], "jobs": every}


@pytest.mark.spec("LOG-2")
async def test_slurmrestd_has_expanded_paths_from_v0_0_43_on() -> None:
    files, slurm, _ = files_of("v0.0.45")
    answer = json.dumps(array_of((4, "/h/a_3.out"), (2, "/h/a_4.out"))).encode()
    slurm.serve("slurm", "job/2", answer)
    found = await files.of(job(2))
    assert (found.host, found.files) == ("n3", {LogKind.STDOUT: "/h/a_4.out"})
    slurm.serve("slurm", "job/3", answer)
    with pytest.raises(NotFound):
        await files.of(job(3))


async def test_a_job_that_slurmctld_has_removed_is_not_found() -> None:
    files, slurm, _ = files_of("v0.0.45")
    gone = {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}], "jobs": []}
    slurm.serve("slurm", "job/999", json.dumps(gone).encode(), 500)
    with pytest.raises(NotFound):
        await files.of(job(999))
    slurm.serve("slurm", "job/998", b'{"errors": [{"error_number": 7000}]}', 500)
    with pytest.raises(Unavailable):
        await files.of(job(998))


@pytest.mark.spec("LOG-2")
async def test_before_scontrol_prints_them() -> None:
    files, slurm, commands = files_of("v0.0.42")
    commands.job_text = SHOWN.format(out="/h/a.out", err="/h/a.out")
    assert (await files.of(job(20))).files == {LogKind.STDOUT: "/h/a.out"}
    assert slurm.count("/job/") == 0
    commands.failure = CommandFailed("scontrol failed with 1", "slurm_load_jobs error: " + GONE)
    with pytest.raises(NotFound):
        await files.of(job(20))


@pytest.mark.spec("LOG-2", "LIMIT-4")
@pytest.mark.parametrize("version", ["v0.0.42", "v0.0.45"])
async def test_slurmrestd_is_not_asked_for_the_id_of_an_array(version: str) -> None:
    files, slurm, commands = files_of(version)
    commands.job_text = SHOWN.format(out="/h/a_17.out", err="/h/a_17.out")
    last = job(20, Array(20, 17))
    assert (await files.of(last)).files == {LogKind.STDOUT: "/h/a_17.out"}
    assert commands.jobs_shown == ["20_17"]
    assert slurm.count("/job/") == 0


@pytest.mark.spec("LOG-2")
async def test_a_task_with_an_id_of_its_own_is_asked_for_by_that() -> None:
    files, slurm, commands = files_of("v0.0.45")
    slurm.serve("slurm", "job/21", json.dumps(array_of((21, "/h/a_3.out"))).encode())
    assert (await files.of(job(21, Array(20, 3)))).files == {LogKind.STDOUT: "/h/a_3.out"}
    assert commands.jobs_shown == []


@pytest.mark.spec("LOG-2", "LIMIT-4")
@pytest.mark.parametrize(
    "why", [CommandMissing("no scontrol"), CommandFailed("no", "Invalid job id specified")]
)
async def test_where_scontrol_does_not_show_the_task_slurmrestd_may_within_a_limit(
    why: Unavailable,
) -> None:
    files, slurm, commands = files_of("v0.0.45")
    commands.failure = why
    last, every = job(20, Array(20, 17)), [(20, "/h/a_17.out"), (21, "/h/a_3.out")]
    slurm.serve("slurm", "job/20", json.dumps(array_of(*every)).encode())
    assert (await files.of(last)).files == {LogKind.STDOUT: "/h/a_17.out"}
    slurm.serve("slurm", "job/20", b" " * (16 * 1024 * 1024 + 1))
    with pytest.raises(Unavailable, match="larger than 16 MiB") as refused:
        await files.of(last)
    assert "that of an array" in refused.value.hint


@pytest.mark.spec("LOG-2")
async def test_a_task_that_its_array_has_no_more_is_not_found() -> None:
    files, slurm, commands = files_of("v0.0.45")
    text = "Job 20_17 not found"
    commands.failure = CommandFailed(f"scontrol show job 20_17 failed with 1: {text}", text)
    with pytest.raises(NotFound):
        await files.of(job(20, Array(20, 17)))
    assert slurm.count("/job/") == 0


GONE = "Invalid job id specified"
