"""A parser for server-sent events. Pure: pieces in, events out.

It covers what a stream of JSON needs: `event`, `data`, `id` and comments, lines that end in LF or
CR LF. A lone CR does not end a line: JSON has none, and proxies only produce CR LF. What is kept
between two pieces is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

LONGEST_EVENT_BYTES = 16 * 1024 * 1024
"""Far above what a server sends as one event: 256 KiB of text, each byte escaped to six."""


class BadEvents(OSError):
    """The bytes are no stream of events, so the connection is of no use."""


class Event(NamedTuple):
    """One event. A comment, which only shows that the server is alive, has no name."""

    name: str
    data: bytes
    id: str
    record: object | None = None
    """The record, if the format carries it decoded; else it is JSON in `data`."""


ALIVE = Event("", b"", "")


class StreamReader(Protocol):
    """Makes events of the bytes of one connection."""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece, in order. Raises `BadEvents`."""


class EventReader:
    """Takes pieces of any size and returns the events that are complete."""

    def __init__(self, limit_bytes: int = LONGEST_EVENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._name = ""
        self._id = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece, in order. Raises `BadEvents` if one is too large."""
        # `find`, because `split` is slow on a large piece.
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            line = piece[begin:end]
            begin = end + 1
            if self._held:
                line = b"".join([*self._held, line])
                self._held, self._held_bytes = [], 0
            event = self._line(line[:-1] if line.endswith(b"\r") else line)
            if event is not None:
                yield event
        if begin < len(piece):
            self._held.append(piece[begin:])
            self._held_bytes += len(piece) - begin
            self._check(self._held_bytes + self._data_bytes)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise BadEvents("an event is too large")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._end()
        if line.startswith(b":"):
            return ALIVE
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            self._check(self._data_bytes)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        return None

    def _end(self) -> Event | None:
        event = None
        if self._data or self._name:
            event = Event(self._name or "message", b"\n".join(self._data), self._id)
        self._name, self._id, self._data, self._data_bytes = "", "", [], 0
        return event
