"""Waiting for a condition in a test.

The patience guards against hangs. It is no bound: a busy machine may take all of it. A test that
holds the code to a time measures it and carries the mark `timing`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
_TURNS_WITHOUT_PAUSE = 1000


def eventually(
    read: Callable[[], T],
    wanted: Callable[[T], object] = bool,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.02,
) -> T:
    """Read again and again until the value is as wanted, and return it.

    Reading takes at most half of the time: what is waited for needs the processor, too.
    """
    deadline = time.monotonic() + patience_s
    while True:
        begun = time.monotonic()
        value = read()
        if wanted(value):
            return value
        now = time.monotonic()
        assert now < deadline, f"not within {patience_s:g} s; last seen: {value!r}"
        time.sleep(max(pause_s, now - begun))


async def eventually_async(
    read: Callable[[], T | Awaitable[T]],
    wanted: Callable[[T], object] = bool,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.01,
) -> T:
    """The same for code of an event loop; `read` may be a coroutine function.

    The first turns have no pause: what waits for other tasks of the loop alone is soon there.
    """
    deadline = time.monotonic() + patience_s
    for turn in itertools.count():
        found = read()
        value = await found if isinstance(found, Awaitable) else found
        if wanted(value):
            return value
        assert time.monotonic() < deadline, f"not within {patience_s:g} s; last seen: {value!r}"
        await asyncio.sleep(pause_s if turn > _TURNS_WITHOUT_PAUSE else 0)
    raise AssertionError("unreachable")
