"""A cursor: the attempt, and the position of each stream. Opaque to callers, not secret."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import msgspec

from lattice.base.errors import UsageError
from lattice.domain.logs import LogKind, LogSource, Position, StreamName

_LARGEST_TEXT = 4 * 1024 * 1024
_LARGEST = 512 * 1024
_FEW = 8
"""With more streams, to find a known cursor takes as long as to write it."""
_MOST_KNOWN = 256


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Cursor(msgspec.Struct, frozen=True):
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    places: dict[str, tuple[_Count, _Count]]


def write_cursor(attempt: int, positions: Mapping[str, Position]) -> str:
    """The cursor as text for a URL or a header. The keys are names of streams as text."""
    found = tuple(positions.items())
    return _written(attempt, found) if len(found) <= _FEW else _write(attempt, found)


def _write(attempt: int, positions: tuple[tuple[str, Position], ...]) -> str:
    entries = {name: (at.offset, at.line) for name, at in positions}
    packed = zlib.compress(msgspec.json.encode(_Cursor(attempt, entries)), 1)
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


_written = lru_cache(_MOST_KNOWN)(_write)
"""Many viewers of one job are at the same position."""


def read_cursor(text: str) -> tuple[int, dict[StreamName, Position]]:
    """The attempt and the positions. Raises `UsageError`."""
    try:
        cursor = _unpacked(text)
        positions = dict(map(_position, cursor.places.items()))
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError, RecursionError):
        raise UsageError(
            "The cursor is not one that this server gave.", hint="Start anew without it."
        ) from None
    return cursor.attempt, positions


def _unpacked(text: str) -> _Cursor:
    if len(text) > _LARGEST:
        raise ValueError("too long")
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return msgspec.json.decode(zlib.decompressobj().decompress(packed, _LARGEST_TEXT), type=_Cursor)


def _position(entry: tuple[str, tuple[int, int]]) -> tuple[StreamName, Position]:
    name, (offset, line) = entry
    node, kind, source = name.split("/")
    return StreamName(node, LogKind(kind), LogSource.parse(source)), Position(offset, line)
