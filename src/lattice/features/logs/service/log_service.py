"""Answers queries of logs from the store and from the nodes.

Pages and streams work in the same way. First comes everything up to the current end of the streams,
merged in the order of time. A stream with `follow` continues with new lines. One lookup decides who
may read.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, ExitStack, aclosing

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, Sessions
from lattice.access.output import CHECK_EVERY_S, AccessSession, OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, NotFound, Unavailable, UsageError
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import attempts_of, chosen_attempt, named
from lattice.domain.logs import BadSource, LogSource
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.features.logs.blocks import RecordGroup
from lattice.features.logs.model import (
    LARGEST_PAGE,
    USUAL_PAGE_LINES,
    LogPage,
    LogQuery,
    LogRecord,
    LogStreamFacts,
    LogStreams,
)
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.bounds import PageMeter, WorkBounds
from lattice.features.logs.service.cursor import read_cursor
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_keys import AttemptName, name_of
from lattice.features.logs.service.log_query import LogQueryRun, RecordWithCursor
from lattice.features.logs.service.query_streams import LogSources, QueryStreams
from lattice.features.logs.service.records import DECODED, LineFilter, RecordForm, moment
from lattice.features.logs.service.retention import Removals
from lattice.features.logs.service.shared_follow import SharedFollows
from lattice.features.logs.service.view import StreamView, ranked
from lattice.wire.watched import watched


class LogService:
    """Serves logs to people."""

    def __init__(
        self,
        scheduler: Scheduler,
        access: OutputAccess,
        archive: Archive,
        feeds: Feeds,
        clock: Clock,
        limits: CallerLimits | None = None,
        removals: Removals | None = None,
        bounds: WorkBounds | None = None,
    ) -> None:
        self._bounds = bounds or WorkBounds()
        self._limits = limits
        self._scheduler = scheduler
        self._access = access
        self._sources = LogSources(
            scheduler, archive, feeds, clock, removals, turns=self._bounds.turns
        )
        self._follows = SharedFollows()
        self.aclose = self._follows.aclose

    async def page(self, actor: Actor, name: str, query: LogQuery) -> LogPage:
        """At most `limit` lines from a position on; fewer if they need much work."""
        limit = query.limit or USUAL_PAGE_LINES
        if not 0 < limit <= LARGEST_PAGE:
            raise UsageError(f"A page has 1 to {LARGEST_PAGE} lines.", hint="Use the cursor.")
        records: list[LogRecord] = []
        cursor = ""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._bounds.pages.admitted(actor.sub))
            run, _ = await self._start(actor, name, query, ReadKind.READ)
            await run.found.open(stack)
            records += run.found.opening_notes()
            count, clock = len(run.view.streams), self._sources.clock
            meter = PageMeter(self._bounds.budget, limit, count, clock)
            groups = await stack.enter_async_context(aclosing(run.caught_up()))
            async for group in groups:
                records += group
                if meter.is_full_with(group, run.scanned_bytes):
                    cursor = run.cursor()
                    break
        return LogPage(
            allocation=run.found.name.allocation.ref,
            attempt=run.found.name.attempt.number,
            attempts=len(attempts_of(run.found.name.allocation)),
            records=tuple(records),
            cursor=cursor,
            ranked=ranked(run.view.streams.values()),
            finished=run.found.ended and not cursor and not run.found.away,
        )

    async def stream(
        self, actor: Actor, name: str, query: LogQuery, form: RecordForm = DECODED
    ) -> AsyncGenerator[RecordWithCursor, None]:
        """Everything, and with `follow` new lines until the job is over."""
        kind = ReadKind.FOLLOW if query.follow else ReadKind.READ
        run, visit = await self._start(actor, name, query, kind, form)
        records = self._counted(actor, self._records(run, follow=query.follow))
        if not form.is_grouped:
            records = _ungrouped(records)
        if not visit.is_owners:
            records = watched(records, visit.check, CHECK_EVERY_S)
        # Errors must be raised here, before anything is sent.
        first = await anext(records)
        return _with_first(first, records)

    async def _records(
        self, run: LogQueryRun, *, follow: bool
    ) -> AsyncGenerator[RecordWithCursor, None]:
        """What there is, and with `follow` what comes, in groups that followers share."""
        again = run.again
        while True:
            with ExitStack() as followed:
                async with AsyncExitStack() as stack:
                    async with aclosing(run.history(stack)) as records:
                        async for each in records:
                            yield each
                    if not follow:
                        return
                    follower, is_joined = await self._follows.follower(run, stack)
                    followed.callback(follower.leave)
                    if is_joined:
                        async with aclosing(run.rest()) as records:
                            async for each in records:
                                yield each
                # Only what is shared stays in memory.
                del run, records
                async for group in follower.groups():
                    yield group, ""
            if follower.left_at is None:
                return
            run = again(positions=follower.left_at)

    async def _counted(
        self, actor: Actor, records: AsyncIterator[RecordWithCursor]
    ) -> AsyncIterator[RecordWithCursor]:
        slot = None
        if self._limits is not None:
            slot = await self._limits.open(actor.sub, Sessions.STREAM_LOGS, secrets.token_hex(16))
        try:
            async for each in records:
                yield each
        finally:
            if slot is not None:
                await slot.release()

    async def streams(self, actor: Actor, name: str, query: LogQuery) -> LogStreams:
        """Which streams there are, and their ends."""
        run, _ = await self._start(actor, name, query, ReadKind.LIST)
        async with AsyncExitStack() as stack:
            await run.found.open(stack)
            _refuse_if_away(run.found)
            facts = tuple(_facts(each) for _, each in sorted(run.view.streams.items()))
        return LogStreams(
            allocation=run.found.name.allocation.ref,
            attempt=run.found.name.attempt.number,
            attempts=len(attempts_of(run.found.name.allocation)),
            finished=run.found.ended,
            streams=facts,
        )

    async def raw(
        self, actor: Actor, name: str, query: LogQuery, source: str
    ) -> tuple[int, AsyncIterator[bytes]]:
        """The current end of one stream, and its bytes from `query.offset` up to there."""
        try:
            wanted = LogSource.parse(source)
        except BadSource:
            raise UsageError(
                f"{source!r} names no source of output.", hint="`batch`, say."
            ) from None
        async with AsyncExitStack() as stack:
            stack.enter_context(self._bounds.downloads.admitted(actor.sub))
            run, visit = await self._start(actor, name, query, ReadKind.DOWNLOAD)
            await run.found.open(stack)
            _refuse_if_away(run.found)
            _refuse_if_tampered(run.found)
            for each, stream in run.view.streams.items():
                if each.source == wanted:
                    end = stream.end.offset
                    pieces = _raw(stack.pop_all(), stream, query.offset or 0, end)
                    # Started, so that closing it always releases its resources.
                    await anext(pieces)
                    if visit.is_owners:
                        return end, pieces
                    return end, watched(pieces, visit.check, CHECK_EVERY_S)
        raise NotFound(f"There is no such stream of {name}.", hint="`lattice logs` names them.")

    async def _start(
        self,
        actor: Actor,
        name: str,
        query: LogQuery,
        kind: ReadKind,
        form: RecordForm = DECODED,
    ) -> tuple[LogQueryRun, AccessSession]:
        line_filter = LineFilter(query, self._bounds.search)
        attempt_number, positions = read_cursor(query.cursor) if query.cursor else (0, {})
        found = await self._access.find(actor, name)
        attempt = chosen_attempt(found.allocation, query.attempt or attempt_number)
        if attempt.started is None:
            # It may have started since the last snapshot of Slurm.
            await self._scheduler.fresh(users={found.allocation.user})
            found = await self._access.find(actor, name)
            attempt = chosen_attempt(found.allocation, query.attempt or attempt_number)
        if attempt.started is None:
            raise _nothing_yet(found.allocation, attempt)
        visit = await self._access.enter(actor, found, kind)
        named_attempt = self._named(found.allocation, attempt)
        run = LogQueryRun(
            self._sources, named_attempt, query, line_filter, actor.sub, form, positions
        )
        return run, visit

    def _named(self, allocation: Allocation, attempt: Attempt) -> AttemptName:
        accounts = self._scheduler.live().cluster.accounts
        return name_of(named(allocation, attempt, accounts, self._sources.clock.now()))


async def _with_first(
    first: RecordWithCursor, rest: AsyncIterator[RecordWithCursor]
) -> AsyncGenerator[RecordWithCursor, None]:
    yield first
    async for each in rest:
        yield each


async def _ungrouped(
    records: AsyncIterator[RecordWithCursor],
) -> AsyncGenerator[RecordWithCursor, None]:
    async for record, cursor in records:
        if isinstance(record, RecordGroup):
            for each in record.records:
                yield each
        else:
            yield record, cursor


async def _raw(
    stack: AsyncExitStack, stream: StreamView, begin: int, end: int
) -> AsyncGenerator[bytes]:
    """An empty piece first, then the bytes."""
    async with stack:
        yield b""
        pieces = await stack.enter_async_context(aclosing(stream.bytes_from(begin, end)))
        async for piece in pieces:
            yield piece


def _facts(stream: StreamView) -> LogStreamFacts:
    name, end = stream.name, stream.end
    placed = [
        each for chunk in (stream.stored.chunks if stream.stored else ())
        for each in chunk.index.placed()
    ]  # fmt: skip
    fed = stream.fed
    path = fed.path if fed else stream.stored.path if stream.stored else ""
    return LogStreamFacts(
        node=name.node,
        stream=name.kind,
        source=str(name.source),
        rank=name.source.task,
        bytes=end.offset,
        lines=end.line,
        first=moment(placed[0].times_ms[0]) if placed else None,
        last=moment(placed[-1].times_ms[1]) if placed else None,
        path=path,
    )


def _refuse_if_away(found: QueryStreams) -> None:
    """Raise: a caller that wants everything must not get a part."""
    if found.away:
        raise Unavailable(found.away, hint="What was stored is safe: try again in a few minutes.")


def _refuse_if_tampered(found: QueryStreams) -> None:
    if found.faults:
        raise DataUnavailable(
            f"What is stored is not what was sealed: {found.faults[0]}.",
            hint="`lattice logs` shows what is left; tell your administrators.",
        )


def _nothing_yet(allocation: Allocation, attempt: Attempt) -> DataUnavailable | Unavailable:
    if attempt.number > 1 and attempt.number == allocation.attempt:
        return Unavailable(
            f"Allocation {allocation.id} waits to run again, and Slurm's accounting has not said "
            "yet when it ran before.",
            hint="Try again in a few seconds.",
        )
    return DataUnavailable(
        f"Allocation {allocation.id} has not started, so it has written nothing.",
        hint=f"`lattice status {allocation.id}` says what it waits for.",
    )
