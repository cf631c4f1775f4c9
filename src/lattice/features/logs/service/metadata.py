"""`metadata.json` of an attempt: a summary of its chunks, written when the attempt is over.

It is derived from the chunks, and sealed (`seal`). When an attempt is complete, a server signs what
is stored, and later readers detect changes. Lattice reads only the seal of this file. The same
chunks give the same bytes, so any replica may write it, or two.

Sealed data is never sealed again from what is found. Objects without a seal and without a server's
note are not entered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.attempts import attempts_of
from lattice.domain.logchunk import BadChunk
from lattice.domain.logs import LogKind, StreamName
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.scheduler import Scheduler
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.records import moment
from lattice.features.logs.service.seal import METADATA, BrokenSeal, Seal, Seals
from lattice.features.logs.service.stored import StoredStream

_log = logging.getLogger(__name__)

FIRST_CHECK_S = 5.0
"""After a stream's last chunk: those of the attempt's other nodes come about now."""
LATER_CHECK_S = 30.0
_ROUND_S = 1.0
_MOST_WAITING = 20_000
_TRIES = 5


class ChunkFacts(msgspec.Struct, frozen=True):
    """One chunk, with its key below the attempt's folder."""

    key: str
    offset: int
    bytes: int
    line: int
    lines: int
    sha256: str
    index_sha256: str = ""


class GapFacts(msgspec.Struct, frozen=True):
    """A gap; `lost_bytes` is null if its size is unknown."""

    offset: int
    line: int
    cause: str
    lost_bytes: int | None
    time: str


class StreamFacts(msgspec.Struct, frozen=True):
    """One whole stream."""

    node: str
    stream: str
    source: str
    rank: int | None
    path: str
    bytes: int
    lines: int
    first: str | None
    last: str | None
    gaps: tuple[GapFacts, ...]
    chunks: tuple[ChunkFacts, ...]


class Metadata(msgspec.Struct, frozen=True):
    """The content of the file."""

    format: int
    allocation: str
    attempt: int
    nodes: tuple[str, ...]
    bytes: int
    lines: int
    first: str | None
    last: str | None
    streams: tuple[StreamFacts, ...]
    seal: Seal | None = None


def metadata_of(name: AttemptName, stored: Mapping[StreamName, StoredStream]) -> Metadata:
    """The summary of these chunks alone."""
    streams = tuple(_stream(name, stored[each]) for each in sorted(stored))
    return Metadata(
        format=1,
        allocation=name.allocation.ref,
        attempt=name.attempt.number,
        nodes=tuple(sorted({each.node for each in streams})),
        bytes=sum(each.bytes for each in streams),
        lines=sum(each.lines for each in streams),
        first=min((each.first for each in streams if each.first), default=None),
        last=max((each.last for each in streams if each.last), default=None),
        streams=streams,
    )


def _stream(name: AttemptName, stored: StoredStream) -> StreamFacts:
    times = [
        time_ms
        for chunk in stored.chunks
        for placed in chunk.index.placed()
        for time_ms in placed.times_ms
    ]
    return StreamFacts(
        node=stored.name.node,
        stream=stored.name.kind.value,
        source=str(stored.name.source),
        rank=stored.name.source.task,
        path=stored.path,
        bytes=stored.end.offset,
        lines=stored.end.line,
        first=_written(min(times)) if times else None,
        last=_written(max(times)) if times else None,
        gaps=tuple(
            GapFacts(
                each.at.offset,
                each.at.line,
                each.cause.value,
                each.lost_bytes,
                _written(each.time_ms),
            )
            for each in stored.gaps
        ),
        chunks=tuple(
            ChunkFacts(
                key=chunk.key.removeprefix(f"{name.prefix}/"),
                offset=chunk.index.begin.offset,
                bytes=chunk.index.end.offset - chunk.index.begin.offset,
                line=chunk.index.begin.line,
                lines=chunk.index.end.line - chunk.index.begin.line,
                sha256=chunk.index.sha256,
                index_sha256=chunk.digest,
            )
            for chunk in stored.chunks
        ),
    )


def _written(time_ms: int) -> str:
    return moment(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Summaries:
    """Writes it for each attempt once it ended in Slurm and every stream is complete.

    The queue is in memory only. After a kill the next server continues, as long as Slurm has the
    job.
    """

    def __init__(
        self, objects: ObjectStore, scheduler: Scheduler, clock: Clock, seals: Seals
    ) -> None:
        self._objects = objects
        self._seals = seals
        self._archive = Archive(objects)
        self._sealed = Archive(objects, seals)
        self._scheduler = scheduler
        self._clock = clock
        self._due: dict[str, tuple[float, AttemptName]] = {}
        self.written_total = 0

    def note(self, name: AttemptName) -> None:
        """A stream of this attempt has its last chunk."""
        if name.prefix not in self._due and len(self._due) < _MOST_WAITING:
            self._due[name.prefix] = (self._clock.monotonic() + FIRST_CHECK_S, name)

    def note_remembered(self) -> None:
        """Add attempts that ended before this server started."""
        for each in self._scheduler.live().cluster.allocations:
            for attempt in attempts_of(each):
                if attempt.started is not None and attempt.ended is not None:
                    self.note(AttemptName(each, attempt))

    async def run(self) -> None:
        """Run until cancelled."""
        remembered = False
        while True:
            try:
                if not remembered:
                    self.note_remembered()
                    remembered = True
                await self.process_due()
            except LatticeError as error:
                _log.info("%s: %s", METADATA, error.message)
            await asyncio.sleep(_ROUND_S)

    async def process_due(self) -> None:
        """Process everything that is due, once."""
        now = self._clock.monotonic()
        for prefix, (due, name) in tuple(self._due.items()):
            if due > now:
                continue
            # Postpone first: a store that is away must not be asked again at once.
            self._due[prefix] = (now + LATER_CHECK_S, name)
            if self._is_over(name):
                await self.write(name)
                self._due.pop(prefix, None)

    def _is_over(self, name: AttemptName) -> bool:
        wanted = name.allocation
        for each in self._scheduler.live().cluster.of_job(wanted.job_id):
            if (each.first_submitted or each.submitted) != (
                wanted.first_submitted or wanted.submitted
            ):
                continue
            for attempt in attempts_of(each):
                if attempt.number == name.attempt.number:
                    return attempt.ended is not None
            return each.attempt > name.attempt.number
        return True

    async def write(self, name: AttemptName) -> bool:
        """Write it if every stored stream is complete; False if one is not.

        An existing file is the same, or older than a late chunk; then it is written again. The
        written file is compared with the chunks once more, because another replica may have seen
        more of them.
        """
        key = f"{name.prefix}/{METADATA}"
        try:
            before = await self._read(key)
        except BadChunk as fault:
            _log.error("%s is left as it is: %s", key, fault)
            return True
        if before is not None:
            return await self._enter_late(name, key, before)
        for _ in range(_TRIES):
            content = await self._content(name, self._archive, with_seal=True)
            if content is None:
                return False
            if before is None and not await self._objects.put_new(key, content):
                # Another replica was first, and makes the same comparison.
                return True
            if before == content:
                return True
            if before is not None:
                await self._objects.put(key, content)
            self.written_total += 1
            before = content
        return True

    async def _enter_late(self, name: AttemptName, key: str, before: bytes) -> bool:
        """Enter chunks that came after it was written. A file without a seal gets none."""
        try:
            seal = await self._seals.of(name)
        except BrokenSeal as broken:
            _log.error("the seal of %s does not hold: %s", key, broken)
            return True
        archive = self._archive if seal is None else self._sealed
        found: bytes | None = before
        for _ in range(_TRIES):
            content = await self._content(name, archive, with_seal=seal is not None)
            if content is None:
                return False
            if found is not None and _facts(content) == _facts(found):
                return True
            await self._objects.put(key, content)
            self.written_total += 1
            found = await self._read(key)
        return True

    async def _content(
        self, name: AttemptName, archive: Archive, *, with_seal: bool
    ) -> bytes | None:
        stored = await archive.streams(_as_ended(name), LogKind)
        if stored.faults:
            _log.error("%s is left as it is: %s", name.prefix, "; ".join(stored.faults))
            return await self._read(f"{name.prefix}/{METADATA}")
        if not stored or not all(each.last for each in stored.values()):
            return None
        facts = metadata_of(name, stored)
        if with_seal:
            seal = self._seals.made(name, msgspec.json.encode(facts))
            facts = msgspec.structs.replace(facts, seal=seal)
        return msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n"

    async def _read(self, key: str) -> bytes | None:
        try:
            return await self._objects.read(key)
        except NoObject:
            return None


def _facts(content: bytes) -> object:
    """The content without the seal, which depends on the key."""
    try:
        read = msgspec.json.decode(content, type=Metadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return content
    return msgspec.structs.replace(read, seal=None)


def _as_ended(name: AttemptName) -> AttemptName:
    """The attempt as ended: a seal is read only for ended attempts."""
    if name.attempt.ended is not None:
        return name
    return AttemptName(name.allocation, replace(name.attempt, ended=name.attempt.started))
