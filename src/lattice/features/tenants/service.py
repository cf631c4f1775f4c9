"""Queries about tenants, and changes of them in the caller's name. Every change is logged.

The limits are read from the accounting for each query. The accounts come from the last snapshot.
They are read again for one tenant in full, and if the accounting has others by now.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from itertools import chain

from lattice.access.actor import Actor, Role
from lattice.access.journal import ActJournal
from lattice.access.policy import governed_tenant
from lattice.base.errors import LatticeError, NotFound, Unavailable, UsageError
from lattice.base.text import cut, inert
from lattice.domain.accounts import AccountTree
from lattice.domain.scheduler import LiveCluster, Scheduler, SchedulerReading
from lattice.domain.source import PAST, Source
from lattice.domain.tenants import MOST, AccountLimits, LimitChange, LimitReading, TenantAccounts
from lattice.features.tenants.model import Project, Tenant, TenantCard, TenantList, use_of

_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}", re.ASCII)
_ROOT = "root"
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class _Site:
    """What is known now, from both engines."""

    reading: SchedulerReading
    limits: LimitReading | None
    error: str

    @property
    def cluster(self) -> LiveCluster:
        return self.reading.cluster

    @property
    def accounts(self) -> AccountTree:
        return self.reading.cluster.accounts

    @property
    def enforced(self) -> bool | None:
        return self.limits.enforced if self.limits else None

    @property
    def sources(self) -> tuple[Source, ...]:
        past = Source(name=PAST, ok=self.limits is not None, error=self.error or None)
        return self.reading.source, past

    def limits_of(self, account: str) -> AccountLimits | None:
        return self.limits.of.get(account, AccountLimits()) if self.limits else None


class TenantService:
    """For system admins, and for tenant admins to read about their tenant."""

    def __init__(self, scheduler: Scheduler, accounts: TenantAccounts, journal: ActJournal) -> None:
        self._scheduler = scheduler
        self._accounts = accounts
        self._journal = journal

    async def tenants(self, actor: Actor) -> TenantList:
        """Return every tenant that the caller may see."""
        site = await self._read()
        names = [each for each in _top(site.accounts) if _visible(actor, each, site.accounts)]
        return TenantList(
            tenants=tuple(_tenant(each, site) for each in names),
            enforced=site.enforced,
            sources=site.sources,
        )

    async def tenant(self, actor: Actor, name: str) -> TenantCard:
        """Return one tenant. Raises `NotFound` if the caller may not see it, too."""
        return _card(name, self._found(actor, name, await self._read(users=True)))

    async def create(self, actor: Actor, name: str, change: LimitChange) -> TenantCard:
        """Make a tenant. Raises `UsageError` if there is such an account."""
        _check(name, change)
        site = await self._read()
        if site.limits is None:
            raise _silent(site)
        if name == _ROOT or name in site.limits.of or name in site.accounts.accounts:
            tenant = site.accounts.tenant_of(name)
            what = "a tenant" if tenant == name else "an account"
            raise UsageError(
                f"There is {what} {name} in Slurm already.",
                hint=f"`lattice admin tenant update {name}` changes its limits."
                if tenant == name
                else "Take another name.",
            )
        await self._act(actor, "create tenant", name, change)
        return _card(name, await self._read())

    async def update(self, actor: Actor, name: str, change: LimitChange) -> TenantCard:
        """Change limits of a tenant. Repeating it changes nothing."""
        site = self._found(actor, name, await self._read())
        _check(name, change)
        before = site.limits_of(name)
        if before is None:
            raise _silent(site)
        if change.empty:
            raise UsageError(
                "No limit is given.", hint="--max-nodes N, --max-gpus N or --max-jobs N."
            )
        if before.changed(change) != before:
            await self._act(actor, "update tenant", name, change)
        return _card(name, await self._read())

    async def _act(self, actor: Actor, act: str, name: str, change: LimitChange) -> None:
        text = _shown(change)
        try:
            if act == "create tenant":
                await self._accounts.create(name, change, by=actor.sub)
            else:
                await self._accounts.update(name, change, by=actor.sub)
        except Exception:
            self._journal.acted(f"{act} failed", name, actor.sub, text)
            raise
        self._journal.acted(act, name, actor.sub, text)

    async def _read(self, *, users: bool = False) -> _Site:
        """With `users` the accounts are read again: people may be new in one of them."""
        reading = self._scheduler.live()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                limits = await self._accounts.limits()
        except TimeoutError:
            return _Site(reading, None, f"gave no answer within {_PATIENCE_S:g} s")
        except LatticeError as error:
            return _Site(reading, None, error.message)
        if users or limits.of.keys() - {_ROOT} != reading.cluster.accounts.accounts.keys():
            reading = await self._scheduler.fresh(accounts=True)
        return _Site(reading, limits, "")

    def _found(self, actor: Actor, name: str, site: _Site) -> _Site:
        if name in _top(site.accounts) and _visible(actor, name, site.accounts):
            return site
        raise NotFound(
            f"No tenant of that name: {cut(inert(name), 80)}.",
            hint="`lattice admin tenant list` lists those that you may see.",
        )


def _top(accounts: AccountTree) -> list[str]:
    return sorted(each for each in accounts.accounts if accounts.tenant_of(each) == each)


def _visible(actor: Actor, name: str, accounts: AccountTree) -> bool:
    return actor.role is Role.SYSTEM_ADMIN or governed_tenant(actor, accounts) == name


def _tenant(name: str, site: _Site) -> Tenant:
    accounts = site.accounts
    below = accounts.below(name)
    return Tenant(
        name=name,
        limits=site.limits_of(name),
        use=use_of(chain.from_iterable(map(site.cluster.index.of_account, below))),
        projects=len(below) - 1,
        users=sum(not below.isdisjoint(each) for each in accounts.members.values()),
        admins=tuple(sorted(accounts.accounts[name].coordinators)),
    )


def _card(name: str, site: _Site) -> TenantCard:
    accounts = site.accounts
    if name not in accounts.accounts:
        raise Unavailable(
            f"The tenant {name} is made, and Slurm does not list it yet.",
            hint=f"In a minute: lattice admin tenant show {name}",
        )
    users: dict[str, list[str]] = {}
    for user, own in accounts.members.items():
        for account in own:
            users.setdefault(account, []).append(user)
    projects = (accounts.accounts[each] for each in sorted(accounts.below(name)))
    return TenantCard(
        tenant=_tenant(name, site),
        projects=tuple(
            Project(
                name=each.name,
                parent=each.parent,
                users=tuple(sorted(users.get(each.name, ()))),
                coordinators=tuple(sorted(each.coordinators)),
                limits=site.limits_of(each.name),
            )
            for each in sorted(projects, key=lambda each: (each.name != name, each.name))
        ),
        enforced=site.enforced,
        sources=site.sources,
    )


def _check(name: str, change: LimitChange) -> None:
    # Only such a name and such numbers reach a command line.
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{cut(inert(name), 80)!r} can't be the name of a tenant.",
            hint="Small letters, digits, '_', '.' and '-', 64 at most; the first is no '-' or '.'.",
        )
    if not change.sound:
        raise UsageError(f"A limit is a number up to {MOST:,}, or -1 for none.")


def _silent(site: _Site) -> Unavailable:
    return Unavailable(
        f"Slurm's accounts can't be read now: {site.error}.",
        hint="Nothing was changed. Try again when slurmdbd answers.",
    )


def _shown(change: LimitChange) -> str:
    given = (
        ("max_nodes", change.max_nodes),
        ("max_gpus", change.max_gpus),
        ("max_jobs", change.max_jobs),
    )
    return " ".join(f"{name}={count}" for name, count in given if count is not None)
