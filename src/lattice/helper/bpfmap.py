"""Reads values out of the kernel's eBPF maps by their descriptors: one system call, no library.

A lookup needs no capability where the kernel lets whoever holds the descriptor (5.19 and newer).
"""

from __future__ import annotations

import ctypes
import os
import struct

from lattice.helper.privilege import Kernel

_CALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
_LOOKUP = 1


class _Lookup(ctypes.Structure):
    _fields_ = (
        ("map", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class BpfMap:
    """A map whose values are 64-bit counters, so many of them, once or a copy for each CPU."""

    def __init__(
        self, kernel: Kernel, descriptor: int, *, key: str, counters: int, copies: int = 1
    ) -> None:
        self._kernel = kernel
        self._number = _CALL_NUMBERS.get(os.uname().machine)
        self._descriptor = descriptor
        self._key = struct.Struct(f"={key}")
        self._counters = counters
        self._copies = copies

    def lookup(self, key: int) -> tuple[int, ...] | None:
        """The counters under a key, summed over all CPUs; None: no such entry. Raises `OSError`."""
        if self._number is None:
            raise OSError(0, "no number of the call bpf for this machine")
        raw_key = ctypes.create_string_buffer(self._key.pack(key))
        # The kernel writes as much as the map has, whatever there is room for.
        value = (ctypes.c_uint64 * (self._counters * self._copies))()
        asked = _Lookup(self._descriptor, 0, ctypes.addressof(raw_key), ctypes.addressof(value), 0)
        try:
            self._kernel.call(self._number, _LOOKUP, ctypes.addressof(asked), ctypes.sizeof(asked))
        except FileNotFoundError:
            return None
        return summed(bytes(value), self._counters)


def summed(raw: bytes, counters: int) -> tuple[int, ...]:
    """Of copies that stand one after the other, the sum of each counter."""
    copy = struct.Struct(f"={counters}Q")
    total, none = [0] * counters, bytes(copy.size)
    for at in range(0, len(raw), copy.size):
        part = raw[at : at + copy.size]
        # A job uses few of a large node's CPUs, and comparing is quicker than adding.
        if part != none:
            total = [one + other for one, other in zip(total, copy.unpack(part), strict=True)]
    return tuple(total)
