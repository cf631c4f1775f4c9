"""An allocation: one Slurm job with its attempts. Pure data and naming rules.

Real clusters reuse job ids, so an allocation is identified by cluster, job id and first submit
time. People write `12345`, an array task `12345_7`, a het component `12345+1`. If an id was used
twice, they write `12345@2026-11-01T10:00:00Z` (or `@` and seconds since 1970).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class State(StrEnum):
    """Slurm's job states, in the words that `squeue` uses."""

    PENDING = "pending"
    CONFIGURING = "configuring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    SIGNALING = "signaling"
    RESIZING = "resizing"
    STAGE_OUT = "stage_out"
    COMPLETING = "completing"
    REQUEUED = "requeued"
    REQUEUE_HOLD = "requeue_hold"
    SPECIAL_EXIT = "special_exit"
    RESV_DEL_HOLD = "resv_del_hold"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    BOOT_FAIL = "boot_fail"
    DEADLINE = "deadline"
    REVOKED = "revoked"
    UNKNOWN = "unknown"

    @property
    def finished(self) -> bool:
        """True when Slurm will not run this allocation again by itself."""
        return self in _FINISHED

    @property
    def waiting(self) -> bool:
        """True while it holds no nodes and may get some."""
        return self in _WAITING


_FINISHED = frozenset(
    {
        State.COMPLETED,
        State.FAILED,
        State.CANCELLED,
        State.TIMEOUT,
        State.NODE_FAIL,
        State.PREEMPTED,
        State.OUT_OF_MEMORY,
        State.BOOT_FAIL,
        State.DEADLINE,
        State.REVOKED,
    }
)
_WAITING = frozenset(
    {State.PENDING, State.REQUEUED, State.REQUEUE_HOLD, State.SPECIAL_EXIT, State.RESV_DEL_HOLD}
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why Slurm does not start an allocation: its code, and the meaning in words."""

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class ExitCode:
    """How the job's script ended: a return code, or the signal that ended it."""

    code: int
    signal: int = 0

    def __str__(self) -> str:
        return f"{self.code}:{self.signal}"


@dataclass(frozen=True, slots=True)
class Array:
    """Membership in a job array. `waiting` names the tasks that a pending record represents."""

    job_id: int
    task_id: int | None = None
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Heterogeneous:
    """Membership in a heterogeneous job."""

    job_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of an allocation; a requeue makes the next one."""

    number: int
    state: State
    submitted: datetime
    started: datetime | None = None
    ended: datetime | None = None
    nodes: str = ""
    node_count: int = 0
    exit_code: ExitCode | None = None
    sluid: str = ""
    """Slurm's own name of this run (SLUID), from 26.05 on."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of one node that Slurm gave a job, by Slurm's numbers (`IDX`)."""

    node: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All data of one allocation. `None` means unknown."""

    cluster: str
    id: str
    job_id: int
    name: str
    user: str
    account: str
    tenant: str
    partition: str
    qos: str
    vcluster: str | None
    state: State
    submitted: datetime
    first_submitted: datetime | None
    eligible: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    expected_start: datetime | None = None
    elapsed_s: int | None = None
    suspended_s: int = 0
    time_limit_s: int | None = None
    reason: Reason | None = None
    nodes: str = ""
    node_count: int = 0
    tasks: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    exit_code: ExitCode | None = None
    attempt: int = 1
    attempts: tuple[Attempt, ...] = ()
    array: Array | None = None
    heterogeneous: Heterogeneous | None = None
    preempted_at: datetime | None = None
    work_dir: str = ""
    command: str = ""
    output: str = ""
    comment: str = ""
    container: str = ""
    """The OCI bundle of `--container`. An image that a script starts itself is not known."""
    dependency: str = ""
    gpu_indices: tuple[NodeGpus, ...] = ()
    """Of the current run, for the nodes where Slurm reports them."""
    sluid: str = ""
    """Slurm's own name of the current run (SLUID), from 26.05 on. A requeue gives another."""

    def elapsed_at(self, now: datetime) -> int | None:
        """Seconds it has run: as reported, or else counted from its start."""
        if self.elapsed_s is not None or self.started is None:
            return self.elapsed_s
        ran = (self.ended or now) - self.started
        return max(0, int(ran.total_seconds()) - self.suspended_s)

    @property
    def ref(self) -> str:
        """The unambiguous name. Only the id while the first submit time is unknown."""
        if self.first_submitted is None:
            return self.id
        return f"{self.id}@{int(self.first_submitted.timestamp())}"


class BadReference(ValueError):
    """The text is no valid name of an allocation."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed name: which job, which part of it, and which use of the id."""

    job_id: int
    task_id: int | None = None
    offset: int | None = None
    submitted: datetime | None = None

    def __str__(self) -> str:
        text = str(self.job_id)
        if self.task_id is not None:
            text += f"_{self.task_id}"
        elif self.offset is not None:
            text += f"+{self.offset}"
        if self.submitted is not None:
            text += f"@{int(self.submitted.timestamp())}"
        return text

    def matches(self, allocation: Allocation) -> bool:
        """True if this name may mean that allocation."""
        if self.submitted is not None and allocation.first_submitted != self.submitted:
            return False
        if self.task_id is not None:
            array = allocation.array
            return (
                array is not None and array.job_id == self.job_id and array.task_id == self.task_id
            )
        if self.offset is not None:
            het = allocation.heterogeneous
            return het is not None and het.job_id == self.job_id and het.offset == self.offset
        if allocation.array is not None and allocation.array.job_id == self.job_id:
            return True
        if allocation.heterogeneous is not None and allocation.heterogeneous.job_id == self.job_id:
            return True
        return allocation.job_id == self.job_id


REFERENCE_HINT = "Use 12345, 12345_7, 12345+1, or 12345@SUBMIT_TIME."

# Slurm's ids end at 2**26; nine digits leave room and bound every number.
_MOST_DIGITS = 9
REFERENCE_PATTERN = r"^[1-9][0-9]{0,8}([_+][0-9]{1,9})?(@[0-9]{1,11})?$"
"""The form of `str(parse_reference(text))`, in which a name crosses the wire."""


def parse_reference(text: str) -> Reference:
    """Parse `12345`, `12345_7`, `12345+1`, each with an optional `@submit time`.

    Raises `BadReference`.
    """
    name, at, moment = text.strip().partition("@")
    submitted = _moment(moment, text) if at else None
    for mark in ("_", "+"):
        job, found, part = name.partition(mark)
        if found:
            number = _number(part, text)
            return Reference(
                _number(job, text, least=1),
                task_id=number if mark == "_" else None,
                offset=number if mark == "+" else None,
                submitted=submitted,
            )
    return Reference(_number(name, text, least=1), submitted=submitted)


def _number(digits: str, text: str, *, least: int = 0) -> int:
    # isascii excludes other scripts' digits, which int() would accept.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
        raise BadReference(f"{text!r} is not an allocation id")
    number = int(digits)
    if number < least:
        raise BadReference(f"{text!r} is not an allocation id")
    return number


def _moment(value: str, text: str) -> datetime:
    try:
        if value.isascii() and value.isdigit() and len(value) <= 11:
            return datetime.fromtimestamp(int(value), UTC)
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadReference(f"{text!r} does not end in a submit time") from None
