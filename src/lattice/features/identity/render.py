"""Identity as text. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.features.identity.model import Fact, Identity


def welcome(identity: Identity, until: datetime | None, style: Style, now: datetime) -> str:
    """Return the line that is shown after sign-in."""
    name = inert(identity.user.value or identity.sub)
    tenant = f", tenant {inert(identity.tenant.value)}" if identity.tenant.value else ""
    role = inert(identity.role.value)
    end = f", token valid until {short_moment(until, style, now)}" if until else ""
    return f"Logged in as {name} (role {role}{tenant}){end}.\n"


def short_moment(value: datetime, style: Style, now: datetime) -> str:
    """Return a time without its seconds."""
    text = moment(value, style, now)
    head, _, mark = text.rpartition(":")
    return head + ("Z" if mark.endswith("Z") else "")


def facts(identity: Identity, style: Style, now: datetime) -> str:
    """Return a table of facts with their sources."""
    rows: list[list[Cell]] = [
        ["user", *_fact(identity.user, "none: owns no allocations")],
        ["role", *_fact(identity.role, "none")],
        ["tenant", *_fact(identity.tenant, "none")],
        ["subject", identity.sub, "claim sub"],
        ["scopes", " ".join(identity.scopes) or "none", "claim scope"],
        ["coordinates", ", ".join(identity.coordinates) or "no account", "Slurm's accounts"],
        ["valid until", moment(identity.expires, style, now), "claim exp"],
        ["cluster", identity.cluster, "the server's configuration"],
    ]
    columns = [Column("FACT"), Column("VALUE", least=20), Column("FROM", least=12)]
    return table(columns, rows, style)


def _fact(fact: Fact, missing: str) -> tuple[str, str]:
    return (fact.value, fact.source) if fact.value else (missing, fact.source)
