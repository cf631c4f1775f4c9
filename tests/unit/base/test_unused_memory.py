"""What only refers to itself is freed while a process holds secrets, and once more after that."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from lattice.base.unused_memory import COLLECT_EVERY_S, collect_unused


class Text:
    """Refers to itself."""

    def __init__(self) -> None:
        self.again = self


async def test_it_collects_while_secrets_are_held_and_once_after() -> None:
    secrets: list[str] = []
    left: list[bool] = []
    rounds = iter(([], ["key"], [], []))

    async def sleep(seconds: float) -> None:
        assert seconds == COLLECT_EVERY_S
        left.append(watched() is not None)
        text.append(Text())
        new = next(rounds, None)
        if new is None:
            raise asyncio.CancelledError
        secrets[:] = new
        text.clear()

    text: list[Text] = [Text()]
    watched = weakref.ref(text[0])
    gc.disable()
    try:
        with pytest.raises(asyncio.CancelledError):
            await collect_unused(lambda: secrets, sleep)
    finally:
        gc.enable()
    # Before the first round, after one without secrets, and after the one with a key.
    assert left[:3] == [True, True, False]
