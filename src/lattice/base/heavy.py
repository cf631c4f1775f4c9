"""Short pieces of heavy work in a few threads of low priority.

The threads of `asyncio.to_thread` have the priority of the event loop. On a machine whose
processors are all busy, the loop then waits for its turn beside them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

_MOST_THREADS = 4
_NICE = 10
_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def few() -> int:
    """As many threads as leave the event loop a processor."""
    return max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))


async def in_few_threads(
    work: Callable[_Arguments, _Found], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Found:
    """What `work` returns or raises. It waits until a thread is free."""
    return await asyncio.get_running_loop().run_in_executor(
        _pool(), lambda: work(*arguments, **named)
    )


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(few(), thread_name_prefix="heavy", initializer=give_way)


def give_way() -> None:
    """Let other threads go first, from within a thread that only computes."""
    here = threading.get_native_id()
    # Going back up would need a right.
    if os.getpriority(os.PRIO_PROCESS, here) < _NICE:
        os.setpriority(os.PRIO_PROCESS, here, _NICE)
