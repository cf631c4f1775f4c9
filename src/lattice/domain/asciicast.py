"""asciicast v3: the header and the events of a recorded terminal, a line of JSON each. Pure.

    {"version":3,"term":{"cols":80,"rows":24,"type":"xterm"},"timestamp":1772366400}
    [0.250000,"o","$ "]
    [1.100000,"i","l"]

A time is the seconds since the event before. A terminal may show bytes that are no text. A byte
that is no UTF-8 stands as a lone surrogate in a stored recording, so every byte comes back.
`plain_lines` replaces those, and joins a character that two events share: players take text only.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from lattice.domain.terminal import LARGEST_SIDE

VERSION = 3
MICROSECONDS = 1_000_000
_LARGEST_US = 1 << 53
_CODES = "oirxm"


class BadCast(ValueError):
    """A line is not one of asciicast v3."""


class CastKind(StrEnum):
    OUTPUT = "o"
    INPUT = "i"
    RESIZE = "r"
    EXIT = "x"
    MARK = "m"
    """A remark of the recorder, such as a signal."""


class CastEvent(NamedTuple):
    at_us: int
    """Since the beginning of the recording."""
    kind: CastKind
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CastHeader:
    """The first line."""

    columns: int
    rows: int
    terminal: str
    """The value of TERM; empty: pipes in place of a terminal."""
    timestamp: int
    command: str = ""
    title: str = ""

    def line(self) -> bytes:
        document: dict[str, Any] = {
            "version": VERSION,
            "term": {
                "cols": self.columns,
                "rows": self.rows,
                **({"type": self.terminal} if self.terminal else {}),
            },
            "timestamp": self.timestamp,
        }
        if self.command:
            document["command"] = self.command
        if self.title:
            document["title"] = self.title
        return _written(document)


def resized(columns: int, rows: int) -> bytes:
    """The data of a resize."""
    return f"{columns}x{rows}".encode()


def event_line(event: CastEvent, before_us: int) -> bytes:
    """The line of an event that follows one at `before_us`."""
    seconds, rest = divmod(max(0, event.at_us - before_us), MICROSECONDS)
    text = json.dumps(event.data.decode("utf-8", "surrogateescape"))
    return f'[{seconds}.{rest:06d},"{event.kind.value}",{text}]\n'.encode("ascii")


def read_header(line: bytes) -> CastHeader:
    """The header in this line. Raises `BadCast`."""
    document = _json(line)
    try:
        term = document["term"]
        header = CastHeader(
            columns=_side(term["cols"]),
            rows=_side(term["rows"]),
            terminal=_text(term.get("type", "")),
            timestamp=_count(document["timestamp"]),
            command=_text(document.get("command", "")),
            title=_text(document.get("title", "")),
        )
    except (KeyError, TypeError, AttributeError):
        raise BadCast("its header can't be parsed") from None
    if document.get("version") != VERSION:
        raise BadCast("its header is of another version")
    return header


def read_event(line: bytes, before_us: int) -> CastEvent:
    """The event in this line. Raises `BadCast`."""
    match _json(line):
        case [int() | float() as interval, str(code), str(text)] if (
            not isinstance(interval, bool) and len(code) == 1 and code in _CODES
        ):
            if not 0 <= interval * MICROSECONDS < _LARGEST_US:
                raise BadCast("an event has an impossible time")
            at_us = before_us + round(interval * MICROSECONDS)
            try:
                data = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise BadCast("an event is no text") from None
            return CastEvent(at_us, CastKind(code), data)
    raise BadCast("an event can't be parsed")


def plain_lines(header: CastHeader, events: Iterable[CastEvent]) -> Iterator[bytes]:
    """The recording for any player: whole characters, and no byte that is no text."""
    yield header.line()
    decoders = {
        each: codecs.getincrementaldecoder("utf-8")("replace")
        for each in (CastKind.OUTPUT, CastKind.INPUT)
    }
    before_us = 0
    for event in events:
        data = event.data
        if (decoder := decoders.get(event.kind)) is not None:
            data = decoder.decode(data).encode()
            if not data:
                continue
        else:
            data = data.decode("utf-8", "replace").encode()
        yield event_line(event._replace(data=data), before_us)
        before_us = event.at_us
    for kind, decoder in decoders.items():
        if rest := decoder.decode(b"", final=True):
            yield event_line(CastEvent(before_us, kind, rest.encode()), before_us)


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise BadCast("a line can't be parsed") from None


def _side(value: Any) -> int:
    if type(value) is not int or not 0 < value <= LARGEST_SIDE:
        raise BadCast("its header has a size that no terminal has")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST_US:
        raise BadCast("its header has an impossible time")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadCast("its header has a field that is no text")
    return value
