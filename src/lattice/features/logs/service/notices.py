"""What a query reports besides lines: what is away, what came back, why output is missing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable
from lattice.domain.allocation import Attempt
from lattice.features.logs.model import LogNote, NoteKind
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.view import StreamView

_MOST_REASONS = 3
_NO_FILE = "no output file of it was found there"
_NOT_YET = "it has not arrived yet"
_NOT_KNOWN = "why is not known"
_NO_ANSWER_YET = "it has not answered yet"


def absence_error(
    name: AttemptName, feeds: Mapping[str, NodeFeed], *, settled: bool
) -> DataUnavailable:
    """The error for an attempt without known output, with each reason once, and its nodes.

    `settled`: it ended so long ago that no output can arrive any more.
    """
    nodes: dict[str, list[str]] = {}
    for node, feed in feeds.items():
        nodes.setdefault(_absence_reason(feed, settled=settled), []).append(node)
    reasons = [f"{_named(each)}: {why}" for why, each in nodes.items()]
    if len(reasons) > _MOST_REASONS:
        left = len(reasons) - _MOST_REASONS
        reasons = [*reasons[:_MOST_REASONS], f"{left} more reasons on other nodes"]
    attempt = name.attempt.number
    which = f" (attempt {attempt})" if attempt > 1 else ""
    what = f"Nothing is known of what allocation {name.allocation.id}{which} wrote"
    hint = "The job's own files are not touched; docs/operate/logs.md explains each reason."
    if not settled and set(nodes) != {_NO_FILE}:
        hint = "It ended a moment ago and may still arrive: try again in a minute."
    return DataUnavailable(
        f"{what}. {'; '.join(reasons)}." if reasons else f"{what}: it ran on no node.", hint=hint
    )


def _absence_reason(feed: NodeFeed, *, settled: bool) -> str:
    troubles = [each.trouble for each in feed.streams.values() if each.trouble]
    if feed.trouble:
        return f"the node does not answer ({feed.trouble.rstrip('.')})"
    if not feed.reported.is_set():
        return "the node has not answered yet"
    if feed.no_stream or troubles:
        return (feed.no_stream or troubles[0]).rstrip(".")
    if feed.over and not feed.streams:
        return _NO_FILE
    return _NOT_KNOWN if settled else _NOT_YET


def reasons_of(feeds: Mapping[str, NodeFeed], known: Container[str]) -> dict[str, str]:
    """Why output of nodes is missing or incomplete; `known` are nodes with stored streams."""
    found = {}
    for node, feed in feeds.items():
        troubles = [each.trouble for each in feed.streams.values() if each.trouble]
        if troubles and not feed.over:
            found[node] = f"the rest is not read yet ({troubles[0]})"
        elif feed.no_stream and not feed.streams and node not in known:
            found[node] = f"nothing of its output is known ({feed.no_stream})"
    return found


def _named(nodes: list[str]) -> str:
    """`n1`, or `n1 and 3 more`."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


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
        notes = [self._note(NoteKind.ARCHIVE_AWAY, text=store_away)] if store_away else []
        for node, feed in feeds.items():
            why = feed.trouble or ("" if feed.reported.is_set() else _NO_ANSWER_YET)
            if why:
                notes.append(self._lose(node, why))
        return notes + self._clocks_off(feeds)

    def tampered(self, faults: Iterable[str]) -> list[LogNote]:
        """How stored objects differ from their seal."""
        return [self._note(NoteKind.TAMPERED, text=each) for each in faults]

    def changes(self, feeds: Mapping[str, NodeFeed]) -> list[LogNote]:
        """Nodes that went away or came back since the last call."""
        notes = []
        for node, feed in feeds.items():
            if feed.trouble and node not in self.lost:
                notes.append(self._lose(node, feed.trouble))
            elif not feed.trouble and feed.reported.is_set() and node in self.lost:
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
        text = attempt.state.value
        if attempt.exit_code is not None:
            text += f", exit {attempt.exit_code}"
        if unread:
            text += f"; the end of {unread[0]} has not arrived"
        elif not all_known:
            text += "; whether that was all is not known while the object store does not answer"
        elif not streams:
            text += "; nothing of what it wrote has arrived"
        complete = all_known and bool(streams) and not unread
        return self._note(NoteKind.END, text=text, lines=0 if complete else None)

    def _lose(self, node: str, why: str) -> LogNote:
        self.lost[node] = self._clock.monotonic()
        return self._note(NoteKind.DISCONNECTED, node, why)

    def _note(
        self,
        kind: NoteKind,
        node: str = "",
        text: str = "",
        *,
        seconds: float | None = None,
        lines: int | None = None,
    ) -> LogNote:
        now = self._clock.now()
        return LogNote(kind=kind, time=now, node=node, words=text, seconds=seconds, lines=lines)
