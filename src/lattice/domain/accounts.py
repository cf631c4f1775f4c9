"""Slurm's accounts as Lattice reads them: top accounts are tenants, the jobs' own are projects.

Pure. A coordinator of an account coordinates everything below it, as in Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_ROOT = "root"


@dataclass(frozen=True, slots=True)
class Account:
    """One Slurm account. `parent` is empty for a top account, which is a tenant."""

    name: str
    parent: str = ""
    coordinators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccountTree:
    """All accounts of a cluster and their members. An unknown account has no tenant."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        accounts: Iterable[Account],
        members: Mapping[str, Iterable[str]] | None = None,
    ) -> AccountTree:
        """Build it from accounts and, for each user, the accounts that the user may charge."""
        return cls(
            {account.name: account for account in accounts if account.name != _ROOT},
            {user: frozenset(names) for user, names in (members or {}).items()},
        )

    def tenant_of(self, account: str) -> str:
        """The top account above this one, or empty if unknown."""
        line = self._line(account)
        return line[-1] if line else ""

    def below(self, account: str) -> frozenset[str]:
        """This account and all below it."""
        return frozenset(name for name in self.accounts if account in self._line(name))

    def coordinated_by(self, user: str) -> frozenset[str]:
        """Every account that the user coordinates, directly or from above."""
        if not user:
            return frozenset()
        own = {name for name, account in self.accounts.items() if user in account.coordinators}
        return frozenset(name for name in self.accounts if own.intersection(self._line(name)))

    def tenants_of(self, user: str) -> frozenset[str]:
        """The tenants that the user may charge."""
        tenants = {self.tenant_of(account) for account in self.members.get(user, ())}
        return frozenset(tenants - {""})

    def _line(self, account: str) -> tuple[str, ...]:
        # From the account up to its tenant. A missing parent or a loop makes the whole line
        # unknown: a wrong tenant would show one tenant's work to another.
        line: list[str] = []
        name = account
        while name and name != _ROOT:
            if name in line or name not in self.accounts:
                return ()
            line.append(name)
            name = self.accounts[name].parent
        return tuple(line)
