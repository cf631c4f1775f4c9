"""Tasks that run beside something, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(*steps: tuple[str, Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Each step by its name, until the context ends; by then every one of them has ended."""
    tasks = [asyncio.create_task(step, name=name) for name, step in steps]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
