"""Frees what only refers to itself, so that no text of sensitive work stays in it.

Python finds such objects at its own time, which may be late in a quiet process.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

COLLECT_EVERY_S = 10.0


async def collect_unused(
    is_due: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Collect while it is due. Runs until cancelled."""
    while True:
        await sleep(COLLECT_EVERY_S)
        if is_due():
            gc.collect()
