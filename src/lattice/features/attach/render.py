"""Terminal sessions as text: status lines and the table of sessions. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.features.attach.model import RESUME_S, EndReason, Opened

if TYPE_CHECKING:
    from lattice.features.attach.sessions import AttachSession

_REASONS = {
    EndReason.FAILED: "never started",
    EndReason.NODE_LOST: "node lost",
    EndReason.TOKEN_EXPIRED: "sign-in ended",
    EndReason.OTHER: "ended",
}
"""Reasons that the table names by other words than their value."""


def banner(opened: Opened, now: datetime) -> str:
    """One line: the node, the job, the time left, and how to get help."""
    parts = [inert(opened.node), f"job {inert(opened.job)}"]
    if opened.ends is not None:
        parts.append(f"{duration((opened.ends - now).total_seconds())} left")
    if opened.recorded:
        parts.append("REC ●")
    return f"--- {' · '.join(parts)} · ~? helps ---"


def lost_line(why: str) -> str:
    """Shown while the client tries to reconnect."""
    return f"--- connection lost ({inert(why)}); reconnecting, ~. gives up ---"


def back_line(away_s: float) -> str:
    """Shown after a reconnect."""
    return f"--- reconnected after {away_s:.1f} s ---"


def suspended_line() -> str:
    """Shown before the client suspends itself."""
    return f"--- suspended; the shell waits {RESUME_S:.0f} s for `fg`, the job goes on ---"


def sessions_table(sessions: Iterable[AttachSession], style: Style, now: datetime) -> str:
    """One row for each session, newest first."""
    columns = [
        Column("ALLOCATION"),
        Column("NODE"),
        Column("USER", least=8),
        Column("STARTED"),
        Column("TIME", right=True),
        Column("END"),
        Column("COMMAND", least=12),
    ]
    if style.wide:
        columns += [Column("SESSION"), Column("BY"), Column("ATTEMPT", right=True)]
    return table(columns, [_row(each, style, now) for each in sessions], style)


def _row(session: AttachSession, style: Style, now: datetime) -> list[Cell]:
    lasted = (session.ended or now) - session.started
    row: list[Cell] = [
        session.allocation.partition("@")[0],
        session.node,
        session.user,
        moment(session.started, style, now),
        duration(lasted.total_seconds()),
        _end(session),
        shlex.join(session.command) or "login shell",
    ]
    if style.wide:
        row += [session.id, session.subject, str(session.attempt)]
    return row


def _end(session: AttachSession) -> Cell:
    if session.ended is None:
        return ("open", "green")
    reason = session.reason or EndReason.OTHER
    text = _REASONS.get(reason) or reason.value.replace("_", " ")
    return f"{text} {session.exit_code}" if session.exit_code is not None else text
