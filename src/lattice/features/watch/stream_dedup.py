"""Removes duplicates when a stream comes over several connections. No I/O.

A cursor follows some record, so later records come again on the next connection. A standing alert
is passed on once, whichever connection sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from lattice.domain.alert import Phase
from lattice.features.watch.model import (
    NodeWord,
    WatchAlert,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchNoteKind,
    WatchProgress,
    WatchRecord,
    WatchState,
)


class WatchDeduplicator:
    """Passes each change once, groups those of one moment, and adds notes on disconnects."""

    def __init__(self, *, heartbeats: bool = False) -> None:
        self._heartbeats = heartbeats
        self._alerts: dict[tuple[str, str, str], Phase] = {}
        self._stale: set[str] = set()
        self._last: dict[str, object] = {}
        """The last state, mode and progress."""
        self._held: list[WatchAlert | WatchNode] = []
        """News of an incomplete moment."""

    def record(self, record: WatchRecord) -> Iterable[WatchRecord]:
        """Return the record if it is new, or the records held with it."""
        news = self._is_news(record)
        if isinstance(record, WatchAlert | WatchNode):
            if news:
                self._held.append(record)
            return () if record.follows else self._let_go()
        return (*self._let_go(), *((record,) if news else ()))

    def _let_go(self) -> tuple[WatchRecord, ...]:
        """Release the held records, with `follows` recomputed: some were not news."""
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
                news = self._heartbeats or record.kind is not WatchNoteKind.ALIVE
            case WatchState():
                if not self._is_known("attempt", record.attempt):
                    # Another attempt has its own judges.
                    self._alerts.clear()
                    self._stale.clear()
                news = not self._is_known("state", (record.state, record.attempt))
            case WatchMode():
                news = not self._is_known("mode", (record.mode, record.until))
            case WatchProgress():
                news = not self._is_known("progress", record.moving)
        return news

    def _is_known(self, what: str, value: object) -> bool:
        known = what in self._last and self._last[what] == value
        self._last[what] = value
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
        """Return a note for a sign of life of the server."""
        return (WatchNote(kind=WatchNoteKind.ALIVE, time=now),) if self._heartbeats else ()

    def lost(self, why: str, now: datetime) -> Iterable[WatchRecord]:
        """Return a note that the connection is lost."""
        return (*self._let_go(), WatchNote(kind=WatchNoteKind.DISCONNECTED, time=now, words=why))

    def back(self, away_s: float, now: datetime) -> Iterable[WatchRecord]:
        """Return a note that the connection is back; the changes follow."""
        return (WatchNote(kind=WatchNoteKind.RECONNECTED, time=now, seconds=away_s),)
