"""Old output from a real S3: what a range costs, against a bare read of the same bytes.

    just bench logs-history [--rounds N] [--bytes N]

A log of 2 GB goes through the node's real spool and the server's real intake into SeaweedFS. Then
ranges of it are read: by the archive and a stream's view, which know nothing beforehand, and by
obstore and zstd alone, which are told where the range's frames lie; and by `lattice logs` from a
server on the same store. One JSON line a figure, rounds interleaved, each round at another place.
What is fetched is counted at the port of the store.

It runs a second time inside the lab's network, where SeaweedFS listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

import obstore

from bench.figures import Figure, load, paired
from bench.logs_history_served import ServedRange, served_range
from bench.logs_history_site import Counting, Site, s3_place
from lab.laboratory import Lab
from lattice.base.zstd import zstd
from lattice.domain.logchunk import FRAME_BYTES
from lattice.domain.logs import LogKind
from lattice.domain.objects import ObjectStore
from lattice.features.logs.lines import Lines
from lattice.features.logs.service.archive import Archive, Span
from lattice.features.logs.service.stored import StoredStream
from lattice.features.logs.service.view import StreamView, ViewStart

ROUNDS = 9
SIZE = 2_000_000_000
TIME_GOAL = 1.25
BYTES_GOAL = 1.05
_TIMED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """Frames side by side in one object, and where each ends."""

    key: str
    begin: int
    ends: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.ends[-1] - self.begin


def runs_of(stream: StoredStream, since_ms: int, until_ms: int) -> list[Run]:
    """Where the frames lie that overlap a range of time."""
    runs = []
    for chunk in stream.chunks:
        frames = [
            each
            for each in chunk.index.placed()
            if each.times_ms[1] >= since_ms and each.times_ms[0] <= until_ms
        ]
        if frames:
            ends = tuple(each.stored_at + each.frame.stored_bytes for each in frames)
            runs.append(Run(chunk.key, frames[0].stored_at, ends))
    return runs


async def read_bare(site: Site, runs: list[Run]) -> int:
    """The same frames by obstore and zstd, one request a chunk."""
    size = 0
    for run in runs:
        stored = memoryview(
            await obstore.get_range_async(site.bare, run.key, start=run.begin, length=run.size)
        )
        size += expanded_bare(stored, run)
    return size


def expanded_bare(stored: memoryview, run: Run) -> int:
    size = 0
    begin = run.begin
    for end in run.ends:
        size += len(zstd.decompress(stored[begin - run.begin : end - run.begin]))
        begin = end
    return size


async def opened(site: Site, objects: ObjectStore, since_ms: int, until_ms: int) -> StreamView:
    """A view of the range, by an archive that has read nothing yet."""
    archive = Archive(objects)
    span = Span(since_ms, until_ms)
    ((name, stored),) = (await archive.streams(site.name, LogKind, (), span)).items()
    view = StreamView(name, archive, stored, None)
    view.begin(ViewStart(time_ms=since_ms, until_ms=until_ms))
    return view


async def read_lines(site: Site, objects: ObjectStore, since_ms: int, until_ms: int) -> int:
    """Lines of a range of time, as people ask for them."""
    view = await opened(site, objects, since_ms, until_ms)
    size = 0
    async for item in view.items(view.end.offset):
        if isinstance(item, Lines) and item.time_ms <= until_ms:
            size += len(item.text)
    return size


async def read_raw(site: Site, begin: int, end: int) -> int:
    """Bytes of a range of offsets, as a download asks for them."""
    archive = Archive(site.objects)
    ((name, stored),) = (await archive.streams(site.name, LogKind, (), Span(offset=begin))).items()
    size = 0
    async for text in StreamView(name, archive, stored, None).bytes_from(begin, end):
        size += len(text)
    return size


class Times:
    """What each round of a way took, by the wall and of this process's processors."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.processor_s: list[float] = []

    async def take(self, reading: Awaitable[int]) -> int:
        wall, processor = time.perf_counter(), time.process_time()
        size = await reading
        self.processor_s.append(time.process_time() - processor)
        self.wall_s.append(time.perf_counter() - wall)
        return size


async def timed(site: Site, stream: StoredStream, rounds: int, served: ServedRange) -> list[Figure]:
    lines, raw, printed = Times(), Times(), Times()
    bare_lines, bare_raw, bare_printed = Times(), Times(), Times()
    plain = stream.end.offset
    for number in range(rounds + 1):
        at = (number + 1) / (rounds + 3)
        since_ms, until_ms = site.ms(at), site.ms(at + _TIMED_SHARE)
        begin, end = int(at * plain), int((at + _TIMED_SHARE) * plain)
        runs = runs_of(stream, since_ms, until_ms)
        size = await lines.take(read_lines(site, site.objects, since_ms, until_ms))
        bare_size = await bare_lines.take(read_bare(site, runs))
        raw_size = await raw.take(read_raw(site, begin, end))
        await bare_raw.take(read_bare(site, runs))
        printed_size = await printed.take(served.read(since_ms, until_ms))
        await bare_printed.take(read_bare(site, runs))
        if raw_size != end - begin or any(
            abs(bare_size - each) > 2 * FRAME_BYTES for each in (size, printed_size)
        ):
            sizes = (size, printed_size, raw_size, bare_size)
            raise AssertionError(f"{sizes} bytes were read")
    for each in (lines, raw, printed, bare_lines, bare_raw, bare_printed):
        # The first warms.
        del each.wall_s[0], each.processor_s[0]
    share = f"{_TIMED_SHARE:.0%} of {plain / 1e9:.1f} GB"
    figures = []
    for name, ours, bare in (
        (f"logs: an old range of time as lines ({share})", lines, bare_lines),
        (f"logs: an old range of bytes as it is ({share})", raw, bare_raw),
    ):
        against = f"{name}, against a bare ranged read"
        figures += [
            paired(against, "s", ours.wall_s, bare.wall_s, at_most=TIME_GOAL),
            paired(f"{against}, by processor time", "s", ours.processor_s, bare.processor_s),
        ]
    name = f"logs: an old range of time by lattice logs ({share})"
    wall = printed.wall_s, bare_printed.wall_s
    return [*figures, *served.figures(name, wall, bare_printed.processor_s)]


async def counted(site: Site, stream: StoredStream, rounds: int) -> list[Figure]:
    """1 % of the time: what is fetched, over what its frames take and one more frame."""
    fetched, needed, fetches = [], [], []
    frame_bytes = max(
        each.frame.stored_bytes for chunk in stream.chunks for each in chunk.index.placed()
    )
    for number in range(rounds):
        at = (number + 1) / (rounds + 2)
        since_ms, until_ms = site.ms(at), site.ms(at + 0.01)
        counting = Counting(site.objects)
        await read_lines(site, counting, since_ms, until_ms)
        fetched.append(float(counting.fetched_bytes - frame_bytes))
        fetches.append(counting.fetches)
        needed.append(float(sum(run.size for run in runs_of(stream, since_ms, until_ms))))
    size = f"{stream.end.offset / 1e9:.1f} GB in {len(stream.chunks)} chunks"
    figure = paired(
        f"logs: fetched for 1 % of the time of {size}, less one frame, over what is needed",
        "bytes", fetched, needed, at_most=BYTES_GOAL,
    )  # fmt: skip
    requests = Figure(
        name="logs: requests for it", value=sorted(fetches)[len(fetches) // 2], unit="1"
    )
    return [figure, requests]


async def inside(endpoint: str, rounds: int, size: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        site = Site(s3_place(Path(name), endpoint))
        await site.fill(Path(name) / "spool", size)
        stream = await site.stored()
        if stream.end.offset != size:
            raise AssertionError(f"{stream.end.offset} bytes of {size} are stored")
        with served_range(site, Path(name), endpoint) as served:
            times = await timed(site, stream, rounds, served)
        return [*times, *await counted(site, stream, rounds)]


def figures(rounds: int = ROUNDS, size: int = SIZE) -> list[Figure]:
    """By a store of its own."""
    lab = Lab("benchlogs", parts=("seaweedfs",))
    try:
        lab.up()
        enter = ["nsenter", f"--net={lab.network.control_file}"]
        again = [sys.executable, "-m", "bench.logs_history", "--inside", lab.seaweedfs.endpoint]
        words = [f"--rounds={rounds}", f"--bytes={size}"]
        told = subprocess.run([*enter, *again, *words], check=True, stdout=subprocess.PIPE)
    finally:
        lab.down(purge=True)
    return [Figure(**json.loads(line)) for line in told.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_history")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    parser.add_argument("--bytes", type=int, default=SIZE, help="of the log")
    parser.add_argument("--inside", metavar="ENDPOINT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds = max(options.rounds, 7)
    if options.inside:
        told = asyncio.run(inside(options.inside, rounds, options.bytes))
    else:
        told = figures(rounds, options.bytes)
    facts = {} if options.inside else {"rounds": rounds, "load": load()}
    for each in told:
        each.print(**facts)
    missed = any(each.ok is False for each in told) and not options.inside
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
