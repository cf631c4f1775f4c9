"""Settings of the C library's allocator of memory. Where there are none, calls do nothing.

A process can overwrite what it frees. Then no text stays in its memory after its last use. Python's
own allocator can't do that, glibc's can: `perturb` fills each freed piece, except in the cache of
each thread, which is off therefore. The dynamic linker puts registers on the stack when it binds a
function at its first call. They have the text that was last copied, so all are bound at the start.
The environment that a process starts with decides that, so one that needs it executes itself again.

What remains is the stack: some functions of Python format small texts there, of up to 512 bytes.
Later calls overwrite it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""From `malloc.h`."""
_TUNABLES = "GLIBC_TUNABLES"
_OVERWRITES = {
    "PYTHONMALLOC": "malloc",
    _TUNABLES: "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0",
    "LD_BIND_NOW": "1",
}
OVERWRITES_NAMES = tuple(_OVERWRITES)
"""What a child's environment needs, so that it overwrites freed memory as well."""
_ONCE = "LATTICE_OVERWRITES_FREED_MEMORY"
"""Set for the process that was executed again, so that it isn't once more."""
_PROBE_BYTES = 203

_Execute = Callable[[str, list[str], Mapping[str, str]], NoReturn]


class NotOverwriting(Exception):
    """This process can't be made to overwrite freed memory."""


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


def overwriting() -> bool:
    """True if this process overwrites what it frees. It is tried, not read from a setting."""
    if not all(name in os.environ for name in OVERWRITES_NAMES):
        return False
    text = os.urandom(_PROBE_BYTES // 2).hex().encode() + b"-"
    address = id(text) + bytes.__basicsize__ - 1
    # The allocator's own pointers are at the beginning of a freed piece.
    middle, most = address + 32, len(text) - 64
    before = ctypes.string_at(middle, most)
    del text
    return before not in ctypes.string_at(middle, most)


def overwrite_freed_memory(execute: _Execute = os.execve) -> None:
    """Execute this program again, so that it overwrites what it frees. Returns if it does already.

    What was in memory before is gone as well. Open files and threads end. Raises `NotOverwriting`
    where it has no effect, as with another C library than glibc.
    """
    if overwriting():
        return
    if reason := why_never():
        raise NotOverwriting(f"freed memory is not overwritten: {reason}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    execute(sys.executable, arguments, {**overwriting_environment(os.environ), _ONCE: "1"})


def why_never() -> str:
    """Why this process can't overwrite what it frees; empty if it can be executed so."""
    if _ONCE in os.environ:
        return "that takes glibc"
    return "Python ignores its environment" if sys.flags.ignore_environment else ""


def overwriting_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same, for a process that overwrites what it frees. Other tunables stay."""
    others = [
        each
        for each in environment.get(_TUNABLES, "").split(":")
        if each and not each.startswith(("glibc.malloc.perturb=", "glibc.malloc.tcache_count="))
    ]
    tunables = ":".join([*others, _OVERWRITES[_TUNABLES]])
    return {**environment, **_OVERWRITES, _TUNABLES: tunables}


def _set(option: int, value: int) -> None:
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).mallopt(option, value)
