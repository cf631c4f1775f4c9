"""`python -m lattice.features.logs.service.search_worker`: searches texts for a server.

A request and an answer are a length of four bytes and a MessagePack document each. The worker
yields the processor to every other process, and ends with its server. It has each text only while
it searches it, so the pipes have no buffers: those would keep the end of a text.
"""

from __future__ import annotations

import os
import signal
import struct
from collections import OrderedDict
from contextlib import suppress
from typing import BinaryIO

import msgspec

from lattice.base.malloc import overwriting
from lattice.base.process import leave_no_core
from lattice.features.logs.service.search import LineQuestion, LineSearch

_LENGTH = struct.Struct("!I")
LARGEST_BYTES = 64 * 1024 * 1024
_NICE = 19
_MOST_COMPILED = 8
"""Queries with cached patterns, each up to 16 MiB."""


class SearchRequest(msgspec.Struct, array_like=True):
    """One text to search."""

    question: LineQuestion
    labelled: bool
    torn: bool
    text: bytes


def write_frame(pipe: BinaryIO, content: bytes) -> None:
    """Write a document after its length. The pipe has no buffer."""
    _write_all(pipe, _LENGTH.pack(len(content)))
    _write_all(pipe, content)


def _write_all(pipe: BinaryIO, content: bytes) -> None:
    written = pipe.write(content)
    rest = memoryview(content)
    while written < len(rest):
        rest = rest[written:]
        written = pipe.write(rest)


def read_frame(pipe: BinaryIO) -> bytes:
    """Read a document. Raises `EOFError` if the other end is gone."""
    (size,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    if size > LARGEST_BYTES:
        raise EOFError(f"a document of {size} bytes")
    return _exactly(pipe, size)


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    content = pipe.read(size)
    if len(content) == size:
        return content
    parts = [content]
    missing = size - len(content)
    while missing:
        if not parts[-1]:
            raise EOFError("the other end is gone")
        parts.append(pipe.read(missing))
        missing -= len(parts[-1])
    return b"".join(parts)


class SearchWorker:
    """Answers requests until they end."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._read = msgspec.msgpack.Decoder(SearchRequest)
        self._write = msgspec.msgpack.Encoder()
        self._compiled: OrderedDict[LineQuestion, LineSearch] = OrderedDict()

    def run(self) -> None:
        """Return when the server has closed its end."""
        with suppress(EOFError, BrokenPipeError):
            while True:
                # An error ends the process, and the server reports it: no line is lost silently.
                write_frame(self._answers, self._answer())

    def _answer(self) -> bytes:
        request = self._read.decode(read_frame(self._requests))
        search = self._search(request.question)
        spans = search.spans(request.text, labelled=request.labelled, torn=request.torn)
        return self._write.encode(spans)

    def _search(self, question: LineQuestion) -> LineSearch:
        if question not in self._compiled:
            self._compiled[question] = LineSearch(question)
            if len(self._compiled) > _MOST_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(question)
        return self._compiled[question]


def yield_the_processor() -> None:
    """Run only while no other process wants a processor."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield_the_processor()
    if overwriting():
        leave_no_core()
    with open(0, "rb", buffering=0) as requests, open(1, "wb", buffering=0) as answers:
        SearchWorker(requests, answers).run()
