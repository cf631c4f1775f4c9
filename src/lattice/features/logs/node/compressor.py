"""Compresses frames of chunks, in the calling thread or in a thread of its own.

While somebody follows a job, its capture must read on at once. Then a thread of the node compresses
for all captures; zstd releases the interpreter's lock meanwhile. Each stream has one frame there at
most, so a capture that is faster waits.

Without followers a capture compresses in its own thread, which may run at a lower priority.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from lattice.domain.logchunk import compress, compress_sensitive


class StartCompression(Protocol):
    """Begins to compress the text of one frame; the result is the frame."""

    def __call__(self, text: bytes, *, sensitive: bool = False) -> Future[bytes]:
        """Nothing of a sensitive text stays with the compressor."""


def compress_now(text: bytes, *, sensitive: bool = False) -> Future[bytes]:
    """Compress in the calling thread."""
    done: Future[bytes] = Future()
    done.set_result(compress_sensitive(text) if sensitive else compress(text))
    return done


class FrameCompressor:
    """The thread. It begins with the first frame."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log frames")

    def start(self, text: bytes, *, sensitive: bool = False) -> Future[bytes]:
        """Begin to compress; returns at once."""
        try:
            return self._thread.submit(compress_sensitive if sensitive else compress, text)
        except RuntimeError:
            # It is closed: the agent stops, and this capture has not ended yet.
            return compress_now(text, sensitive=sensitive)

    def close(self) -> None:
        """End the thread after the frames that were begun."""
        self._thread.shutdown(wait=False)
