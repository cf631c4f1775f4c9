"""Shares and readers as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.sharing import ReadRecord, Share
from lattice.features.sharing.model import AllocationSharing


def sharing_text(answer: AllocationSharing, style: Style, now: datetime) -> str:
    """Return both tables, each only if it has a row."""
    parts = []
    if answer.shares:
        parts.append(_shares(answer.shares, style, now))
    if answer.readers:
        parts.append(_readers(answer.readers, style, now))
    return "\n".join(parts)


def shared_line(share: Share, style: Style, now: datetime) -> str:
    until = moment(share.until, style, now)
    name = inert(share.allocation.partition("@")[0])
    return f"Shared allocation {name} with {inert(share.user)} until {until}\n"


def unshared_line(name: str, user: str) -> str:
    return f"Allocation {inert(name)} is no longer shared with {inert(user)}\n"


def _shares(shares: Iterable[Share], style: Style, now: datetime) -> str:
    columns = [Column("SHARED WITH"), Column("ALLOCATION"), Column("SINCE"), Column("UNTIL")]
    rows: list[list[Cell]] = [
        [
            inert(each.user),
            inert(each.allocation.partition("@")[0]),
            moment(each.since, style, now),
            moment(each.until, style, now),
        ]
        for each in shares
    ]
    return table(columns, rows, style)


def _readers(readers: Iterable[ReadRecord], style: Style, now: datetime) -> str:
    columns = [Column("READ BY"), Column("AS"), Column("ALLOCATION"), Column("HOW")]
    columns += [Column("FIRST"), Column("LAST")]
    rows: list[list[Cell]] = [
        [
            inert(each.reader),
            each.standing.value,
            inert(each.allocation.partition("@")[0]),
            _how(each),
            moment(each.first, style, now),
            moment(each.last, style, now),
        ]
        for each in readers
    ]
    return table(columns, rows, style)


def _how(each: ReadRecord) -> str:
    counts = (("read", each.reads), ("followed", each.follows), ("downloaded", each.downloads))
    parts = [f"{word} {count}×" for word, count in counts if count]
    return ", ".join(parts) or "looked"
