"""A node's way of a job's output, from its file to closed chunks, against zstd alone.

    just bench logs-pipeline [--rounds N] [--folder DIR]

Ours is the real thing: a job's file that grew while nobody looked, read by its capture's thread,
framed, hashed, kept on the disk and sealed, every sync included. Bare is one stream of zstd at
level 3 on one core over the same bytes in the same process. One JSON line a figure; a ratio is the
median of the rounds' own ratios, since both of a round meet the same machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.figures import Figure, paired
from bench.stories import log_text
from lattice.base.clock import SystemClock
from lattice.base.zstd import zstd
from lattice.domain.logchunk import FRAME_BYTES, read_index
from lattice.domain.logs import LogKind, LogSource
from lattice.features.logs.node.capture import JobCapture, Stream
from lattice.features.logs.node.spool import StreamHead, StreamSpool
from lattice.features.logs.node.tail import FileTail

ROUNDS = 9
SIZE = 96 * 1024 * 1024
GOAL = 0.7
_READ = 1024 * 1024
_LEVEL = 3


def captured(file: Path, folder: Path) -> None:
    """Everything in a job's file, to closed chunks on the disk."""
    head = StreamHead(
        node="n1", job_id=7, started=1.5, kind=LogKind.STDOUT, source=LogSource("batch")
    )
    spool = StreamSpool(folder, head)
    tail = FileTail(os.open(file, os.O_RDONLY), spool.mark, spool.end.offset)
    closed = threading.Event()

    def note_closed() -> None:
        if spool.over:
            closed.set()

    capture = JobCapture("bench", SystemClock(), lambda: True, note_closed)
    capture.add(Stream(tail, spool, late=False))
    capture.start()
    capture.finish()
    closed.wait()
    spool.close()


def streamed(text: bytes) -> None:
    """One stream of zstd."""
    packing = zstd.ZstdCompressor(_LEVEL)
    for begin in range(0, len(text), _READ):
        packing.compress(text[begin : begin + _READ])
    packing.flush()


def framed(text: bytes) -> None:
    """A frame for each 256 KiB, by a compressor for each."""
    for begin in range(0, len(text), FRAME_BYTES):
        zstd.compress(text[begin : begin + FRAME_BYTES], _LEVEL)


class Timed:
    """Times of one way, by the wall and of the processors."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.processor_rates: list[float] = []

    def run(self, size: int, act: Callable[[], None]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        act()
        self.processor_rates.append(size / 1e6 / (time.process_time() - processor))
        self.rates.append(size / 1e6 / (time.perf_counter() - wall))


def figures(rounds: int = ROUNDS, folder: Path | None = None, size: int = SIZE) -> list[Figure]:
    text = log_text(size)
    ours, bare, frames = Timed(), Timed(), Timed()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        file = Path(name) / "out"
        file.write_bytes(text)
        for number in range(rounds + 1):
            spool = Path(name) / f"spool-{number}"
            ours.run(size, partial(captured, file, spool))
            bare.run(size, lambda: streamed(text))
            frames.run(size, lambda: framed(text))
            _check(spool, size)
    for each in (ours, bare, frames):
        # The first warms.
        del each.rates[0], each.processor_rates[0]
    return [
        paired(
            "logs: file to closed chunks, against one stream of zstd level 3",
            "MB/s", ours.rates, bare.rates, at_least=GOAL,
        ),
        paired(
            "logs: the same by processor time",
            "MB/s", ours.processor_rates, bare.processor_rates,
        ),
        paired(
            "logs: the same, against zstd level 3 by frames of 256 KiB",
            "MB/s", ours.rates, frames.rates,
        ),
    ]  # fmt: skip


def _check(folder: Path, size: int) -> None:
    kept = 0
    for each in folder.glob("*.chunk"):
        content = each.read_bytes()
        index = read_index(content, len(content))
        kept += index.end.offset - index.begin.offset
        each.unlink()
    if kept != size:
        raise AssertionError(f"{kept} bytes of {size} were kept")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_pipeline")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    parser.add_argument("--folder", type=Path, help="on the disk that a node's spool would be on")
    options = parser.parse_args()
    told = figures(max(options.rounds, 7), options.folder)
    for each in told:
        each.print()
    return 1 if any(each.ok is False for each in told) else 0


if __name__ == "__main__":
    sys.exit(main())
