"""The rows of slurmdbd that are no domain objects.

decoder.py  One tolerant decoder for all schema versions.
build.py    Builds domain objects from the facts of a record.
fields.py   Parsers of single fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lattice.domain.allocation import Allocation
from lattice.domain.outputs import NamedOutputs

Raw = bytes | msgspec.Raw


@dataclass(frozen=True, slots=True)
class PastRow:
    """One accounting row: one run of a job. `restarts` is None if the schema does not have it."""

    allocation: Allocation
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class JobOutputs:
    """The output files of one job."""

    job_id: int
    outputs: NamedOutputs


@dataclass(frozen=True, slots=True)
class AccountRow:
    """An account and its coordinators."""

    name: str
    coordinators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AssociationRow:
    """An account under its parent (then `user` is empty), or a user in an account."""

    cluster: str
    account: str
    user: str = ""
    parent: str = ""
