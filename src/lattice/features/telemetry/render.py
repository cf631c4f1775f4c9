"""The telemetry mode of a job as text. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.sharing import ReadRecord
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.model import Telemetry

_SUFFIXES = {
    Mode.PROD: "",
    Mode.DEBUG: "",
    Mode.AUDIT: ", and its owner sees who looks at it",
}
_NO_END = ", until it is switched"


def telemetry_text(answer: Telemetry, style: Style, now: datetime) -> str:
    """Return the mode, its end, and in audit mode the readers."""
    lines = [_first(answer, style), *_second(answer, style, now)]
    if answer.debug_now or answer.mode is Mode.DEBUG:
        lines.append(f"{answer.debug_now} of at most {answer.debug_most} allocations are in debug")
    text = "".join(f"{each}\n" for each in lines)
    if answer.mode is Mode.AUDIT and answer.readers:
        text += "\n" + _readers(answer.readers, style, now)
    return text


def switched_line(answer: Telemetry, style: Style, now: datetime) -> str:
    return (
        f"Allocation {inert(answer.allocation)} is measured every {_every(answer.interval_s)} "
        f"({answer.mode.value}){_reverts(answer, style, now)}\n"
    )


def _first(answer: Telemetry, style: Style) -> str:
    mode = style.paint(answer.mode.value, "bold")
    return (
        f"Allocation {inert(answer.allocation)}: {mode}, measured every "
        f"{_every(answer.interval_s)}{_SUFFIXES[answer.mode]}"
    )


def _second(answer: Telemetry, style: Style, now: datetime) -> list[str]:
    if not answer.set_by:
        return ["The usual mode of this cluster"]
    return [f"Set by {inert(answer.set_by)}{_reverts(answer, style, now) or _NO_END}"]


def _reverts(answer: Telemetry, style: Style, now: datetime) -> str:
    if answer.until is None:
        return ""
    left = duration((answer.until - now).total_seconds())
    return f"; reverts by itself at {moment(answer.until, style, now)} (in {left})"


def _every(interval_s: float) -> str:
    return "second" if interval_s == 1 else f"{interval_s:g} s"


def _readers(readers: tuple[ReadRecord, ...], style: Style, now: datetime) -> str:
    columns = [Column("LOOKED"), Column("AS"), Column("HOW"), Column("FIRST"), Column("LAST")]
    rows: list[list[Cell]] = [
        [
            inert(each.reader),
            each.standing.value,
            _how(each),
            moment(each.first, style, now),
            moment(each.last, style, now),
        ]
        for each in readers
    ]
    return table(columns, rows, style)


def _how(each: ReadRecord) -> str:
    counts = (("read", each.reads), ("followed", each.follows), ("downloaded", each.downloads))
    return ", ".join(f"{word} {count}×" for word, count in counts if count) or "looked"
