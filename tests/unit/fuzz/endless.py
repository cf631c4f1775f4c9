"""A target that never ends on one input, to see that the engine stops it."""

from __future__ import annotations

TOKENS = (b"LOOP",)
LONGEST_CPU_S = 0.5


def try_one(data: bytes) -> None:
    while data == b"LOOP":
        pass
