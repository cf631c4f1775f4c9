"""zstd: a part of Python from 3.14 on, and a package before."""

import sys
from collections.abc import Mapping

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["compress_secret", "zstd"]


def compress_secret(text: bytes, options: Mapping[int, int]) -> bytes:
    """One frame. A compressor that is used again keeps parts of the text; this one is freed."""
    return zstd.ZstdCompressor(options=options).compress(text, zstd.ZstdCompressor.FLUSH_FRAME)
