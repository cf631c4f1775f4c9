"""The notes of a query besides its lines: what is away, what came back, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lattice.base.clock import Clock
from lattice.domain.allocation import Attempt
from lattice.features.logs.model import LogNote, NoteKind
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.view import StreamView

_UNHEARD = "it has not answered yet"


class LogNotices:
    """The notes of one reader: each change of a node is reported once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lost: dict[str, float] = {}
        """Nodes reported as away, and since when (monotonic)."""
        self._clocks: set[str] = set()
        """Nodes with a reported clock."""

    def alive(self) -> LogNote:
        """Every part from here to the nodes answers."""
        return self._note(NoteKind.ALIVE)

    def opening(self, store_away: str, feeds: Mapping[str, NodeFeed]) -> list[LogNote]:
        """What can't be shown now; `store_away` is the reason for the store, or empty."""
        notes = [self._note(NoteKind.ARCHIVE_AWAY, words=store_away)] if store_away else []
        for node, feed in feeds.items():
            why = feed.trouble or ("" if feed.told.is_set() else _UNHEARD)
            if why:
                notes.append(self._lose(node, why))
        return notes + self._clocks_off(feeds)

    def tampered(self, faults: Iterable[str]) -> list[LogNote]:
        """How stored objects differ from their seal."""
        return [self._note(NoteKind.TAMPERED, words=each) for each in faults]

    def changes(self, feeds: Mapping[str, NodeFeed]) -> list[LogNote]:
        """Nodes that went away or came back since the last call."""
        notes = []
        for node, feed in feeds.items():
            if feed.trouble and node not in self.lost:
                notes.append(self._lose(node, feed.trouble))
            elif not feed.trouble and feed.told.is_set() and node in self.lost:
                lasted_s = self._clock.monotonic() - self.lost.pop(node)
                notes.append(self._note(NoteKind.RECONNECTED, node, seconds=lasted_s))
        return notes + self._clocks_off(feeds)

    def unread(self, reasons: Mapping[str, str]) -> list[LogNote]:
        """Nodes with missing output, and the reason of each."""
        return [
            self._note(NoteKind.NOT_ARCHIVING, node, reason) for node, reason in reasons.items()
        ]

    def _clocks_off(self, feeds: Mapping[str, NodeFeed]) -> list[LogNote]:
        """Nodes with wrong clocks, each once."""
        off = [node for node, feed in feeds.items() if feed.clock_ahead_s]
        fresh = [node for node in off if node not in self._clocks]
        self._clocks.update(fresh)
        return [
            self._note(
                NoteKind.CLOCK_CORRECTED,
                node,
                f"clock {feeds[node].clock_ahead_s:+d} s corrected",
            )
            for node in fresh
        ]

    def end(self, attempt: Attempt, streams: Iterable[StreamView], *, all_known: bool) -> LogNote:
        """How the attempt ended. `lines` is 0 only if every stream was read to its end."""
        streams = tuple(streams)
        unread = [each.name for each in streams if not (each.is_over and each.is_read)]
        words = attempt.state.value
        if attempt.exit_code is not None:
            words += f", exit {attempt.exit_code}"
        if unread:
            words += f"; the end of {unread[0]} has not arrived"
        elif not all_known:
            words += "; whether that was all is not known while the object store does not answer"
        elif not streams:
            words += "; nothing of what it wrote has arrived"
        complete = all_known and bool(streams) and not unread
        return self._note(NoteKind.END, words=words, lines=0 if complete else None)

    def _lose(self, node: str, why: str) -> LogNote:
        self.lost[node] = self._clock.monotonic()
        return self._note(NoteKind.DISCONNECTED, node, why)

    def _note(
        self,
        kind: NoteKind,
        node: str = "",
        words: str = "",
        *,
        seconds: float | None = None,
        lines: int | None = None,
    ) -> LogNote:
        now = self._clock.now()
        return LogNote(kind=kind, time=now, node=node, words=words, seconds=seconds, lines=lines)
