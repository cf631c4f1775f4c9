"""Decodes the records of all schema versions: v0.0.38 (Slurm 22.05) to v0.0.45 (26.05).

In v0.0.38 numbers are plain, a job's state is one word, and exit codes are raw wait status. From
v0.0.39 on Slurm writes optional numbers as `{"set", "infinite", "number"}`, more fields with each
version. From v0.0.40 on states are lists (a base state and flags), and exit codes are objects. The
parsers here accept either format. So a field may change its format in a point release.

A decoder turns one raw record into one domain object, or None if the record has no identity. It
never raises: a missing field or a field of a wrong type affects only that field.
"""

from __future__ import annotations

import msgspec

from lattice.adapters.slurm.schema import (
    AccountRow,
    AssociationRow,
    JobOutputs,
    PastRow,
    Raw,
    fields,
)
from lattice.adapters.slurm.schema.build import (
    JobFacts,
    SlurmNodeFacts,
    live_of,
    node_of,
    past_of,
    plausible_exit,
    tres_of_list,
)
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation, ExitCode
from lattice.domain.node import Node
from lattice.domain.outputs import named_outputs


class _Number(msgspec.Struct):
    set: bool = False
    infinite: bool = False
    number: int | float | None = None


_Count = int | _Number | None
_Names = str | list[str] | None


def _value(found: _Count) -> int | None:
    if not isinstance(found, _Number):
        return found
    if not found.set or found.infinite or found.number is None:
        return None
    return int(found.number) if abs(found.number) < 2**63 else None


def _names(found: _Names) -> list[str]:
    return [found] if isinstance(found, str) else found or []


class _Signal(msgspec.Struct):
    id: _Count = None
    signal_id: _Count = None


class _Exit(msgspec.Struct):
    set: bool = False
    number: int | None = None
    return_code: _Count = None
    signal: _Signal | None = None


def _exit(found: int | _Exit | None) -> ExitCode | None:
    if found is None or isinstance(found, int):
        return fields.wait_status(found)
    if found.set:
        return fields.wait_status(found.number)
    signal = _value(found.signal.id or found.signal.signal_id) if found.signal else None
    if signal and 0 < signal < 128:
        return ExitCode(0, signal)
    code = _value(found.return_code)
    return ExitCode(code) if code is not None and 0 <= code <= 255 else None


class _Step(msgspec.Struct):
    sluid: str | None = None


class _Job(msgspec.Struct):
    job_id: _Count = None
    name: str | None = None
    user_name: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    job_state: _Names = None
    state_reason: str | None = None
    state_description: str | None = None
    submit_time: _Count = None
    eligible_time: _Count = None
    start_time: _Count = None
    end_time: _Count = None
    suspend_time: _Count = None
    pre_sus_time: _Count = None
    preempt_time: _Count = None
    time_limit: _Count = None
    nodes: str | None = None
    node_count: _Count = None
    tasks: _Count = None
    cpus: _Count = None
    tres_req_str: str | None = None
    tres_alloc_str: str | None = None
    exit_code: int | _Exit | None = None
    restart_cnt: _Count = None
    array_job_id: _Count = None
    array_task_id: _Count = None
    array_task_string: str | None = None
    het_job_id: _Count = None
    het_job_offset: _Count = None
    current_working_directory: str | None = None
    command: str | None = None
    standard_output: str | None = None
    stdout_expanded: str | None = None
    stderr_expanded: str | None = None
    batch_host: str | None = None
    comment: str | None = None
    container: str | None = None
    dependency: str | None = None
    gres_detail: list[str] | None = None
    step_id: _Step | None = None


class _Time(msgspec.Struct):
    submission: _Count = None
    eligible: _Count = None
    start: _Count = None
    end: _Count = None
    limit: _Count = None


class _State(msgspec.Struct):
    current: _Names = None
    reason: str | None = None


class _Array(msgspec.Struct):
    job_id: _Count = None
    task_id: _Count = None
    task: str | None = None


class _Het(msgspec.Struct):
    job_id: _Count = None
    job_offset: _Count = None


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
    job_id: _Count = None
    cluster: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    nodes: str | None = None
    allocation_nodes: _Count = None
    working_directory: str | None = None
    stdout: str | None = None
    stdout_expanded: str | None = None
    restart_cnt: _Count = None
    state: _State | None = None
    time: _Time | None = None
    exit_code: int | _Exit | None = None
    array: _Array | None = None
    het: _Het | None = None
    tres: _TresLists | None = None
    comment: _Comment | None = None
    container: str | None = None
    sluid: str | None = None
    original_sluid: str | None = None


class _Node(msgspec.Struct):
    name: str | None = None
    state: _Names = None
    state_flags: _Names = None
    partitions: _Names = None
    cpus: _Count = None
    alloc_cpus: _Count = None
    real_memory: _Count = None
    alloc_memory: _Count = None
    tres: str | None = None
    tres_used: str | None = None
    reason: str | None = None
    reason_set_by_user: str | None = None
    reason_changed_at: _Count = None
    version: str | None = None
    slurmd_version: str | None = None
    boot_time: _Count = None


class _Named(msgspec.Struct):
    name: str | None = None


class _Account(msgspec.Struct):
    name: str | None = None
    coordinators: list[_Named] | None = None


class _Association(msgspec.Struct):
    account: str | None = None
    cluster: str | None = None
    user: str | None = None
    parent_account: str | None = None


_JOBS = msgspec.json.Decoder(_Job)
_PAST_JOBS = msgspec.json.Decoder(_PastJob)
_NODES = msgspec.json.Decoder(_Node)
_ACCOUNTS = msgspec.json.Decoder(_Account)
_ASSOCIATIONS = msgspec.json.Decoder(_Association)


class Schema:
    """Decodes the answers of one slurmrestd version; `version` is as in the path: `v0.0.39`."""

    def __init__(self, version: str) -> None:
        self.version = version

    def job(self, raw: Raw, placing: Placing) -> Allocation | None:
        """One record of slurmctld's job list."""
        job = fields.record(raw, _JOBS)
        return None if job is None else live_of(_live_facts(job), placing)

    def outputs(self, raw: Raw) -> JobOutputs | None:
        """The output files in one record of slurmctld's job list, from v0.0.43 on."""
        job = fields.record(raw, _JOBS)
        job_id = _value(job.job_id) if job is not None else None
        if job is None or not job_id:
            return None
        files = named_outputs(job.batch_host, job.stdout_expanded, job.stderr_expanded)
        return JobOutputs(job_id, files)

    def past_job(self, raw: Raw, placing: Placing) -> PastRow | None:
        """One record of slurmdbd's job list; None also for another cluster's."""
        job = fields.record(raw, _PAST_JOBS)
        if job is None or (job.cluster or placing.cluster) != placing.cluster:
            return None
        return past_of(_past_facts(job), placing)

    def node(self, raw: Raw) -> Node | None:
        """One node."""
        node = fields.record(raw, _NODES)
        return None if node is None else node_of(_node_facts(node))

    def account(self, raw: Raw) -> AccountRow | None:
        """One account."""
        account = fields.record(raw, _ACCOUNTS)
        if account is None or not account.name:
            return None
        names = (each.name for each in account.coordinators or ())
        return AccountRow(account.name, frozenset(name for name in names if name))

    def association(self, raw: Raw) -> AssociationRow | None:
        """One association."""
        row = fields.record(raw, _ASSOCIATIONS)
        if row is None or not row.account or not row.cluster:
            return None
        return AssociationRow(row.cluster, row.account, row.user or "", row.parent_account or "")


def known_schemas() -> tuple[Schema, ...]:
    """One decoder for each version that Lattice supports, oldest first."""
    return tuple(Schema(f"v0.0.{number}") for number in range(38, 46))


def _node_facts(node: _Node) -> SlurmNodeFacts:
    return SlurmNodeFacts(
        name=node.name,
        states=(*_names(node.state), *_names(node.state_flags)),
        partitions=tuple(_names(node.partitions)),
        cpus=_value(node.cpus),
        cpus_allocated=_value(node.alloc_cpus),
        memory_mib=_value(node.real_memory),
        memory_allocated_mib=_value(node.alloc_memory),
        tres=node.tres,
        tres_used=node.tres_used,
        reason=node.reason,
        reason_by=node.reason_set_by_user,
        reason_at=_value(node.reason_changed_at),
        version=node.version or node.slurmd_version,
        booted=_value(node.boot_time),
    )


def _live_facts(job: _Job) -> JobFacts:
    states = _names(job.job_state)
    return JobFacts(
        job_id=_value(job.job_id),
        name=job.name,
        user=job.user_name,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=fields.state_of(states),
        requeueing="PENDING" in states and "COMPLETING" in states,
        reason=job.state_reason,
        reason_text=job.state_description,
        submit=_value(job.submit_time),
        eligible=_value(job.eligible_time),
        start=_value(job.start_time),
        end=_value(job.end_time),
        limit_minutes=_value(job.time_limit),
        suspend=_value(job.suspend_time),
        ran_before_suspend_s=_value(job.pre_sus_time),
        preempt=_value(job.preempt_time),
        nodes=job.nodes,
        node_count=_value(job.node_count),
        tasks=_value(job.tasks),
        cpus=_value(job.cpus),
        tres=fields.tres_of(job.tres_alloc_str or job.tres_req_str),
        exit_code=_exit(job.exit_code),
        restarts=_value(job.restart_cnt),
        array_job_id=_value(job.array_job_id),
        array_task_id=_value(job.array_task_id),
        array_waiting=job.array_task_string,
        het_job_id=_value(job.het_job_id),
        het_offset=_value(job.het_job_offset),
        work_dir=job.current_working_directory,
        command=job.command,
        output=job.stdout_expanded or job.standard_output,
        comment=job.comment,
        container=job.container,
        dependency=job.dependency,
        gres_detail=job.gres_detail or [],
        sluid=job.step_id.sluid if job.step_id else None,
    )


def _past_facts(job: _PastJob) -> JobFacts:
    time = job.time or _Time()
    state = job.state or _State()
    array = job.array or _Array()
    het = job.het or _Het()
    shown = fields.state_of(_names(state.current))
    tres = job.tres or _TresLists()
    amounts = tres_of_list(
        (each.type, each.name, each.count) for each in tres.allocated or tres.requested or ()
    )
    return JobFacts(
        job_id=_value(job.job_id),
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=shown,
        reason=state.reason,
        submit=_value(time.submission),
        eligible=_value(time.eligible),
        start=_value(time.start),
        end=_value(time.end),
        limit_minutes=_value(time.limit),
        nodes=job.nodes,
        node_count=_value(job.allocation_nodes),
        cpus=fields.amount(amounts.get("cpu")),
        tres=amounts,
        exit_code=plausible_exit(_exit(job.exit_code), shown),
        restarts=_value(job.restart_cnt),
        array_job_id=_value(array.job_id),
        array_task_id=_value(array.task_id),
        het_job_id=_value(het.job_id),
        het_offset=_value(het.job_offset),
        work_dir=job.working_directory,
        output=job.stdout_expanded or job.stdout,
        comment=job.comment.job if job.comment else None,
        container=job.container,
        # A run that is resized gets another row with an id of its own.
        sluid=job.original_sluid or job.sluid,
    )
