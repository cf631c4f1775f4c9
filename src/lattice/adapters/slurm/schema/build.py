"""Builds domain objects from the facts of a record: the common part of all schema versions.

Pure. It handles Slurm's conventions. A running job's end time is only expected, and so is a waiting
job's start time. An array's waiting tasks are one record. A requeued job's submit time is that of
the requeue.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from lattice.adapters.slurm.gres import gpus_of
from lattice.adapters.slurm.reasons import ending_reason, reason_of
from lattice.adapters.slurm.schema import PastRow, fields
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import (
    Allocation,
    Array,
    ExitCode,
    Heterogeneous,
    Reason,
    State,
)
from lattice.domain.node import Node, NodeState

_NO_REASON = "None"
_NO_NODES = "None assigned"
_SUCCESS = ExitCode(0)


class JobFacts(msgspec.Struct, kw_only=True, gc=False):
    """A job's record in plain values: seconds, minutes, Slurm's words. None means "not known"."""

    job_id: int | None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    state: State = State.UNKNOWN
    requeueing: bool = False
    reason: str | None = None
    reason_text: str | None = None
    submit: int | None = None
    eligible: int | None = None
    start: int | None = None
    end: int | None = None
    limit_minutes: int | None = None
    suspend: int | None = None
    ran_before_suspend_s: int | None = None
    preempt: int | None = None
    nodes: str | None = None
    node_count: int | None = None
    tasks: int | None = None
    cpus: int | None = None
    tres: dict[str, str] = msgspec.field(default_factory=dict)
    exit_code: ExitCode | None = None
    restarts: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_waiting: str | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    work_dir: str | None = None
    command: str | None = None
    output: str | None = None
    comment: str | None = None
    container: str | None = None
    dependency: str | None = None
    gres_detail: list[str] = msgspec.field(default_factory=list)
    sluid: str | None = None


def live_of(facts: JobFacts, placing: Placing) -> Allocation | None:
    """A job from slurmctld, or None if it has no identity."""
    restarts = fields.count(facts.restarts) or 0
    # While the old run of a requeued job still completes, Slurm already counts the next one.
    attempt = restarts if facts.requeueing and restarts else restarts + 1
    return _allocation(facts, placing, attempt)


def past_of(facts: JobFacts, placing: Placing) -> PastRow | None:
    """An accounting row, or None if it has no identity."""
    # slurmdbd stores the reason of one moment; "None" there has no meaning.
    facts.reason = None if facts.reason == _NO_REASON else facts.reason
    facts.nodes = None if facts.nodes == _NO_NODES else facts.nodes
    allocation = _allocation(facts, placing, 1)
    return None if allocation is None else PastRow(allocation, fields.count(facts.restarts))


def plausible_exit(code: ExitCode | None, state: State) -> ExitCode | None:
    """The exit code, except the 0 that slurmrestd returns when it lost the real one."""
    if code == _SUCCESS and state is not State.COMPLETED:
        return None
    return code


def tres_of_list(
    entries: Iterable[tuple[str | None, str | None, int | None]],
) -> dict[str, str]:
    """The list (type, name, count) of slurmdbd in the format of slurmctld's strings."""
    return {
        f"{kind}/{name}" if name else kind: str(count)
        for kind, name, count in entries
        if kind and count is not None and count >= 0
    }


def _allocation(facts: JobFacts, placing: Placing, attempt: int) -> Allocation | None:
    job_id = fields.count(facts.job_id)
    submitted = fields.moment(facts.submit)
    if not job_id or job_id > fields.LARGEST_ID or submitted is None:
        return None
    state = facts.state
    account = fields.text(facts.account)
    partition = fields.text(facts.partition)
    qos = fields.text(facts.qos)
    nodes = fields.text(facts.nodes, fields.LIST_LIMIT)
    started, ended, expected = _times(facts, nodes)
    array = _array(facts)
    het = _heterogeneous(facts)
    return Allocation(
        cluster=placing.cluster,
        id=_name(job_id, array, het),
        job_id=job_id,
        name=fields.text(facts.name),
        user=fields.text(facts.user),
        account=account,
        tenant=placing.tenant(account),
        partition=partition,
        qos=qos,
        vcluster=placing.vcluster(partition, qos),
        state=state,
        submitted=submitted,
        first_submitted=submitted if attempt == 1 else None,
        eligible=fields.moment(facts.eligible),
        started=started,
        ended=ended,
        expected_start=expected,
        elapsed_s=_elapsed(facts, started, ended),
        suspended_s=0 if state is State.SUSPENDED else _suspended(facts, started),
        time_limit_s=_limit(facts.limit_minutes),
        reason=_reason(facts),
        nodes=nodes,
        node_count=fields.count(facts.node_count) or 0,
        tasks=fields.count(facts.tasks),
        cpus=fields.count(facts.cpus),
        gpus=fields.gpus_in(facts.tres) if facts.tres else None,
        memory_bytes=fields.memory_bytes(facts.tres["mem"]) if "mem" in facts.tres else None,
        exit_code=facts.exit_code if state.finished or state is State.COMPLETING else None,
        attempt=attempt,
        array=array,
        heterogeneous=het,
        preempted_at=fields.moment(facts.preempt),
        work_dir=fields.text(facts.work_dir, fields.LIST_LIMIT),
        command=fields.text(facts.command, fields.LIST_LIMIT),
        output=_output(facts, array),
        comment=fields.text(facts.comment),
        container=fields.text(facts.container, fields.LIST_LIMIT),
        dependency=fields.text(facts.dependency),
        gpu_indices=gpus_of(nodes, facts.gres_detail) if facts.gres_detail else (),
        sluid=fields.sluid(facts.sluid),
    )


def _times(facts: JobFacts, nodes: str) -> tuple[datetime | None, datetime | None, datetime | None]:
    # started, ended, expected start. A REQUEUED accounting row is a run that ended.
    state = facts.state
    start = fields.moment(facts.start)
    over = state.finished or state in (State.COMPLETING, State.REQUEUED)
    ended = fields.moment(facts.end) if over else None
    if state.waiting and state is not State.REQUEUED:
        return None, None, start
    if over and not nodes:
        # Cancelled before it got nodes: Slurm then sets the start to the end.
        return None, ended, None
    return start, ended, None


def _elapsed(facts: JobFacts, started: datetime | None, ended: datetime | None) -> int | None:
    # Only while the time is fixed: for a running job the renderer computes it.
    if facts.state is State.SUSPENDED:
        return fields.count(facts.ran_before_suspend_s)
    if started is None or ended is None:
        return None
    ran_s = int((ended - started).total_seconds()) - _suspended(facts, started)
    return max(0, ran_s)


def _suspended(facts: JobFacts, started: datetime | None) -> int:
    # `suspend_time` is the last suspend or resume, `pre_sus_time` the run time until then.
    changed = fields.moment(facts.suspend)
    ran_s = fields.count(facts.ran_before_suspend_s)
    if started is None or changed is None or ran_s is None:
        return 0
    return max(0, int((changed - started).total_seconds()) - ran_s)


def _limit(minutes: int | None) -> int | None:
    known = fields.count(minutes)
    return known * 60 if known else None


def _reason(facts: JobFacts) -> Reason | None:
    code, description = fields.text(facts.reason), fields.text(facts.reason_text)
    if facts.state.waiting:
        return reason_of(code, description)
    return ending_reason(code, description) if facts.state.finished else None


def _array(facts: JobFacts) -> Array | None:
    job_id = fields.count(facts.array_job_id)
    if not job_id:
        return None
    task_id = fields.count(facts.array_task_id)
    waiting = fields.text(facts.array_waiting, fields.LIST_LIMIT) if task_id is None else ""
    return Array(job_id, task_id, waiting)


def _heterogeneous(facts: JobFacts) -> Heterogeneous | None:
    job_id = fields.count(facts.het_job_id)
    return Heterogeneous(job_id, fields.count(facts.het_offset) or 0) if job_id else None


def _output(facts: JobFacts, array: Array | None) -> str:
    # The record of an array's waiting tasks names no file that any of them writes.
    if array is not None and array.task_id is None:
        return ""
    return fields.text(facts.output, fields.LIST_LIMIT)


def _name(job_id: int, array: Array | None, het: Heterogeneous | None) -> str:
    if array is not None:
        return f"{array.job_id}" if array.task_id is None else f"{array.job_id}_{array.task_id}"
    return f"{het.job_id}+{het.offset}" if het is not None else str(job_id)


class SlurmNodeFacts(msgspec.Struct, kw_only=True, gc=False):
    """A node's record in plain values; memory in mebibytes, as in Slurm."""

    name: str | None
    states: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int | None = None
    cpus_allocated: int | None = None
    memory_mib: int | None = None
    memory_allocated_mib: int | None = None
    tres: str | None = None
    tres_used: str | None = None
    reason: str | None = None
    reason_by: str | None = None
    reason_at: int | None = None
    version: str | None = None
    booted: int | None = None


def node_of(facts: SlurmNodeFacts) -> Node | None:
    """A node, or None if it has no name."""
    name = fields.text(facts.name)
    if not name:
        return None
    states = tuple(fields.text(state, 64).lower() for state in facts.states[:32])
    return Node(
        name=name,
        state=node_state(states),
        slurm_state="+".join(states) or "unknown",
        partitions=tuple(fields.text(each) for each in facts.partitions),
        cpus=fields.count(facts.cpus) or 0,
        cpus_allocated=fields.count(facts.cpus_allocated) or 0,
        memory_bytes=(fields.count(facts.memory_mib) or 0) * 2**20,
        memory_allocated_bytes=(fields.count(facts.memory_allocated_mib) or 0) * 2**20,
        gpus=fields.gpus_in(fields.tres_of(facts.tres)),
        gpus_allocated=fields.gpus_in(fields.tres_of(facts.tres_used)),
        reason=fields.text(facts.reason),
        reason_by=fields.text(facts.reason_by),
        reason_at=fields.moment(facts.reason_at),
        slurm_version=fields.text(facts.version),
        booted=fields.moment(facts.booted),
    )


_BASE_READY = frozenset({"idle", "mixed", "allocated", "planned"})
_BUSY = frozenset({"mixed", "allocated", "completing"})


def node_state(states: tuple[str, ...]) -> NodeState:
    """Maps Slurm's base state and flags to one state. Not responding is not yet down."""
    have = set(states)
    if have & {"down", "error", "fail", "failing"}:
        return NodeState.DOWN
    if have & {"drain", "draining", "drained"}:
        return NodeState.DRAINING if have & _BUSY else NodeState.DRAINED
    if "not_responding" in have or not have & _BASE_READY:
        return NodeState.UNKNOWN
    return NodeState.READY
