"""The requests and answers of the feature: pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from lattice.base.call import IDEMPOTENCY_KEY, KEY_OPTIONAL
from lattice.base.errors import UsageError
from lattice.base.operation import FieldRule
from lattice.domain.request_fields import Repeated

LONGEST_KEY = 255


def checked_key(key: str) -> str:
    """A key that a header can carry. Raises `UsageError`."""
    if not (key.isascii() and key.isprintable()):
        raise UsageError("The idempotency key is not valid.", hint="Use printable ASCII.")
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """A script, its arguments, and how Slurm runs it.

    Values are those that `sbatch` takes. Empty values are left to the script's `#SBATCH` lines and
    to Slurm.
    """

    script: str
    file: str = ""
    """The name of the script: the job has this name if nothing else names it."""
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
    """Passed on to `sbatch` unchanged."""
    uenv: str = ""
    """Images that the site's plugin mounts for the whole job."""
    view: str = ""
    tools_uenv: str = ""
    idempotency_key: Annotated[
        str, FieldRule(name=IDEMPOTENCY_KEY, longest=LONGEST_KEY, header=True, check=checked_key)
    ] = ""
    key_optional: Annotated[bool, FieldRule(name=KEY_OPTIONAL, header=True)] = False
    """True: without the state store the job is submitted anyway."""
    repeated: Repeated = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAnswer:
    """The allocation. `repeated`: an earlier call with the key submitted it."""

    id: str
    job_id: int
    repeated: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """`cancelling`: Slurm got the request. Else it had ended before, in `state`."""

    id: str
    cancelling: bool
    state: str
