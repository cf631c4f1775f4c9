"""Tenants as text: the list and the card. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields as fields_of
from datetime import datetime

from lattice.base.moment import moment, silence
from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import inert
from lattice.domain.tenants import AccountLimits
from lattice.features.tenants.model import Project, Tenant, TenantCard, TenantList

_MOST_USERS = 20
_UNKNOWN = "—"


def tenant_table(tenants: Sequence[Tenant], style: Style) -> str:
    """Return one line per tenant: in use of its limits, and how many are in it."""
    columns = [Column("TENANT")]
    columns += [Column(each, right=True) for each in ("NODES", "GPUS", "RUNNING", "PENDING")]
    columns += [Column("PROJECTS", right=True), Column("USERS", right=True), Column("ADMINS")]
    rows: list[list[Cell]] = [
        [
            inert(each.name),
            *_uses(each),
            str(each.use.pending),
            str(each.projects),
            str(each.users),
            inert(",".join(each.admins)),
        ]
        for each in tenants
    ]
    return table(columns, rows, style)


def card(answer: TenantCard, style: Style) -> str:
    """Return one tenant in full."""
    tenant = answer.tenant
    nodes, gpus, jobs = _uses(tenant)
    head = f"{style.paint(inert(tenant.name), 'bold')}\n"
    facts: list[tuple[str, Cell]] = [
        ("Nodes", f"{nodes} in use"),
        ("GPUs", f"{gpus} in use"),
        ("Jobs", f"{jobs} running, {tenant.use.pending} pending"),
        ("Admins", inert(", ".join(tenant.admins)) or "no coordinator in Slurm"),
        ("Users", str(tenant.users)),
    ]
    columns = [Column("ACCOUNT"), Column("LIMITS"), Column("COORDINATORS"), Column("USERS")]
    rows: list[list[Cell]] = [
        [
            inert(each.name),
            _limits(each.limits),
            inert(",".join(each.coordinators)),
            _users(each),
        ]
        for each in answer.projects
    ]
    return f"{head}{fields(facts, style)}\n{table(columns, rows, style)}"


def warnings(answer: TenantList | TenantCard, style: Style, now: datetime) -> Iterator[str]:
    """Yield what makes the answer less than it seems."""
    if answer.enforced is False:
        yield (
            "Slurm does not enforce these limits: add `limits` to AccountingStorageEnforce in "
            "slurm.conf."
        )
    for each in answer.sources:
        if each.incomplete:
            yield inert(each.incomplete)
        if each.ok:
            continue
        name = inert(each.name)
        if each.as_of is None:
            yield f"{name} does not answer: the limits are not known. {inert(each.error or '')}"
        else:
            shown = moment(each.as_of, style, now)
            yield f"{name} {silence(each.age_s)}; what is in use is as of {shown}."


def next_steps(made: TenantCard) -> str:
    name = inert(made.tenant.name)
    return (
        f"Nobody is in it yet. In Slurm: sacctmgr add account PROJECT parent={name}, then "
        "sacctmgr add user USER account=PROJECT"
    )


def undo_text(name: str, before: AccountLimits | None, after: AccountLimits | None) -> str:
    if before is None or after is None or before == after:
        return "Nothing was changed."
    options = " ".join(
        f"--{each.name.replace('_', '-')} {_number(getattr(before, each.name))}"
        for each in fields_of(before)
        if getattr(before, each.name) != getattr(after, each.name)
    )
    return f"To take it back: lattice admin tenant update {inert(name)} {options}"


def _uses(tenant: Tenant) -> tuple[str, str, str]:
    use, limits = tenant.use, tenant.limits
    if limits is None:
        return (
            f"{use.nodes}/{_UNKNOWN}",
            f"{_shown(use.gpus)}/{_UNKNOWN}",
            f"{use.running}/{_UNKNOWN}",
        )
    return (
        _used(use.nodes, limits.max_nodes),
        _used(use.gpus, limits.max_gpus),
        _used(use.running, limits.max_jobs),
    )


def _used(used: int | None, most: int | None) -> str:
    return _shown(used) if most is None else f"{_shown(used)}/{most}"


def _shown(used: int | None) -> str:
    return _UNKNOWN if used is None else str(used)


def _limits(limits: AccountLimits | None) -> str:
    if limits is None:
        return _UNKNOWN
    named = (("nodes", limits.max_nodes), ("GPUs", limits.max_gpus), ("jobs", limits.max_jobs))
    return ", ".join(f"{most} {what}" for what, most in named if most is not None)


def _users(project: Project) -> str:
    more = len(project.users) - _MOST_USERS
    shown = ",".join(project.users[:_MOST_USERS])
    return inert(shown) + (f" and {more} more" if more > 0 else "")


def _number(limit: int | None) -> str:
    return "none" if limit is None else str(limit)
