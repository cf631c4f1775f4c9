"""Searches in separate processes, so that the event loop does not share their interpreter.

Each calling thread has one process, started at its first search. While the process searches, the
thread waits and holds no lock.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from lattice.base.errors import Unavailable
from lattice.base.malloc import OVERWRITES_NAMES
from lattice.features.logs.service.search import LineQuestion, LineSpan
from lattice.features.logs.service.search_worker import SearchRequest, read_frame, write_frame

_log = logging.getLogger(__name__)
_ARGV = (sys.executable, "-P", "-m", "lattice.features.logs.service.search_worker")
_ENVIRONMENT = (*OVERWRITES_NAMES, "PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH")


class SearchProcesses:
    """Used from a few threads, each with its own process."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[LineSpan]).decode
        self._own = threading.local()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def spans(
        self, question: LineQuestion, text: bytes, *, labelled: bool, torn: bool
    ) -> list[LineSpan]:
        """As `LineSearch.spans`. Raises `Unavailable` if the process ended meanwhile."""
        request = self._encode(SearchRequest(question, labelled, torn, text))
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, request)  # type: ignore[arg-type]
            return self._decode(read_frame(process.stdout))  # type: ignore[arg-type]
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            self._end(process)
            if not self._closed:
                _log.warning("a search process ended: %s", error)
            raise Unavailable("The search was interrupted.", hint="Try again.") from None

    def close(self) -> None:
        """End the processes; a search in progress raises `Unavailable`."""
        with self._lock:
            self._closed = True
            processes = tuple(self._processes)
        for process in processes:
            self._end(process)

    def _process(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is not None and process.poll() is not None:
            self._end(process)
            process = None
        if process is None:
            with self._lock:
                if self._closed:
                    raise Unavailable("The server ends.", hint="Ask another.")
                process = self._own.process = _started()
                self._processes.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        with self._lock:
            self._processes.discard(process)


def _started() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return subprocess.Popen(
        _ARGV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd="/",
        bufsize=0,
    )
