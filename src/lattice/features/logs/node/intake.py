"""The port to the server's intake, on the node's side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lattice.domain.job_seal import JobSeal
from lattice.domain.logs import LogKind, LogSource
from lattice.features.logs.node.spool import StoredChunk
from lattice.wire.v1 import logs_pb2 as pb


@dataclass(frozen=True, slots=True)
class OutputAdmission:
    """The server's answer about a job's output: the grant, and what is stored already."""

    grant: str
    path: str = ""
    stored: Mapping[tuple[LogKind, LogSource], StoredChunk] = field(default_factory=dict)
    since_ms: int = 0
    until_ms: int = 0
    """For noted files: the range of their writers' start times, as the grant has it."""
    seal: JobSeal | None = None
    """What seals the output; None if the job is not sensitive."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ran on this node and is over. Times are Unix seconds."""

    job_id: int
    started: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class PastJobs:
    """Jobs that are over; `complete` is False while a part of Slurm does not answer."""

    jobs: tuple[PastJob, ...]
    complete: bool = True


class Intake(Protocol):
    """The intake of the linked replica. Every method raises `LatticeError`."""

    async def admit(
        self,
        job_id: int,
        started: float,
        pids: Sequence[int],
        *,
        kind: LogKind = LogKind.STDOUT,
        with_stored: bool = False,
    ) -> OutputAdmission:
        """Request a grant. Without `pids` it is for the file of that kind that Slurm names."""

    async def admit_noted(
        self,
        job_id: int,
        started: float,
        *,
        until: float = 0.0,
        skip: int = 0,
        with_stored: bool = False,
    ) -> OutputAdmission:
        """Request a grant for noted files. `until`: when the job ended here; 0: unknown."""

    async def seal_of(self, job_id: int, started: float) -> JobSeal | None:
        """What seals the output of a job; None if it is not sensitive."""

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        """Store a chunk; returns its number in the store."""

    async def past_jobs(self, since: float) -> PastJobs:
        """The jobs that ended on this node since a time (Unix seconds)."""
