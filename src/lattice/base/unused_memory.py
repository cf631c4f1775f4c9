"""Frees what only refers to itself, so that no text of sensitive work stays in it.

Python finds such objects at its own time, which may be late in a quiet process.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sized

COLLECT_EVERY_S = 10.0


async def collect_unused(
    secrets: Callable[[], Sized], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Collect while the process holds secrets, and once more after that. Runs until cancelled."""
    held = False
    while True:
        await sleep(COLLECT_EVERY_S)
        before, held = held, len(secrets()) > 0
        if before or held:
            gc.collect()
