"""What the feature asks and answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

LONGEST_KEY = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """A script, what it is to be given, and how Slurm is to run it.

    Values are Slurm's own, as `sbatch` takes them; what is empty is left to the script's
    `#SBATCH` lines and to Slurm.
    """

    script: str
    file: str = ""
    """What the script was called: its job is named after it if nothing else names it."""
    arguments: tuple[str, ...] = ()
    nodes: str = ""
    walltime: str = ""
    gpus: str = ""
    vcluster: str = ""
    project: str = ""
    name: str = ""
    array: str = ""
    depends_on: tuple[str, ...] = ()
    """`ID:success`, `ID:failure` or `ID:any`; all of them must hold."""
    labels: dict[str, str] = field(default_factory=dict)
    output: str = ""
    directory: str = ""
    directory_required: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Passed on to `sbatch` as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAnswer:
    """The allocation there now is. `repeated`: the key had made it before."""

    id: str
    job_id: int
    repeated: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """`cancelling`: Slurm was asked; else it had ended before, and how."""

    id: str
    cancelling: bool
    state: str
