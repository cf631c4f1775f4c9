"""One tolerant decoder for each schema version, and their common parts.

A decoder turns one raw record into one domain object, or None if the record has no identity. It
never raises: a missing field or a field of a wrong type affects only that field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation
from lattice.domain.node import Node

Raw = bytes | msgspec.Raw


@dataclass(frozen=True, slots=True)
class PastRow:
    """One accounting row: one run of a job. `restarts` is None if the schema does not have it."""

    allocation: Allocation
    restarts: int | None = None


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


class Schema(Protocol):
    """Decodes the answers of one slurmrestd version."""

    @property
    def version(self) -> str:
        """As in the path: `v0.0.38`."""

    def job(self, raw: Raw, placing: Placing) -> Allocation | None:
        """One record of slurmctld's job list."""

    def past_job(self, raw: Raw, placing: Placing) -> PastRow | None:
        """One record of slurmdbd's job list; None also for another cluster's."""

    def node(self, raw: Raw) -> Node | None:
        """One node."""

    def account(self, raw: Raw) -> AccountRow | None:
        """One account."""

    def association(self, raw: Raw) -> AssociationRow | None:
        """One association."""
