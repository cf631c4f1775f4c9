"""Limits of the accounts of the scheduler in memory. Passes the port's contract suite."""

from __future__ import annotations

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.tenants import AccountLimits, LimitChange, LimitReading
from tests.fakes.in_memory_scheduler import InMemoryScheduler


class InMemoryTenantAccounts:
    """`refuses` as a gate that may not."""

    def __init__(self, scheduler: InMemoryScheduler) -> None:
        self._scheduler = scheduler
        self._limits: dict[str, AccountLimits] = {}
        self.refuses = False
        self.enforced = True
        self.by: list[str] = []
        self.acts: list[tuple[str, LimitChange]] = []

    async def limits(self) -> LimitReading:
        self._answer()
        known = self._scheduler.accounts.accounts
        limits = {each: self._limits.get(each, AccountLimits()) for each in known}
        return LimitReading({"root": AccountLimits(), **limits}, self.enforced)

    async def create(self, name: str, change: LimitChange, *, by: str) -> None:
        self.by.append(by)
        self._may()
        tree = self._scheduler.accounts
        self._scheduler.accounts = AccountTree({**tree.accounts, name: Account(name)}, tree.members)
        self._set(name, change)

    async def update(self, name: str, change: LimitChange, *, by: str) -> None:
        self.by.append(by)
        self._may()
        self._set(name, change)

    def _set(self, name: str, change: LimitChange) -> None:
        self.acts.append((name, change))
        self._limits[name] = self._limits.get(name, AccountLimits()).changed(change)

    def _may(self) -> None:
        self._answer()
        if self.refuses:
            raise ConfigurationError(
                "This site does not let Lattice change tenants in Slurm.",
                hint="An administrator of Slurm can run: sacctmgr -i …",
            )

    def _answer(self) -> None:
        if self._scheduler.past_down:
            raise Unavailable("slurmdbd does not answer")
