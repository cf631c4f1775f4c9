"""The rows of `squeue`: every field, whatever users wrote into theirs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.schema.squeue import (
    USED_TIME_FORMAT,
    BadRows,
    SqueueFormat,
    job_of,
    task_ranges,
    used_times,
)
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation, Array, ExitCode, Heterogeneous, State
from lattice.domain.vcluster import Vclusters
from tests.fakes.recorded_slurm import RecordedCommands, running_job, squeue_job

PLACING = Placing("lab", AccountTree(), Vclusters())


async def read(jobs: Iterable[dict[str, str]]) -> list[Allocation]:
    commands = RecordedCommands()
    commands.jobs = list(jobs)
    form = SqueueFormat.new(with_sluid=True)
    printed = await commands.job_rows(form.environment, timeout_s=1)
    found = [job_of((row,), PLACING) for row in form.rows(printed)]
    return [each for each in found if each is not None]


@pytest.mark.spec("ALLOC-1")
async def test_a_running_job_has_its_fields() -> None:
    fields = {
        "tres-alloc": "cpu=2,mem=512M,node=2,gres/gpu=2",
        "NumNodes": "2",
        "NodeList": "n[1-2]",
    }
    (job,) = await read([running_job(7, SLUID="sDX9M7TQ0C0900", **fields)])
    assert (job.id, job.state, job.user, job.nodes) == ("7", State.RUNNING, "alice", "n[1-2]")
    assert job.started == datetime.fromtimestamp(1795119544, UTC)
    assert (job.ended, job.reason, job.array, job.comment) == (None, None, None, "")
    assert (job.node_count, job.gpus, job.memory_bytes) == (2, 2, 512 * 2**20)
    assert job.time_limit_s == (26 * 60 + 4) * 60
    assert job.sluid == "sDX9M7TQ0C0900"
    assert job.output == "/home/alice/slurm-7.out"


@pytest.mark.spec("ALLOC-2")
async def test_a_waiting_job_says_why() -> None:
    text = "ReqNodeNotAvail,_UnavailableNodes:n3"
    plain, described, held = await read(
        [squeue_job(1), squeue_job(2, Reason=text), squeue_job(3, Reason="JobHeldUser")]
    )
    assert plain.reason is not None
    assert plain.reason.code == "Priority"
    assert described.reason is not None
    assert described.reason.code == "ReqNodeNotAvail"
    assert described.reason.words.endswith(f"({text})")
    assert held.reason is not None
    assert held.reason.code == "JobHeldUser"


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("3:0", ExitCode(3)),
        ("0:9", ExitCode(0, 9)),
        ("768", ExitCode(3)),
        ("9", ExitCode(0, 9)),
        ("0:0", ExitCode(0)),
        ("999:0", None),
        ("N/A", None),
    ],
)
async def test_exit_codes_of_all_releases(printed: str, code: ExitCode | None) -> None:
    (job,) = await read(
        [running_job(1, State="FAILED", Reason="NonZeroExitCode", exit_code=printed)]
    )
    assert job.exit_code == code
    assert job.reason is not None


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [
        ("10:00", 600),
        ("02:00:00", 7200),
        ("365-00:00:00", 365 * 86400),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("x", None),
    ],
)
async def test_limits_of_time(printed: str, seconds: int | None) -> None:
    (job,) = await read([squeue_job(1, TimeLimit=printed)])
    assert job.time_limit_s == seconds


async def test_tasks_and_components_have_their_names() -> None:
    task, component = await read(
        [
            running_job(11, ArrayJobID="8", ArrayTaskID="7", STDOUT="slurm-%A_%a.out"),
            running_job(6, HetJobID="5", HetJobOffset="1"),
        ]
    )
    assert (task.id, task.array) == ("8_7", Array(8, 7))
    assert task.output == "/home/alice/slurm-8_7.out"
    assert (component.id, component.heterogeneous) == ("5+1", Heterogeneous(5, 1))


async def test_a_record_of_several_tasks_is_one_job() -> None:
    commands = RecordedCommands()
    commands.jobs = [squeue_job(8, ArrayTaskID=each) for each in ("1", "2", "3", "9")]
    form = SqueueFormat.new(with_sluid=False)
    printed = await commands.job_rows(form.environment, timeout_s=1)
    job = job_of(list(form.rows(printed)), PLACING)
    assert job is not None
    assert (job.id, job.array, job.output) == ("8", Array(8, None, "1-3,9"), "")


async def test_the_last_waiting_task_has_no_record_of_its_own() -> None:
    last, again = await read(
        [squeue_job(8, ArrayTaskID="9"), squeue_job(9, ArrayTaskID="9", RestartCnt="1")]
    )
    assert (last.id, last.array) == ("8", Array(8, None, "9"))
    assert (again.id, again.attempt) == ("9_9", 2)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("/scratch/%u/%x-%A.log", "/scratch/alice/wrap-7.log"),
        ("out-%j-%%.txt", "/home/alice/out-7-%.txt"),
        ("rank-%t.txt", ""),
        ("/home/alice/slurm-7.out", ""),
        ("(null)", ""),
    ],
)
async def test_output_is_expanded_or_unknown(pattern: str, shown: str) -> None:
    (job,) = await read([running_job(7, STDOUT=pattern)])
    assert job.output == shown


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@pytest.mark.threat("job-text")
@given(
    names=st.lists(st.one_of(TEXTS, st.sampled_from(["a|b", "x\n7|N/A|7", "|" * 40])), min_size=1),
    comment=TEXTS,
)
async def test_no_text_of_a_user_makes_up_a_job_or_changes_one(
    names: list[str], comment: str
) -> None:
    jobs = [squeue_job(number, Name=name, Comment=comment) for number, name in enumerate(names, 1)]
    found = await read(jobs)
    assert [each.job_id for each in found] == list(range(1, len(names) + 1))
    assert [each.name for each in found] == ["" if name == "(null)" else name for name in names]
    assert {each.user for each in found} == {"alice"}


def test_marks_are_new_for_each_reading_and_no_part_of_a_width() -> None:
    forms = [SqueueFormat.new(with_sluid=True) for _ in range(50)]
    marks = {mark for each in forms for mark in (each.field_mark, each.row_mark)}
    assert len(marks) == 100
    assert not any(mark[0].isdigit() for mark in marks)


def test_other_output_is_refused() -> None:
    form = SqueueFormat.new(with_sluid=True)
    with pytest.raises(BadRows):
        list(form.rows(b"slurm_load_jobs error: Unable to contact slurm controller\n"))
    assert list(form.rows(b"")) == []


async def test_a_cut_output_is_refused() -> None:
    commands = RecordedCommands()
    commands.jobs = [squeue_job(1), squeue_job(2)]
    form = SqueueFormat.new(with_sluid=True)
    printed = await commands.job_rows(form.environment, timeout_s=1)
    with pytest.raises(BadRows):
        list(form.rows(printed[:-30]))


@pytest.mark.parametrize(
    "row", [b"", b"7", b"|||", b"7|\0\0", b"\xff" * 50, b"|" * 30 + b"\0" * 12]
)
def test_a_malformed_row_is_no_job(row: bytes) -> None:
    assert job_of((row,), PLACING) is None


def test_task_ranges() -> None:
    assert task_ranges([]) == ""
    assert task_ranges([5]) == "5"
    assert task_ranges([3, 1, 2, 9, 7, 8]) == "1-3,7-9"


async def test_the_time_that_jobs_have_used() -> None:
    commands = RecordedCommands()
    commands.jobs = [running_job(1, TimeUsed="1-00:00:05"), running_job(2, TimeUsed="3:04")]
    printed = await commands.job_rows(USED_TIME_FORMAT, timeout_s=1, states="running")
    assert list(used_times(printed + b"garbage\n|\n3|INVALID\n")) == [(1, 86405), (2, 184)]
