"""The port to the server's side of the intake, as a node sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lattice.domain.logs import LogKind, LogSource
from lattice.features.logs.node.spool import Stored
from lattice.wire.v1 import logs_pb2 as pb


@dataclass(frozen=True, slots=True)
class Admission:
    """The server's word on a job's output: what opens it, and what of it is stored already."""

    grant: str
    path: str = ""
    stored: Mapping[tuple[LogKind, LogSource], Stored] = field(default_factory=dict)
    since_ms: int = 0
    until_ms: int = 0
    """Of noted files: the moments between which their writers began, as the grant has them."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ran on this node and is over."""

    job_id: int
    started: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class PastJobs:
    """Jobs that are over; not `complete` while a part of Slurm does not answer the server."""

    jobs: tuple[PastJob, ...]
    complete: bool = True


class Intake(Protocol):
    """Whichever replica the node is linked to. Every method raises `LatticeError`."""

    async def admit(
        self,
        job_id: int,
        started: float,
        pids: Sequence[int],
        *,
        kind: LogKind = LogKind.STDOUT,
        tell_stored: bool = False,
    ) -> Admission:
        """May this be read? Without `pids` it is the file of that kind that Slurm names."""

    async def admit_noted(
        self,
        job_id: int,
        started: float,
        *,
        until: float = 0.0,
        skip: int = 0,
        tell_stored: bool = False,
    ) -> Admission:
        """May that be read which was noted of the job? `until`: when it ended here; 0: unknown."""

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        """The number under which the chunk is stored now."""

    async def past_jobs(self, since: float) -> PastJobs:
        """Those that ended on this node since a moment."""
