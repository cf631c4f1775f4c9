"""A node's answer to a probe: an echo, or as many bytes as the probe requests.

The bytes of a flood are a known pattern. So a reader can prove that none is missing, doubled or out
of place.
"""

from __future__ import annotations

from functools import cache

import msgspec

from lattice.domain.stream import Session

MOST_BYTES = 1 << 32
_LARGEST_CHUNK_BYTES = 64 * 1024


class ProbeOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a probe; empty means an echo."""

    flood_bytes: int = 0
    chunk_bytes: int = _LARGEST_CHUNK_BYTES


def pattern(offset: int, size: int) -> bytes:
    """The bytes of a flood at an offset; `size` is at most one message."""
    begin = offset % _LARGEST_CHUNK_BYTES
    return _whole_pattern()[begin : begin + size]


@cache
def _whole_pattern() -> bytes:
    # Few nodes are ever flooded, so it is made on first use.
    return b"".join(number.to_bytes(4, "big") for number in range(_LARGEST_CHUNK_BYTES // 2))


async def serve_echo(session: Session, opening: bytes) -> None:
    """Return when the other end has sent its last message, or the flood is sent."""
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
