"""The files of a job: from slurmrestd, or from what scontrol prints."""

from __future__ import annotations

import json

import pytest

from lattice.adapters.slurm.commands import CommandFailed
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.job_details import SlurmJobFiles, parse_outputs
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.logs import LogKind
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
    found = await files.of(2)
    assert (found.host, found.files) == ("n3", {LogKind.STDOUT: "/h/a_4.out"})
    slurm.serve("slurm", "job/3", answer)
    with pytest.raises(NotFound):
        await files.of(3)


async def test_a_job_that_slurmctld_has_removed_is_not_found() -> None:
    files, slurm, _ = files_of("v0.0.45")
    gone = {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}], "jobs": []}
    slurm.serve("slurm", "job/999", json.dumps(gone).encode(), 500)
    with pytest.raises(NotFound):
        await files.of(999)
    slurm.serve("slurm", "job/998", b'{"errors": [{"error_number": 7000}]}', 500)
    with pytest.raises(Unavailable):
        await files.of(998)


@pytest.mark.spec("LOG-2")
async def test_before_scontrol_prints_them() -> None:
    files, slurm, commands = files_of("v0.0.42")
    commands.job_text = SHOWN.format(out="/h/a.out", err="/h/a.out")
    assert (await files.of(20)).files == {LogKind.STDOUT: "/h/a.out"}
    assert slurm.count("/job/") == 0
    commands.failure = CommandFailed("scontrol failed with 1", "slurm_load_jobs error: " + GONE)
    with pytest.raises(NotFound):
        await files.of(20)


GONE = "Invalid job id specified"
