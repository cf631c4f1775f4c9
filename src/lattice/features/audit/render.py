"""The audit log as text: a sentence a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.audit_bundle import BundleVerdict
from lattice.domain.recording_proof import DamagedRecording
from lattice.features.audit.model import AuditRow, AuditVerdict

_OK = "OK: "


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
    if verdict.first_bad is not None:
        log = bad_text(verdict.first_bad, verdict.problem)
    elif not verdict.entries:
        log = "OK: the audit log is empty.\n"
    else:
        log = (
            f"{_OK}{verdict.entries} entries, {verdict.segments} segments in the archive, "
            f"{verdict.anchors} anchors outside\n"
            f"Head: {verdict.head}\nKeys: {', '.join(verdict.keys)}\n"
        )
    return with_recordings(
        log,
        verdict.recordings,
        verdict.recordings_removed,
        verdict.recordings_unchecked,
        verdict.unchecked_because,
        verdict.recordings_damaged,
        verdict.damaged,
    )


def with_recordings(
    log: str,
    whole: int,
    removed: int,
    unchecked: int,
    because: str,
    damaged: int,
    named: Sequence[DamagedRecording],
) -> str:
    """Return the text about a log with what was found of the recordings that it names.

    It begins with OK only if all is well.
    """
    lines = [
        f"BAD: recording {each.session} of {inert(each.allocation)}: chunk {each.chunk}: "
        f"{inert(each.problem)} (entry {each.entry})"
        for each in named
    ]
    if damaged > len(named):
        lines.append(f"BAD: {damaged - len(named)} more recordings")
    if unchecked:
        lines.append(f"NOT CHECKED: {unchecked} recordings: {inert(because)}")
    found = "".join(f"{each}\n" for each in lines)
    counts = ""
    if whole or removed:
        counts = f"Recordings: {whole} whole, {removed} removed after their retention\n"
    if found and log.startswith(_OK):
        return found + "The log itself is whole: " + log.removeprefix(_OK) + counts
    return log + found + counts


def bundle_text(verdict: BundleVerdict) -> str:
    """Return the result of a verification of a bundle."""
    return (
        f"{_OK}{verdict.entries} entries of cluster {inert(verdict.cluster)}, exported "
        f"{inert(verdict.made)} for {inert(verdict.made_for)}\n"
        f"Head: {verdict.link.hex()}\nSigned by key: {verdict.signed_by}\n"
    )


def bad_text(sequence: int, problem: str) -> str:
    return f"BAD: the first bad entry is {sequence}: {inert(problem)}\n"
