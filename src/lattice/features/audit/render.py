"""The audit log as text: a sentence a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.audit_bundle import BundleVerdict
from lattice.features.audit.model import AuditRow, AuditVerdict


def sentences(rows: Sequence[AuditRow], style: Style, now: datetime) -> str:
    """Return one line per entry: the time and the sentence."""
    return "".join(f"{moment(each.time, style, now)}  {inert(each.sentence)}\n" for each in rows)


def wide_table(rows: Sequence[AuditRow], style: Style, now: datetime) -> str:
    """Return the same with ids."""
    columns = [Column("ENTRY", right=True), Column("TIME"), Column("ACT"), Column("ACTOR")]
    columns += [Column("ROLE"), Column("ADDRESS"), Column("ALLOCATION"), Column("WHAT")]
    cells: list[list[Cell]] = [
        [
            str(each.sequence),
            moment(each.time, style, now),
            each.act.value,
            inert(each.sub),
            inert(each.role),
            inert(each.address),
            inert(each.allocation),
            inert(each.sentence),
        ]
        for each in rows
    ]
    return table(columns, cells, style)


def verdict_text(verdict: AuditVerdict) -> str:
    """Return the result of a verification on a server."""
    if not verdict.ok:
        return bad_text(verdict.first_bad or 1, verdict.problem)
    if not verdict.entries:
        return "OK: the audit log is empty.\n"
    return (
        f"OK: {verdict.entries} entries, {verdict.segments} segments in the archive, "
        f"{verdict.anchors} anchors outside\n"
        f"Head: {verdict.head}\nKeys: {', '.join(verdict.keys)}\n"
    )


def bundle_text(verdict: BundleVerdict) -> str:
    """Return the result of a verification of a bundle."""
    return (
        f"OK: {verdict.entries} entries of cluster {inert(verdict.cluster)}, exported "
        f"{inert(verdict.made)} for {inert(verdict.made_for)}\n"
        f"Head: {verdict.link.hex()}\nSigned by key: {verdict.signed_by}\n"
    )


def bad_text(sequence: int, problem: str) -> str:
    return f"BAD: the first bad entry is {sequence}: {inert(problem)}\n"
