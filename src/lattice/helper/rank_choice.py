"""Chooses the processes that do the work of a job's ranks. Pure.

A rank is often a tree: a shell that runs a launcher that runs the program that starts workers. The
program of each tree is chosen. Launchers and shells are skipped if a process of the same rank runs
below them. Processes that a program started are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_RANKS: Sequence[tuple[bytes, bytes]] = (
    (b"RANK", b"LOCAL_RANK"),
    (b"OMPI_COMM_WORLD_RANK", b""),
    (b"PMIX_RANK", b""),
    (b"SLURM_PROCID", b""),
)
"""A variable, and another that must be set with it; the closest to the work comes first.

`torchrun` starts several ranks below one Slurm task, each with its own `RANK`.
"""
_LONGEST_RANK = 9
_DEEPEST = 64
_SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "slurm_script", "busybox"),
        *("env", "time", "timeout", "numactl", "taskset", "nice", "nohup", "stdbuf", "tee"),
        *("apptainer", "singularity", "starter", "starter-suid", "appinit", "sinit", "enroot"),
        *("tini", "dumb-init", "conda", "uv", "poetry", "torchrun", "accelerate", "deepspeed"),
    }
)
_LAUNCHERS = frozenset(
    {
        *("srun", "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr", "slurmstepd", "sattach"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One process, with the fields that the choice needs."""

    pid: int
    parent: int
    started: int
    name: str
    step: str
    rank: int | None = None
    near: int = len(_RANKS)
    """The index in `_RANKS` of the variable that gave the rank; the least is the closest to the
    work.
    """


def rank_of(environment: Mapping[bytes, bytes]) -> tuple[int | None, int]:
    """The rank from an environment, and the index of its variable in `_RANKS`."""
    for near, (name, beside) in enumerate(_RANKS):
        told = environment.get(name, b"")
        if told.isdigit() and len(told) <= _LONGEST_RANK and (not beside or beside in environment):
            return int(told), near
    return None, len(_RANKS)


def workers(processes: Iterable[Candidate]) -> list[Candidate]:
    """The processes that do the work, by rank."""
    every = {each.pid: each for each in processes}
    launching = _launching(every)
    children: dict[tuple[int, int | None, int], list[Candidate]] = {}
    tops: list[Candidate] = []
    for each in every.values():
        if each.pid in launching:
            continue
        parent = every.get(each.parent)
        if parent is not None and _kin(parent) == _kin(each) and parent.pid not in launching:
            children.setdefault((parent.pid, each.rank, each.near), []).append(each)
        else:
            tops.append(each)
    found: list[Candidate] = []
    seen: set[int] = set()
    while tops:
        each = tops.pop()
        if each.pid in seen:
            continue
        seen.add(each.pid)
        below = children.get((each.pid, each.rank, each.near), [])
        if below and each.name in _SHELLS | _LAUNCHERS:
            tops += below
        elif each.name not in _LAUNCHERS:
            found.append(each)
    if any(each.step.isdigit() for each in found):
        # The batch script only waits for them.
        found = [each for each in found if each.step.isdigit() or each.name not in _SHELLS]
    return sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.pid))


def _kin(process: Candidate) -> tuple[str, int | None, int]:
    return process.step, process.rank, process.near


def _launching(every: Mapping[int, Candidate]) -> set[int]:
    """The pids of processes that have a descendant with a rank closer to the work."""
    nearest: dict[int, int] = {}
    for each in every.values():
        above, steps = every.get(each.parent), 0
        while above is not None and steps < _DEEPEST:
            nearest[above.pid] = min(nearest.get(above.pid, each.near), each.near)
            above, steps = every.get(above.parent), steps + 1
    return {pid for pid, near in nearest.items() if near < every[pid].near}
