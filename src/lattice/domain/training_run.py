"""A training run in a run store such as MLflow, and which allocation it belongs to. Pure.

A run names its job itself, by the tags of `lattice-run`. Job ids are reused and several clusters
may write to one store, so cluster and time must fit as well. Nobody checks what a run says: who can
write to the store can make a run that names any job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from lattice.domain.allocation import Allocation
from lattice.domain.attempts import attempts_of
from lattice.domain.nodejobs import CLOCK_SLACK_S

JOB_TAG, CLUSTER_TAG = "slurm.job.id", "slurm.cluster.name"
SAVED_TAG, LOADED_TAG = "checkpoint.saved.sha256", "checkpoint.loaded.sha256"
"""What a training says of its checkpoints: SHA-256 sums, with spaces or commas between."""
MOST_CHECKSUMS = 20
RUN_STORE = "mlflow"
"""The name of the source in answers."""
MOST_RUNS = 100
MOST_RUN_METRICS = 50
MOST_PARAMETERS = 200
LONGEST_NAME = 250
RUNNING = "running"
_SLACK = timedelta(seconds=CLOCK_SLACK_S)
_SECOND = timedelta(seconds=1)
"""Slurm's times are whole seconds: an attempt ended within the second that its end names."""
_MOST_DIGITS = 9
_LONGEST_TAG = 8_000
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_BETWEEN = re.compile(r"[\s,;]+")


class RunStoreSilent(Exception):
    """The store did not answer, or its answer can't be used. The text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetric:
    """The newest value of one metric of a run."""

    name: str
    value: float
    step: int
    time: datetime


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One logged value of a metric."""

    time: datetime
    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTraining:
    """A run as its store has it."""

    id: str
    name: str
    experiment: str
    user: str
    """As the run says."""
    status: str
    """`running`, `finished`, `failed`, `killed` or `scheduled`, as the store says."""
    started: datetime
    ended: datetime | None
    tags: Mapping[str, str]
    metrics: tuple[RunMetric, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What the training was given, by name: `MOST_PARAMETERS` of them, without secrets."""

    @property
    def job_id(self) -> int | None:
        """The number of its Slurm job, if it names one."""
        text = self.tags.get(JOB_TAG, "")
        if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
            return None
        return int(text) or None

    @property
    def saved(self) -> tuple[str, ...]:
        """The checkpoints that it says it wrote."""
        return _checksums(self.tags.get(SAVED_TAG, ""))

    @property
    def loaded(self) -> tuple[str, ...]:
        """The checkpoints that it says it began with."""
        return _checksums(self.tags.get(LOADED_TAG, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run of an allocation."""

    id: str
    name: str
    experiment: str
    user: str
    status: str
    started: datetime
    ended: datetime | None
    allocation: str
    attempts: tuple[int, ...]
    """The attempts during which it ran: a run can be resumed after a requeue."""
    metrics: tuple[RunMetric, ...] = ()
    link: str = ""
    """Its page in the run store, if the site has one."""
    saved: tuple[str, ...] = ()
    """SHA-256 sums of the checkpoints that it says it wrote."""
    loaded: tuple[str, ...] = ()
    """Of those that it says it began with."""


class RunStore(Protocol):
    """Where trainings log their runs."""

    async def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        """Runs that name this job, newest first, `MOST_RUNS` at most. Raises `RunStoreSilent`."""

    async def named(self, name: str) -> tuple[StoredTraining, ...]:
        """Runs with this name or id, newest first. Raises `RunStoreSilent`."""

    async def with_checkpoint(self, tag: str, checksum: str) -> tuple[StoredTraining, ...]:
        """Runs that have the checksum in this tag, newest first. Raises `RunStoreSilent`."""

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        """What was logged of one metric, oldest first. Raises `RunStoreSilent`."""

    def link(self, run: StoredTraining) -> str:
        """The address of its page, or empty."""


def runs_of(
    allocation: Allocation,
    found: Collection[StoredTraining],
    now: datetime,
    store: RunStore | None = None,
) -> tuple[TrainingRun, ...]:
    """Those that belong to the allocation, in the given order. `store` names their pages."""
    return tuple(
        training_run(allocation, each, now, store.link(each) if store is not None else "")
        for each in found
        if belongs(allocation, each, now)
    )


def belongs(allocation: Allocation, run: StoredTraining, now: datetime) -> bool:
    """Return True if the run names this job, on this cluster, and began within its time."""
    if run.job_id != allocation.job_id:
        return False
    cluster = run.tags.get(CLUSTER_TAG, "")
    if cluster and cluster != allocation.cluster:
        return False
    first = allocation.first_submitted or allocation.submitted
    return first - _SLACK <= run.started <= (allocation.ended or now) + _SLACK


def training_run(
    allocation: Allocation, run: StoredTraining, now: datetime, link: str = ""
) -> TrainingRun:
    """The run as one of this allocation."""
    return TrainingRun(
        id=run.id,
        name=run.name,
        experiment=run.experiment,
        user=run.user,
        status=run.status,
        started=run.started,
        ended=run.ended,
        allocation=allocation.ref,
        attempts=_attempts(allocation, run, now),
        metrics=run.metrics,
        link=link,
        saved=run.saved,
        loaded=run.loaded,
    )


def is_checksum(text: str) -> bool:
    """Return True for a SHA-256 sum in lower case."""
    return _CHECKSUM.fullmatch(text) is not None


def _checksums(text: str) -> tuple[str, ...]:
    """The first `MOST_CHECKSUMS`. What is none is left out."""
    parts = (each.lower().removeprefix("sha256:") for each in _BETWEEN.split(text[:_LONGEST_TAG]))
    found = dict.fromkeys(each for each in parts if is_checksum(each))
    return tuple(found)[:MOST_CHECKSUMS]


def _attempts(allocation: Allocation, run: StoredTraining, now: datetime) -> tuple[int, ...]:
    """Those whose time the run's own overlaps. A killed run has no end, but maybe a last value."""
    last = max((each.time for each in run.metrics), default=run.started)
    until = run.ended or max(last, now if _may_go_on(allocation, run) else run.started)
    found = tuple(
        each.number
        for each in attempts_of(allocation)
        if each.started is not None
        and each.started - _SLACK <= until
        and (each.ended is None or run.started <= each.ended + _SLACK)
    )
    # Within the slack the end of one attempt and the start of the next are both near.
    inside = tuple(
        each.number
        for each in attempts_of(allocation)
        if each.number in found
        and each.started is not None
        and each.started <= until
        and (each.ended is None or run.started < each.ended + _SECOND)
    )
    return inside or found[:1]


def _may_go_on(allocation: Allocation, run: StoredTraining) -> bool:
    return run.status == RUNNING and not allocation.state.finished
