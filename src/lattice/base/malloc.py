"""Settings of the C library's allocator of memory. Where there are none, calls do nothing."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""From `malloc.h`."""


def return_freed_memory(large_bytes: int) -> None:
    """Return freed memory to the system, if it is large. By default up to 64 MiB are kept.

    All threads share one arena: in an agent most of them wait, so they don't need one each.
    """
    _set(_ARENA_MAX, 1)
    keep_freed_memory(large_bytes)


def keep_freed_memory(most_bytes: int) -> None:
    """Keep so much freed memory for the next use: new pages cost more than most uses of them."""
    _set(_MMAP_THRESHOLD, most_bytes)
    _set(_TRIM_THRESHOLD, most_bytes)


def _set(option: int, value: int) -> None:
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).mallopt(option, value)
