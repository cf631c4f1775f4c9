"""Sizes as text for people. Pure."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size_bytes: float) -> str:
    """`0 B`, `1.5 KiB`, `12 GiB`: at most three digits, so the value is rounded."""
    value = float(size_bytes)
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    rounded = f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    return f"{rounded} {unit}"
