"""A target with a bug, to see that the engine finds it. Not one of the real targets."""

from __future__ import annotations

from collections.abc import Iterator


def try_one(data: bytes) -> None:
    if data[:1] == b"\xff" and data[1:4] == b"BUG":
        raise ValueError("planted")


def seeds() -> Iterator[bytes]:
    yield b"harmless"
