"""Answers of the feature, and what is in use of a tenant: pure data and rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lattice.domain.allocation import Allocation
from lattice.domain.nodeset import NodeSet
from lattice.domain.source import Source
from lattice.domain.tenants import AccountLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What the work of a tenant has now. A node that two jobs share counts once, as in Slurm."""

    nodes: int = 0
    gpus: int | None = 0
    """None: not known of some job."""
    running: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant."""

    name: str
    limits: AccountLimits | None
    """None: not known now."""
    use: TenantUse
    projects: int = 0
    """Accounts below it."""
    users: int = 0
    admins: tuple[str, ...] = ()
    """Coordinators of the account in Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """An account of a tenant; the first of a tenant is its own."""

    name: str
    parent: str = ""
    users: tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()
    limits: AccountLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantList:
    """Tenants by name, with their sources."""

    tenants: tuple[Tenant, ...]
    enforced: bool | None
    """False: Slurm has the limits and does not enforce them. None: not known now."""
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCard:
    """One tenant in full."""

    tenant: Tenant
    projects: tuple[Project, ...]
    enforced: bool | None
    sources: tuple[Source, ...]


def use_of(allocations: Iterable[Allocation]) -> TenantUse:
    """What these allocations have now."""
    nodes: set[str] = set()
    gpus: int | None = 0
    running = pending = 0
    for each in allocations:
        if each.state.waiting:
            pending += 1
        elif not each.state.finished and each.nodes:
            running += 1
            nodes.update(NodeSet.parse(each.nodes))
            gpus = None if gpus is None or each.gpus is None else gpus + each.gpus
    return TenantUse(nodes=len(nodes), gpus=gpus, running=running, pending=pending)
