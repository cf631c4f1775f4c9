"""A target that never ends on one input, to see that the engine stops it."""

from __future__ import annotations

TOKENS = (b"LOOP",)


def try_one(data: bytes) -> None:
    while data == b"LOOP":
        pass
