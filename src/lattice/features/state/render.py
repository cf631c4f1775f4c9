"""The quorum and backups as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from lattice.base.moment import age, moment
from lattice.base.sizes import size_text
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.quorum import QuorumMember
from lattice.features.state.model import Backup, BackupList, QuorumStatus, RestorePlan


def quorum_page(found: QuorumStatus, style: Style) -> str:
    """The verdict, then a line for each member, then alarms."""
    sign = style.glyph("✓", "+") if found.healthy else style.glyph("✗", "x")
    lines = [style.paint(f"{sign} {_verdict(found)}", "green" if found.healthy else "red")]
    if found.note:
        lines.append(inert(found.note))
    if found.cluster:
        restored = f", restored {found.epoch} times" if found.epoch else ""
        lines.append(f"cluster {inert(found.cluster)}{restored}")
    text = "\n".join(lines) + "\n"
    if found.members:
        text += "\n" + _member_table(found, style)
    for alarm in found.alarms:
        text += f"{style.paint(style.glyph('!', '!'), 'yellow')} {inert(alarm)}\n"
    return text


def _verdict(found: QuorumStatus) -> str:
    if found.store != "etcd":
        return "the state answers" if found.healthy else "the state does not answer"
    if not found.healthy:
        return "the quorum is lost: the state can't be changed"
    more = f"{found.may_fail} more may fail" if found.may_fail else "no more may fail"
    return f"leader {inert(found.leader)}, term {found.term}, index {found.index}; {more}"


def _member_table(found: QuorumStatus, style: Style) -> str:
    names = ["MEMBER", "ADDRESS", "ROLE", "TERM", "INDEX", "APPLIED", "SIZE", "VERSION"]
    names += ["ID", "IN USE"] if style.wide else []
    columns = [*map(Column, names), Column("HEALTH", least=8)]
    return table(columns, [_member(each, style) for each in found.members], style)


def _member(each: QuorumMember, style: Style) -> list[Cell]:
    role = "leader" if each.is_leader else "learner" if each.is_learner else "follower"
    there = each.answers
    row: list[Cell] = [
        each.etcd_name,
        each.name,
        role if there else "",
        str(each.term) if there else "",
        str(each.index) if there else "",
        str(each.applied) if there else "",
        size_text(each.size_bytes) if there else "",
        each.version,
    ]
    if style.wide:
        row += [each.id, size_text(each.in_use_bytes) if there else ""]
    sound = there and not each.reason and each.has_leader
    health = "ok" if sound else each.reason or "knows no leader"
    sign = style.glyph("✓", "+") if sound else style.glyph("✗", "x")
    return [*row, (f"{sign} {health}", "green" if sound else "red")]


def backup_table(found: BackupList, style: Style, now: datetime) -> str:
    """A line for each backup, the newest first."""
    columns = [Column("BACKUP"), Column("TAKEN"), Column("AGE"), Column("SIZE", right=True)]
    rows: list[list[Cell]] = [
        [
            each.name,
            moment(each.taken, style, now),
            age(max((now - each.taken).total_seconds(), 0)),
            size_text(each.size_bytes),
        ]
        for each in found.backups
    ]
    return table(columns, rows, style) if rows else ""


def backup_line(found: Backup) -> str:
    """One line that describes a backup."""
    return (
        f"{inert(found.name)}: {found.records} records of revision {found.revision}, "
        f"{size_text(found.size_bytes)}, cluster {inert(found.cluster)}"
    )


def plan_page(found: RestorePlan) -> str:
    """What is lost, and the steps with their numbers."""
    return "\n".join(_plan_lines(found)) + "\n"


def _plan_lines(found: RestorePlan) -> Iterator[str]:
    yield f"Sound: {backup_line(found.backup)}."
    yield inert(found.lost)
    yield ""
    if found.by_server:
        yield "The server restores it when it starts next:"
    else:
        yield "Nothing was changed. These steps restore it:"
    for number, step in enumerate(found.steps, 1):
        first, *rest = step.splitlines()
        yield f"  {number}. {inert(first)}"
        yield from (f"       {inert(line)}" for line in rest)
