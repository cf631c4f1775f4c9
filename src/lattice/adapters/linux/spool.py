"""Slurm's spool folder on a node: the sockets of its slurmstepds, a second sign of steps.

It tells the moment, also where control groups don't. Which jobs there are it says only where
Slurm keeps no control groups at all: then there are steps, but no tasks and no processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lattice.adapters.linux.naming import socket_of
from lattice.domain.nodejobs import JobIdentity, NodeJob, NodeStep, StartSign, StepId

_Found = tuple[float, int, StepId]


def read_spool(
    folder: Path, boot_id: str, booted: float, before: Mapping[int, NodeJob]
) -> tuple[NodeJob, ...]:
    """The jobs that have a socket. Sockets from before the boot are what a crash left."""
    sockets: dict[int, list[_Found]] = {}
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return ()
    for entry in entries:
        socket = socket_of(entry.name)
        if socket is None or socket.job.job_id is None:
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if found.st_mtime >= booted:
            each = (found.st_mtime, found.st_ino, socket.step)
            sockets.setdefault(socket.job.job_id, []).append(each)
    return tuple(
        _job(job_id, found, boot_id, before.get(job_id)) for job_id, found in sockets.items()
    )


def _job(job_id: int, found: list[_Found], boot_id: str, before: NodeJob | None) -> NodeJob:
    made, inode, _ = min(found, key=lambda each: each[:2])
    # The first socket goes with its step; the job keeps the name it had.
    identity = before.identity if before else JobIdentity(boot_id, job_id, inode, made)
    steps = sorted({step for _, _, step in found}, key=lambda step: step.order)
    return NodeJob(
        identity=identity,
        started_by=StartSign.FOLDER,
        steps=tuple(NodeStep(step) for step in steps),
    )
