"""Runs short pieces of heavy work in a few threads.

`asyncio.to_thread` starts up to 32 threads, each of which competes with the event loop for the
interpreter. These few have the priority of the loop. A thread of lower priority could hold the
interpreter while it waits for a processor, and the loop would wait too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

_MOST_THREADS = 4
_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def few() -> int:
    """Half of the processors and at most 4, so that the event loop keeps one."""
    return max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))


async def in_few_threads(
    work: Callable[_Arguments, _Found], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Found:
    """Return what `work` returns, or raise what it raises. Waits until a thread is free."""
    return await asyncio.get_running_loop().run_in_executor(
        _pool(), lambda: work(*arguments, **named)
    )


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(few(), thread_name_prefix="heavy")
