"""One tolerant decoder a schema version, and what they have in common.

A decoder turns one raw record into one domain object, or None where the record has no identity.
It never raises: a wrongly typed or missing field costs that field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from lattice.adapters.slurm.placing import Placing
from lattice.domain.allocation import Allocation
from lattice.domain.node import Node

Raw = bytes | msgspec.Raw


@dataclass(frozen=True, slots=True)
class PastRow:
    """One row of the accounting store: one run of a job. `restarts` is None where nobody says."""

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
    """What one version of slurmrestd's answers means."""

    @property
    def version(self) -> str:
        """As it stands in the path: `v0.0.38`."""

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
