"""Limits of accounts in the scheduler, and the port to read and set them. Pure.

A tenant is a top account. The scheduler keeps its limits and enforces them; Lattice stores none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

NO_LIMIT = -1
"""In a change: take the limit away."""
MOST = 10_000_000
"""The largest limit that can be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """What all work below an account may have at once. `None`: the account has no such limit."""

    max_nodes: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None
    """Jobs that run; more may wait."""

    def changed(self, change: LimitChange) -> AccountLimits:
        """The limits after a change."""
        after = {}
        for each in fields(change):
            wanted = getattr(change, each.name)
            if wanted is None:
                wanted = getattr(self, each.name)
            after[each.name] = None if wanted == NO_LIMIT else wanted
        return AccountLimits(**after)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """What to set. `None` leaves a limit as it is, `NO_LIMIT` takes it away."""

    max_nodes: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None

    @property
    def empty(self) -> bool:
        return self == LimitChange()

    @property
    def sound(self) -> bool:
        """True if every number is one that can be set."""
        given = (getattr(self, each.name) for each in fields(self))
        return all(each is None or NO_LIMIT <= each <= MOST for each in given)


@dataclass(frozen=True, slots=True)
class LimitReading:
    """The limits of every account of the cluster, and whether the scheduler enforces them."""

    of: Mapping[str, AccountLimits]
    enforced: bool


def limit_options(change: LimitChange) -> tuple[str, ...]:
    """The limits in sacctmgr's notation; -1 takes one away there too."""
    groups = (("node", change.max_nodes), ("gres/gpu", change.max_gpus))
    resources = ",".join(f"{name}={count}" for name, count in groups if count is not None)
    arguments = (f"grptres={resources}",) if resources else ()
    return arguments if change.max_jobs is None else (*arguments, f"grpjobs={change.max_jobs}")


class TenantAccounts(Protocol):
    """Reads and sets the limits of accounts. `by` is the verified caller, for the record.

    Each method raises `Unavailable` while the accounting does not answer. Those that change
    something raise `ConfigurationError` if the site does not permit it. The hint is then the
    command to run by hand.
    """

    async def limits(self) -> LimitReading:
        """The limits as the scheduler has them now."""

    async def create(self, name: str, change: LimitChange, *, by: str) -> None:
        """Make a top account with these limits. It must not exist yet."""

    async def update(self, name: str, change: LimitChange, *, by: str) -> None:
        """Change the limits of an account."""
