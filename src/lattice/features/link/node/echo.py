"""A node's answer to a probe: what comes is sent back, or so many bytes are sent as were asked for.

The bytes of a flood are a known pattern, so that whoever reads them can prove that none is
missing, doubled or out of place.
"""

from __future__ import annotations

from functools import cache

import msgspec

from lattice.domain.stream import Session

MOST_BYTES = 1 << 32
_LARGEST_CHUNK_BYTES = 64 * 1024


class ProbeOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a probe may ask for; nothing: an echo."""

    flood_bytes: int = 0
    chunk_bytes: int = _LARGEST_CHUNK_BYTES


def pattern(offset: int, size: int) -> bytes:
    """The bytes of a flood at a place; `size` is at most one message."""
    begin = offset % _LARGEST_CHUNK_BYTES
    return _whole_pattern()[begin : begin + size]


@cache
def _whole_pattern() -> bytes:
    # Few nodes are ever flooded: it is made when it is needed.
    return b"".join(number.to_bytes(4, "big") for number in range(_LARGEST_CHUNK_BYTES // 2))


async def serve_echo(session: Session, opening: bytes) -> None:
    """Returns when the other end has said its last, or the flood is through."""
    try:
        asked = msgspec.json.decode(opening, type=ProbeOpening) if opening else ProbeOpening()
    except msgspec.DecodeError:
        asked = ProbeOpening()
    chunk = max(1, min(asked.chunk_bytes, _LARGEST_CHUNK_BYTES))
    total = min(asked.flood_bytes, MOST_BYTES)
    for offset in range(0, total, chunk):
        await session.send(pattern(offset, min(chunk, total - offset)))
    while not total and (payload := await session.receive()) is not None:
        await session.send(payload)
    await session.send(b"", last=True)
