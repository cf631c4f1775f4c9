"""The feature's verb as a call to the server, and what the records of a stream mean. No I/O.

A cursor stands behind some record, so what came after it comes again on the next connection. An
alert that stands is told once, whichever connection tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TypedDict, Unpack
from urllib.parse import quote

from lattice.base.call import StreamCall, params
from lattice.base.errors import UsageError
from lattice.domain.alert import Phase
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.watch.model import (
    NodeWord,
    NoteKind,
    WatchAlert,
    WatchEnd,
    WatchMeasured,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchProgress,
    WatchRecord,
    WatchState,
)

KINDS: dict[str, type[WatchRecord]] = {
    "measured": WatchMeasured,
    "alert": WatchAlert,
    "node": WatchNode,
    "mode": WatchMode,
    "progress": WatchProgress,
    "state": WatchState,
    "ended": WatchEnd,
    "note": WatchNote,
}


class WatchChoice(TypedDict, total=False):
    """What of a job: the usual figures and everything else unless something is said."""

    metrics: tuple[str, ...]
    """By their names, such as `gpu_utilization`."""
    alerts_only: bool


def watch(
    reference: str,
    *,
    cursor: str = "",
    signs_of_life: bool = False,
    **choice: Unpack[WatchChoice],
) -> StreamCall[WatchRecord]:
    """Everything from now on, until the job is over."""
    return StreamCall(
        f"{_path(reference)}/watch",
        KINDS,
        lambda: WatchReading(signs_of_life=signs_of_life),
        params(
            metrics=choice.get("metrics", ()),
            alerts_only=choice.get("alerts_only", False),
            cursor=cursor,
        ),
    )


class WatchReading:
    """Each change once, those of one moment together, and a note where the connection was away."""

    def __init__(self, *, signs_of_life: bool = False) -> None:
        self._signs_of_life = signs_of_life
        self._alerts: dict[tuple[str, str, str], Phase] = {}
        self._stale: set[str] = set()
        self._said: dict[str, object] = {}
        """The last state, mode and progress, as they were told."""
        self._held: list[WatchAlert | WatchNode] = []
        """News of a moment that is not wholly told yet."""

    def record(self, record: WatchRecord) -> Iterable[WatchRecord]:
        """The record, if it is news, or what was held with it."""
        news = self._is_news(record)
        if isinstance(record, WatchAlert | WatchNode):
            if news:
                self._held.append(record)
            return () if record.follows else self._let_go()
        return (*self._let_go(), *((record,) if news else ()))

    def _let_go(self) -> tuple[WatchRecord, ...]:
        """Which of them follow each other is said anew: not all that was told was news."""
        held, self._held = self._held, []
        last = len(held) - 1
        return tuple(
            each if each.follows == (at < last) else replace(each, follows=at < last)
            for at, each in enumerate(held)
        )

    def _is_news(self, record: WatchRecord) -> bool:
        news = True
        match record:
            case WatchAlert():
                news = self._is_new_alert(record)
            case WatchNode():
                news = self._is_new_of_node(record)
            case WatchNote():
                news = self._signs_of_life or record.kind is not NoteKind.ALIVE
            case WatchState():
                if not self._is_said("attempt", record.attempt):
                    # Another attempt has judges of its own.
                    self._alerts.clear()
                    self._stale.clear()
                news = not self._is_said("state", (record.state, record.attempt))
            case WatchMode():
                news = not self._is_said("mode", (record.mode, record.until))
            case WatchProgress():
                news = not self._is_said("progress", record.moving)
        return news

    def _is_said(self, what: str, said: object) -> bool:
        known = what in self._said and self._said[what] == said
        self._said[what] = said
        return known

    def _is_new_alert(self, alert: WatchAlert) -> bool:
        known = self._alerts.get(alert.key)
        self._alerts[alert.key] = alert.phase
        return known is not alert.phase

    def _is_new_of_node(self, record: WatchNode) -> bool:
        was_stale = record.node in self._stale
        if record.word is NodeWord.STALE:
            self._stale.add(record.node)
            return not was_stale
        self._stale.discard(record.node)
        return was_stale or record.word is NodeWord.OVER

    def alive(self, now: datetime) -> Iterable[WatchRecord]:
        """A sign of life of the server."""
        return (WatchNote(kind=NoteKind.ALIVE, time=now),) if self._signs_of_life else ()

    def lost(self, why: str, now: datetime) -> Iterable[WatchRecord]:
        """The way to the server is cut."""
        return (*self._let_go(), WatchNote(kind=NoteKind.DISCONNECTED, time=now, words=why))

    def back(self, away_s: float, now: datetime) -> Iterable[WatchRecord]:
        """And whole again: what changed meanwhile follows."""
        return (WatchNote(kind=NoteKind.RECONNECTED, time=now, seconds=away_s),)


def _path(reference: str) -> str:
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return f"/v1/allocations/{quote(name, safe='')}"
