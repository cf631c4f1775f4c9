"""Locks as text. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.lock import Lock
from lattice.features.locks.model import LockList


def lock_table(answer: LockList, style: Style, now: datetime) -> str:
    """Return a table with one row per lock, or an empty string."""
    if not answer.locks:
        return ""
    columns = [Column("LOCKED"), Column("BY"), Column("SINCE"), Column("UNTIL"), Column("REASON")]
    rows: list[list[Cell]] = [
        [
            inert(each.name),
            inert(each.by),
            moment(each.since, style, now),
            moment(each.until, style, now) if each.until else "unlocked",
            inert(each.reason),
        ]
        for each in answer.locks
    ]
    return table(columns, rows, style)


def locked_line(lock: Lock, style: Style, now: datetime) -> str:
    """Return the line for a new lock."""
    until = f"until {moment(lock.until, style, now)}" if lock.until else "until it is unlocked"
    return f"Locked {inert(lock.name)} {until}\n"


def unlocked_line(lock: Lock) -> str:
    """Return the line for a removed lock."""
    return f"Unlocked {inert(lock.name)}\n"
