"""Requests of nodes: grants to read output, and chunks to store.

The server trusts a node's certificate and nothing else. Slurm must report that the job is or was on
that node. A chunk must match its index byte for byte. The key comes from Slurm's data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lattice.access.grants import GrantSigner
from lattice.access.journal import RefusalJournal
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.failpoints import failpoint
from lattice.domain.attempts import EndedAttempts, NotKnownYet
from lattice.domain.grant import Act
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import (
    LARGEST_CHUNK_BYTES,
    TAIL_BYTES,
    BadChunk,
    ChunkIndex,
    verify,
)
from lattice.domain.logs import BadSource, LogKind, LogSource
from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.outputs import JobFiles
from lattice.domain.privileged import OpenNoted, OpenOutput, OpenOutputFile, digest_of
from lattice.domain.sealed import sealed_bytes
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.chunk_admission import NO_QUOTA, Expected, StoredQuota
from lattice.features.logs.service.job_seals import JobSealing, opened_chunk
from lattice.features.logs.service.log_keys import AttemptName, name_of
from lattice.features.logs.service.retention import Removals
from lattice.features.logs.service.seal import Seals
from lattice.foundation.attempt_finder import AttemptFinder

_STORE_S = 1.0
_LARGEST_SEALED_BYTES = sealed_bytes(LARGEST_CHUNK_BYTES)
_TOO_LARGE = "A chunk of that size is not taken."
_MOST_NUMBERS = 1000
_AGENT = "agent:"


@dataclass(frozen=True, slots=True)
class AdmittedStream:
    """Up to where the store has a stream."""

    kind: LogKind
    source: str
    index: ChunkIndex
    number: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a node may do about a job's output."""

    grant: str
    path: str
    stored: tuple[AdmittedStream, ...]
    since_ms: int = 0
    until_ms: int = 0
    """For noted files: the range of their writers' start times."""
    seal: JobSeal | None = None
    """What seals the output; None if the job is not sensitive."""


@dataclass(frozen=True, slots=True)
class ChunkStores:
    """Where chunks are put. What is sealed has a bucket of its own, or none."""

    ordinary: ObjectStore
    sealed: ObjectStore | None

    def of(self, seal: JobSeal | None) -> ObjectStore:
        """Raises `Unavailable` if there is none."""
        if seal is None:
            return self.ordinary
        if self.sealed is None:
            raise Unavailable(
                "This server has no bucket for sensitive work.",
                hint="An administrator sets sensitive.bucket.",
            )
        return self.sealed


class LogIntake:
    """Serves agents, on their own listener."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it stands on
        self,
        finder: AttemptFinder,
        files: JobFiles,
        objects: ObjectStore,
        signer: GrantSigner,
        journal: RefusalJournal,
        clock: Clock,
        seals: Seals,
        on_last: Callable[[AttemptName], None] = lambda _: None,
        quota_bytes: int = NO_QUOTA,
        sealing: JobSealing | None = None,
        stores: ChunkStores | None = None,
    ) -> None:
        """`on_last` is called when a stream has its last chunk.

        `stores` are where chunks are put: those of sealed jobs, and all others.
        """
        self._sealing = sealing or JobSealing()
        self._chunk_stores = stores or ChunkStores(objects, None)
        self.quota = StoredQuota(objects, quota_bytes)
        self._on_last = on_last
        self._finder = finder
        self._files = files
        self._objects = objects
        self._signer = signer
        self._journal = journal
        self._seals = seals
        self._archive = Archive(objects)
        self._expected = Expected(self._archive, Removals(objects), clock)

    async def admit(
        self,
        node: str,
        job_id: int,
        started: float,
        pids: Sequence[int],
        *,
        kind: LogKind = LogKind.STDOUT,
        with_stored: bool = False,
        can_seal: bool = False,
    ) -> Admitted:
        """A grant for the node's helper to open the output of a job that Slurm has there.

        Without `pids` it is for the file that Slurm names, if this node ran the script. Long after
        a job's end there is no grant for processes, and none for a node that stored everything.
        """
        name = await self._named(node, job_id, started)
        if pids and self._expected.is_long_over(name):
            raise self._no_grant(node, f"job {job_id} is over, so no process of it writes")
        seal = await self._seal(node, name, can_seal=can_seal)
        stored: tuple[AdmittedStream, ...] = ()
        if with_stored:
            looking = self._stored(name, node)
            stored = await (self._if_soon(looking) if pids else looking)
        path = ""
        if pids:
            digest = digest_of(OpenOutput(tuple(pids)))
        elif await self._expected.is_complete(name, node):
            return Admitted("", "", stored, seal=seal)
        else:
            named = await self._files.of(name.allocation)
            path = named.files.get(kind, "") if named.host == node else ""
            if not path:
                return Admitted("", "", stored, seal=seal)
            digest = digest_of(OpenOutputFile(path))
        return Admitted(self._sign(node, job_id, name, digest), path, stored, seal=seal)

    async def admit_noted(
        self,
        node: str,
        job_id: int,
        started: float,
        *,
        until: float = 0.0,
        skip: int = 0,
        with_stored: bool = False,
        can_seal: bool = False,
    ) -> Admitted:
        """A grant for the files that the helper noted of this attempt there.

        There is none once the job is over and all output of this node is stored.
        """
        name = await self._named(node, job_id, started)
        if await self._expected.is_complete(name, node):
            raise self._no_grant(node, f"job {job_id} is over, and all its output there is stored")
        seal = await self._seal(node, name, can_seal=can_seal)
        stored = await self._stored(name, node) if with_stored else ()
        ended = name.attempt.ended
        ends = [until] if until > 0 else []
        ends += [ended.timestamp()] if ended is not None else []
        since_ms = max(1, int((started - CLOCK_SLACK_S) * 1000))
        until_ms = int((min(ends) + CLOCK_SLACK_S) * 1000) if ends else 0
        question = OpenNoted(since_ms, until_ms, skip)
        if question.fault():
            raise UsageError("No such moments are granted.")
        grant = self._sign(node, job_id, name, digest_of(question))
        return Admitted(grant, "", stored, since_ms, until_ms, seal)

    async def seal_of(self, node: str, job_id: int, started: float) -> JobSeal | None:
        """What seals a job that runs on this node, or ran there and is not all stored yet."""
        name = await self._named(node, job_id, started)
        if await self._expected.is_complete(name, node):
            raise self._no_grant(node, f"job {job_id} is over, and all its output there is stored")
        return await self._seal(node, name, can_seal=True)

    async def _seal(self, node: str, name: AttemptName, *, can_seal: bool) -> JobSeal | None:
        seal = await self._sealing.of(name.allocation)
        if seal is not None and not can_seal:
            raise self._no_grant(node, "the job is sensitive, and this agent can't seal its output")
        return seal

    async def _named(self, node: str, job_id: int, started: float) -> AttemptName:
        """The attempt; `Unavailable` while Slurm may still report it."""
        try:
            return name_of(await self._finder.of(node, job_id, started))
        except NotKnownYet as error:
            raise Unavailable(error.message, hint="The node asks again.") from None

    def _sign(self, node: str, job_id: int, name: AttemptName, digest: str) -> str:
        return self._signer.issue(
            Act.READ_OUTPUT,
            node,
            subject=_AGENT + node,
            user=name.allocation.user,
            job_id=job_id,
            digest=digest,
        )

    async def expect(
        self, node: str, job_id: int, started: float, kind: str, source: str, number: int,
        size_bytes: int,
    ) -> None:  # fmt: skip
        """Return if such a chunk may be sent; called before its bytes are read."""
        if not 0 < size_bytes <= _LARGEST_SEALED_BYTES:
            raise UsageError(_TOO_LARGE)
        try:
            LogKind(kind), LogSource.parse(source)
        except (BadSource, ValueError) as fault:
            raise self._refusal(node, f"not a chunk: {fault}") from None
        if number < 1:
            raise self._refusal(node, "chunks are numbered from 1")
        try:
            name = name_of(await self._finder.of(node, job_id, started))
        except NotFound:
            raise self._refusal(node, f"job {job_id} did not run there") from None
        if size_bytes > LARGEST_CHUNK_BYTES and await self._sealing.of(name.allocation) is None:
            raise UsageError(_TOO_LARGE)
        try:
            await self.quota.check(name, node, size_bytes)
        except PermissionRefused as error:
            self._journal.refused("StoreChunk", node, error.message)
            raise

    async def store(
        self, node: str, job_id: int, started: float, kind: str, source: str, number: int,
        content: bytes,
    ) -> int:  # fmt: skip
        """Store a chunk and return its number. The same chunk again gets the same number.

        Unexpected chunks are refused: a complete stream stays as it is.
        """
        try:
            name = await self._named(node, job_id, started)
        except NotFound:
            raise self._refusal(node, f"job {job_id} did not run there") from None
        seal = await self._sealing.of(name.allocation)
        try:
            content = await asyncio.to_thread(
                opened_chunk, seal, node, kind, source, number, content
            )
        except PermissionRefused as error:
            self._journal.refused("StoreChunk", node, error.message)
            raise
        try:
            index = await asyncio.to_thread(verify, content)
            announced = (node, job_id, LogKind(kind), str(LogSource.parse(source)))
        except (BadChunk, BadSource, ValueError) as fault:
            raise self._refusal(node, f"not a chunk: {fault}") from None
        if (index.node, index.job_id, index.kind, index.source) != announced or number < 1:
            raise self._refusal(node, "the chunk is of another stream than was said")
        reason = await self._expected.refusal(name, index)
        if reason:
            held = await self._held(name, index, number, content)
            if not held:
                raise self._refusal(node, reason)
            await self._vouch(name, index, held, content)
            return held
        for free in range(number, number + _MOST_NUMBERS):
            key = name.chunk_key(index.kind, node, free)
            failpoint("intake.verified")
            is_new = await self._chunk_stores.of(seal).put_new(key, content)
            if is_new:
                self.quota.added(name, node, len(content))
            if is_new or await self._is_same(key, content):
                failpoint("intake.stored")
                await self._vouch(name, index, free, content)
                return free
        raise UsageError("No number is free for this chunk.")

    async def _vouch(
        self, name: AttemptName, index: ChunkIndex, number: int, content: bytes
    ) -> None:
        """Before the answer to the node: without an answer it sends the chunk again."""
        key = name.chunk_key(index.kind, index.node, number)
        await self._seals.note_late(name, key, content)
        if index.last or name.attempt.ended is not None:
            self._on_last(name)

    async def _held(self, name: AttemptName, index: ChunkIndex, number: int, content: bytes) -> int:
        """The number of this very chunk if it is stored, else 0. An earlier answer was lost."""
        for taken in range(number, number + _MOST_NUMBERS):
            try:
                if await self._is_same(name.chunk_key(index.kind, index.node, taken), content):
                    return taken
            except NoObject:
                break
        return 0

    async def past_jobs(self, node: str, since: float) -> EndedAttempts:
        """The attempts that ended on a node while its agent was away."""
        return await self._finder.ended_on(node, datetime.fromtimestamp(since, UTC))

    async def _is_same(self, key: str, content: bytes) -> bool:
        """Raises `NoObject`. The end of the object is small and nearly always differs."""
        tail, size = await self._objects.read_end(key, TAIL_BYTES)
        if size != len(content) or not content.endswith(tail):
            return False
        return await self._objects.read(key) == content

    async def _if_soon(
        self, looking: Awaitable[tuple[AdmittedStream, ...]]
    ) -> tuple[AdmittedStream, ...]:
        """Wait at most a second: a process may end before the store is back.

        Without an answer its node begins at the beginning; text stored twice is read once.
        """
        try:
            async with asyncio.timeout(_STORE_S):
                return await looking
        except (TimeoutError, Unavailable):
            return ()

    async def _stored(self, name: AttemptName, node: str) -> tuple[AdmittedStream, ...]:
        latest: dict[tuple[LogKind, str], AdmittedStream] = {}
        for kind in LogKind:
            async for each in self._objects.listing(name.stream_prefix(kind, node)):
                number = _number_of(each.key)
                index = await self._archive.indexes.of(each) if number else None
                if index is None:
                    continue
                held = latest.get((kind, index.source))
                if held is None or index.end >= held.index.end:
                    latest[kind, index.source] = AdmittedStream(kind, index.source, index, number)
        return tuple(latest.values())

    def _no_grant(self, node: str, reason: str) -> PermissionRefused:
        self._journal.refused("AdmitOutput", node, reason)
        return PermissionRefused(f"No output is opened: {reason}.")

    def _refusal(self, node: str, reason: str) -> PermissionRefused:
        self._journal.refused("StoreChunk", node, reason)
        return PermissionRefused(f"The chunk is refused: {reason}.")


def _number_of(key: str) -> int:
    name = key.rpartition("/")[2]
    digits = name.removeprefix("chunk_").removesuffix(".log.zst")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
