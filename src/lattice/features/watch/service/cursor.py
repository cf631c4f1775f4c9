"""A cursor: what the reader of a stream has received. Opaque to callers, with no secrets.

It holds the standing alerts, so that another replica neither repeats them nor misses their end. If
there are very many, the newest are left out and repeated: a cursor is part of a request's head.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field

import msgspec

from lattice.base.errors import UsageError
from lattice.domain.alert import Phase
from lattice.domain.stream import is_session

_LARGEST = 12 * 1024
_LARGEST_TEXT = 1024 * 1024
_MOST_ALERTS = 4000
_LATEST = 1e11

Known = tuple[str, str, str, str, float]
"""Node, rule, subject, phase, since."""


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """What the reader has received."""

    session: str
    """The stream's slot among its caller's, kept over reconnects."""
    attempt: int = 0
    state: str = ""
    mode: str = ""
    alerts: tuple[Known, ...] = field(default=())


def write_cursor(cursor: WatchCursor) -> str:
    """Encode a cursor for a URL or a header."""
    alerts = list(cursor.alerts[:_MOST_ALERTS])
    while True:
        fields = [cursor.session, cursor.attempt, cursor.state, cursor.mode, alerts]
        packed = zlib.compress(msgspec.json.encode(fields))
        text = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
        if len(text) <= _LARGEST or not alerts:
            return text
        alerts = alerts[: len(alerts) * 2 // 3]


def read_cursor(text: str) -> WatchCursor:
    """Decode a cursor. Raises `UsageError`."""
    try:
        return _unpacked(text)
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError):
        raise UsageError(
            "The cursor is not one that this server gave.", hint="Start anew without it."
        ) from None


def _unpacked(text: str) -> WatchCursor:
    if len(text) > _LARGEST:
        raise ValueError("too long")
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    fields = msgspec.json.decode(
        zlib.decompressobj().decompress(packed, _LARGEST_TEXT),
        type=tuple[str, int, str, str, tuple[Known, ...]],
    )
    for *_, phase, since in fields[4]:
        if Phase(phase) is Phase.CLEARED or not 0 <= since < _LATEST:
            raise ValueError("nothing that stands")
    if not is_session(fields[0]) or len(fields[4]) > _MOST_ALERTS:
        raise ValueError("no session")
    return WatchCursor(*fields)
