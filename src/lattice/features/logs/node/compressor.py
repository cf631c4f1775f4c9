"""Compresses frames of chunks, in the calling thread or in a thread of its own.

While somebody follows a job, its capture must read on at once. Then a thread of the node compresses
for all captures; zstd releases the interpreter's lock meanwhile. Each stream has one frame there at
most, so a capture that is faster waits.

Without followers a capture compresses in its own thread, which may run at a lower priority.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from lattice.domain.logchunk import compress

StartCompression: TypeAlias = Callable[[bytes], "Future[bytes]"]
"""Begins to compress the text of one frame; the result is the frame."""


def compress_now(text: bytes) -> Future[bytes]:
    """Compress in the calling thread."""
    done: Future[bytes] = Future()
    done.set_result(compress(text))
    return done


class FrameCompressor:
    """The thread. It begins with the first frame."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log frames")

    def start(self, text: bytes) -> Future[bytes]:
        """Begin to compress; returns at once."""
        try:
            return self._thread.submit(compress, text)
        except RuntimeError:
            # It is closed: the agent stops, and this capture has not ended yet.
            return compress_now(text)

    def close(self) -> None:
        """End the thread after the frames that were begun."""
        self._thread.shutdown(wait=False)
