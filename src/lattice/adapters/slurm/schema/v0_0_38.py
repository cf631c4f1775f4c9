"""Schema v0.0.38 (Slurm 22.05), as recorded from a real one.

Numbers are plain, with null for "not set". A job's state is one word. Exit codes are raw wait
status. The accounting side returns `SUCCESS` and 0 for jobs that failed. So a 0 is trusted only for
jobs that completed.
"""

from __future__ import annotations

import msgspec

from lattice.adapters.slurm.schema import PastRow, Raw, fields
from lattice.adapters.slurm.schema.build import (
    JobFacts,
    SlurmNodeFacts,
    live_of,
    node_of,
    past_of,
    plausible_exit,
    tres_of_list,
)
from lattice.adapters.slurm.schema.people import PeopleSchema
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation, ExitCode
from lattice.domain.node import Node


class _Job(msgspec.Struct):
    job_id: int | None = None
    name: str | None = None
    user_name: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    job_state: str | None = None
    state_reason: str | None = None
    state_description: str | None = None
    submit_time: int | None = None
    eligible_time: int | None = None
    start_time: int | None = None
    end_time: int | None = None
    suspend_time: int | None = None
    pre_sus_time: int | None = None
    preempt_time: int | None = None
    time_limit: int | None = None
    nodes: str | None = None
    node_count: int | None = None
    tasks: int | None = None
    cpus: int | None = None
    tres_req_str: str | None = None
    tres_alloc_str: str | None = None
    exit_code: int | None = None
    restart_cnt: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_task_string: str | None = None
    het_job_id: int | None = None
    het_job_offset: int | None = None
    current_working_directory: str | None = None
    command: str | None = None
    standard_output: str | None = None
    comment: str | None = None
    container: str | None = None
    dependency: str | None = None
    gres_detail: list[str] | None = None


class _Time(msgspec.Struct):
    submission: int | None = None
    eligible: int | None = None
    start: int | None = None
    end: int | None = None
    elapsed: int | None = None
    limit: int | None = None


class _State(msgspec.Struct):
    current: str | None = None
    reason: str | None = None


class _Signal(msgspec.Struct):
    signal_id: int | None = None


class _Exit(msgspec.Struct):
    return_code: int | None = None
    signal: _Signal | None = None


class _PastArray(msgspec.Struct):
    job_id: int | None = None
    task_id: int | None = None


class _PastHet(msgspec.Struct):
    job_id: int | None = None
    job_offset: int | None = None


class _Tres(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    count: int | None = None


class _TresLists(msgspec.Struct):
    allocated: list[_Tres] | None = None
    requested: list[_Tres] | None = None


class _Comment(msgspec.Struct):
    job: str | None = None


class _PastJob(msgspec.Struct):
    job_id: int | None = None
    cluster: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    nodes: str | None = None
    allocation_nodes: int | None = None
    working_directory: str | None = None
    state: _State | None = None
    time: _Time | None = None
    exit_code: _Exit | None = None
    array: _PastArray | None = None
    het: _PastHet | None = None
    tres: _TresLists | None = None
    comment: _Comment | None = None
    container: str | None = None


class _Node(msgspec.Struct):
    name: str | None = None
    state: str | None = None
    state_flags: list[str] | None = None
    partitions: list[str] | None = None
    cpus: int | None = None
    alloc_cpus: int | None = None
    real_memory: int | None = None
    alloc_memory: int | None = None
    tres: str | None = None
    tres_used: str | None = None
    reason: str | None = None
    reason_set_by_user: str | None = None
    reason_changed_at: int | None = None
    slurmd_version: str | None = None
    boot_time: int | None = None


_JOBS = msgspec.json.Decoder(_Job)
_PAST_JOBS = msgspec.json.Decoder(_PastJob)
_NODES = msgspec.json.Decoder(_Node)


class SchemaV0038(PeopleSchema):
    """Slurm 22.05."""

    version = "v0.0.38"

    def job(self, raw: Raw, placing: Placing) -> Allocation | None:
        """One record of slurmctld's job list."""
        job = fields.record(raw, _JOBS)
        return None if job is None else live_of(_live_facts(job), placing)

    def past_job(self, raw: Raw, placing: Placing) -> PastRow | None:
        """One record of slurmdbd's job list."""
        job = fields.record(raw, _PAST_JOBS)
        if job is None or (job.cluster or placing.cluster) != placing.cluster:
            return None
        return past_of(_past_facts(job), placing)

    def node(self, raw: Raw) -> Node | None:
        """One node."""
        node = fields.record(raw, _NODES)
        if node is None:
            return None
        return node_of(
            SlurmNodeFacts(
                name=node.name,
                words=(node.state or "", *(node.state_flags or ())),
                partitions=tuple(node.partitions or ()),
                cpus=node.cpus,
                cpus_allocated=node.alloc_cpus,
                memory_mib=node.real_memory,
                memory_allocated_mib=node.alloc_memory,
                tres=node.tres,
                tres_used=node.tres_used,
                reason=node.reason,
                reason_by=node.reason_set_by_user,
                reason_at=node.reason_changed_at,
                version=node.slurmd_version,
                booted=node.boot_time,
            )
        )


def _live_facts(job: _Job) -> JobFacts:
    return JobFacts(
        job_id=job.job_id,
        name=job.name,
        user=job.user_name,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=fields.state_of(job.job_state),
        reason=job.state_reason,
        reason_text=job.state_description,
        submit=job.submit_time,
        eligible=job.eligible_time,
        start=job.start_time,
        end=job.end_time,
        limit_minutes=job.time_limit,
        suspend=job.suspend_time,
        ran_before_suspend_s=job.pre_sus_time,
        preempt=job.preempt_time,
        nodes=job.nodes,
        node_count=job.node_count,
        tasks=job.tasks,
        cpus=job.cpus,
        tres=fields.tres_of(job.tres_alloc_str or job.tres_req_str),
        exit_code=fields.wait_status(job.exit_code),
        restarts=job.restart_cnt,
        array_job_id=job.array_job_id,
        array_task_id=job.array_task_id,
        array_waiting=job.array_task_string,
        het_job_id=job.het_job_id,
        het_offset=job.het_job_offset,
        work_dir=job.current_working_directory,
        command=job.command,
        output=job.standard_output,
        comment=job.comment,
        container=job.container,
        dependency=job.dependency,
        gres_detail=job.gres_detail or [],
    )


def _past_facts(job: _PastJob) -> JobFacts:
    time = job.time or _Time()
    state = job.state or _State()
    array = job.array or _PastArray()
    het = job.het or _PastHet()
    shown = fields.state_of(state.current)
    lists = job.tres or _TresLists()
    tres = tres_of_list(
        (each.type, each.name, each.count) for each in lists.allocated or lists.requested or ()
    )
    return JobFacts(
        job_id=job.job_id,
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=shown,
        reason=state.reason,
        submit=time.submission,
        eligible=time.eligible,
        start=time.start,
        end=time.end,
        limit_minutes=time.limit,
        nodes=job.nodes,
        node_count=job.allocation_nodes,
        cpus=fields.amount(tres.get("cpu")),
        tres=tres,
        exit_code=plausible_exit(_exit(job.exit_code), shown),
        array_job_id=array.job_id,
        array_task_id=array.task_id,
        het_job_id=het.job_id,
        het_offset=het.job_offset,
        work_dir=job.working_directory,
        comment=job.comment.job if job.comment else None,
        container=job.container,
    )


def _exit(code: _Exit | None) -> ExitCode | None:
    if code is None:
        return None
    if code.signal and code.signal.signal_id and 0 < code.signal.signal_id < 128:
        return ExitCode(0, code.signal.signal_id)
    if code.return_code is None or not 0 <= code.return_code <= 255:
        return None
    return ExitCode(code.return_code)
