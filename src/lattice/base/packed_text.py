"""Expands zstd frames of known size, where a module for zstd is installed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

_MODULES = ("compression.zstd", "backports.zstd")
"""Of Python 3.14, and of the package for earlier versions."""
_LARGEST_WINDOW_LOG = 23
"""8 MiB: a forged frame could claim 128 MiB, which are allocated before any text is made."""


class BadPackedText(ValueError):
    """Not one frame of the announced size."""


@cache
def can_expand() -> bool:
    """True if a module for zstd is installed. It is not loaded."""
    return any(map(_is_installed, _MODULES))


def expanded(stored: bytes | memoryview, plain_bytes: int) -> bytes:
    """The text of a frame. Raises `BadPackedText`; never expands to more than `plain_bytes`."""
    zstd, options = _zstd()
    expanding = zstd.ZstdDecompressor(options=options)
    try:
        text: bytes = expanding.decompress(stored, max_length=plain_bytes + 1)
        # After all the text, the checksum may still be unread.
        if not expanding.eof and not expanding.needs_input:
            text += expanding.decompress(b"", max_length=1)
    except zstd.ZstdError:
        raise BadPackedText("a frame can't be unpacked") from None
    if not expanding.eof or expanding.unused_data or len(text) != plain_bytes:
        raise BadPackedText("a frame is not what the index says")
    return text


@cache
def _zstd() -> tuple[Any, dict[int, int]]:
    """The module, and the options of a decompressor."""
    zstd: Any = import_module(next(filter(_is_installed, _MODULES)))
    return zstd, {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW_LOG}


def _is_installed(name: str) -> bool:
    # Loaded only by commands that read a stream.
    from importlib.util import find_spec  # noqa: PLC0415

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        # Its package is not installed.
        return False
