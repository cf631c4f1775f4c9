"""One query of an attempt's logs in progress: opens, reads and follows its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, NotFound, Unavailable
from lattice.base.turns import Turns
from lattice.domain.allocation import Attempt
from lattice.domain.attempts import attempts_of
from lattice.domain.logs import Gap, LogKind, Position, StreamName
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import LiveCluster, Scheduler
from lattice.features.logs.blocks import PackedLines
from lattice.features.logs.lines import Lines, last_state
from lattice.features.logs.model import LogNote, LogQuery, LogRecord, NoteKind
from lattice.features.logs.service.archive import Archive, Span, StoredStreams
from lattice.features.logs.service.cursor import write_cursor
from lattice.features.logs.service.frames import FrameForm, PassedFrame
from lattice.features.logs.service.live_feeds import Feeds, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.merge import MergedView, go_to_last, in_order
from lattice.features.logs.service.notices import LogNotices, absence_error, reasons_of
from lattice.features.logs.service.records import DECODED, LineFilter, RecordForm, gap
from lattice.features.logs.service.retention import Removals, removal_error
from lattice.features.logs.service.sieve import Sieve
from lattice.features.logs.service.view import Filtered, Item, StreamView, ViewStart
from lattice.features.logs.service.wakeups import Rounds

_FIRST_ANSWER_S = 4.0
_NO_OTHER_S = 2.0
"""How long a follower waits for first answers; the second applies since the last one came."""
_SEVERAL = 32
_SETTLE_S = 0.05
"""While more nodes than that are waited for, first answers are counted so often."""
_STORE_S = 3.0
_STORE_AGAIN_S = 0.3
"""How long a caller waits for the store before it gets what the nodes have.

The second applies if the store was silent for another caller a moment ago.
"""
_SILENT_FOR_S = 10.0
_FLOOD_BYTES, _PLENTY_BYTES = 32 * 1024, 128 * 1024
"""Bytes in one round: between these two, output is gathered into larger portions."""
_ALIVE_S = 5.0
_CURSOR_S = 1.0
_CURSOR_STREAM_S = 0.004
"""The time between two cursors, and more for each stream: a cursor has them all."""
_BEGINNINGS_S = 0.25
"""Between two checks of unfinished lines: fast writers end their lines anyway."""
_MOST_REFRESHES = 3
_SETTLED = timedelta(minutes=2)
_DRAIN_S = 30.0
"""After the end of a job, for the last of its output to arrive."""
_AT_ONCE = 128
"""So many items pass before other tasks get a turn of the event loop."""

RecordWithCursor: TypeAlias = tuple[LogRecord, str]
"""A record, and the cursor after it if there is one."""


@dataclass(frozen=True, slots=True)
class LogSources:
    """The sources of a query."""

    scheduler: Scheduler
    archive: Archive
    feeds: Feeds
    clock: Clock
    removals: Removals | None = None
    turns: Turns = field(default_factory=Turns)
    """For the work of callers' filters."""


class LogQueryRun:
    """One query in progress."""

    def __init__(
        self,
        sources: LogSources,
        name: AttemptName,
        query: LogQuery,
        line_filter: LineFilter,
        caller: str,
        form: RecordForm = DECODED,
    ) -> None:
        """`caller` pays for the filter's work."""
        self._form = form
        self._block = form.lines
        self.name = name
        self.view = MergedView()
        self.positions: dict[StreamName, Position] = {}
        self._sources = sources
        self._query = query
        self._filter = line_filter
        self._sieve = Sieve(line_filter, sources.turns, caller)
        self.scanned_bytes = 0
        """Text that was returned or filtered out so far."""
        self._feeds: dict[str, NodeFeed] = {}
        self.away = ""
        """Why the stored streams are unknown; empty if they are known."""
        self.faults: tuple[str, ...] = ()
        """How stored objects differ from their seal."""
        self._notices = LogNotices(sources.clock)
        self._begun: dict[StreamName, bytes] = {}
        self._begun_at = 0.0
        self._visited: dict[StreamView, None] = {}
        """Since the last check of unfinished lines."""
        self._cursor_at = 0.0
        self._known: tuple[LiveCluster, Attempt] | None = None
        """The attempt as it was in the last reading of Slurm."""
        self._asked: asyncio.Future[StoredStreams] | None = None
        self._rounds = Rounds()
        self._flooded = False
        self._stored_nodes: set[str] = set()
        """Nodes with a stored stream of the attempt."""

    @property
    def ended(self) -> bool:
        """True if the attempt is over."""
        return self._attempt_now().ended is not None

    def _attempt_now(self) -> Attempt:
        """The attempt as Slurm has it now."""
        cluster = self._sources.scheduler.live().cluster
        if self._known is None or self._known[0] is not cluster:
            self._known = (cluster, self._attempt_in(cluster))
        return self._known[1]

    def _attempt_in(self, cluster: LiveCluster) -> Attempt:
        name = self.name
        for each in cluster.of_job(name.allocation.job_id):
            if each.user == name.allocation.user:
                for attempt in attempts_of(each):
                    if attempt.number == name.attempt.number and attempt.started:
                        return attempt
                if each.attempt > name.attempt.number:
                    ended = name.attempt.ended or self._sources.clock.now()
                    return replace(name.attempt, ended=ended)
        return name.attempt

    def cursor(self) -> str:
        return write_cursor(self.name.attempt.number, self.view.positions())

    async def records(self) -> AsyncIterator[RecordWithCursor]:
        async with AsyncExitStack() as stack:
            await self.open(stack)
            for note in self.opening_notes():
                yield note, ""
            yield self._notices.alive(), self.cursor()
            async with aclosing(self.caught_up()) as groups:
                async for group in groups:
                    for each in self._with_cursor(group):
                        yield each
            yield self._notices.alive(), self.cursor()
            if self._query.follow:
                stack.callback(self._rounds.stop)
                async for each in self._follow():
                    yield each

    def _with_cursor(self, group: list[LogRecord]) -> list[RecordWithCursor]:
        """About one cursor a second, or less; while nothing matches, one with a sign of life."""
        now = self._sources.clock.monotonic()
        if not group and not self._notices.lost and now - self._cursor_at >= _ALIVE_S:
            self._cursor_at = now
            return [(self._notices.alive(), self.cursor())]
        pairs = [(record, "") for record in group]
        pause_s = max(_CURSOR_S, _CURSOR_STREAM_S * len(self.view.streams))
        if pairs and now - self._cursor_at >= pause_s:
            self._cursor_at = now
            pairs[-1] = (group[-1], self.cursor())
        return pairs

    async def open(self, stack: AsyncExitStack) -> None:
        """Find the streams in the store and on the nodes."""
        # Before their names are used.
        nodes = self._nodes()
        stack.callback(self._ask_no_more)
        await self._refresh()
        await self._refuse_if_removed()
        complete = (
            self._ended_long_ago()
            and bool(self.view.streams)
            and not self.away
            and all(
                each.stored is not None and each.stored.last for each in self.view.streams.values()
            )
        )
        if not complete:
            opened = self._sources.feeds.opened(self.name, nodes, self._rounds)
            self._feeds = stack.enter_context(opened)
            await self._first_answers()
            # All of them, in the order of the nodes.
            self._rounds.take_streams()
            feeds = self._feeds.values()
            self._take_streams(each for feed in feeds for each in feed.streams.values())
        if self.away or not self._query.follow or self._ended_long_ago():
            await self._refuse_if_nothing()
        self._begin()

    def opening_notes(self) -> list[LogNote]:
        """Notes about what is not available now."""
        streams = self.view.streams.values()
        missed = {each.name.node for each in streams if not each.is_over}
        silent = self._feeds
        if self.ended and streams:
            # The others can have no text that is not known.
            silent = {node: feed for node, feed in silent.items() if node in missed}
        notes = self._notices.tampered(self.faults) + self._notices.opening(self.away, silent)
        if not self.ended:
            return notes
        known = self._stored_nodes if not self._query.stream else self._feeds.keys()
        return notes + self._notices.unread(reasons_of(self._feeds, known))

    def _ask_no_more(self) -> None:
        if self._asked is not None:
            self._asked.cancel()

    async def _refuse_if_removed(self) -> None:
        removals = self._sources.removals
        is_whole = bool(self.view.streams) and not self.faults
        if removals is None or is_whole or self.away or not self.ended:
            return
        removed = await removals.of(self.name)
        if removed is not None:
            raise removal_error(self.name, removed)

    async def _refuse_if_nothing(self) -> None:
        """Raise if the attempt is over and nothing of it is known, not even its end."""
        if not self.ended or any(_is_known(each) for each in self.view.streams.values()):
            return
        if self.away:
            raise DataUnavailable(
                f"{self.away} No node has what {self.name.allocation.id} wrote any more.",
                hint="What was stored is safe: try again in a few minutes.",
            )
        if not self.view.streams and await self._has_other_streams():
            return
        raise absence_error(self.name, self._feeds, settled=self._ended_long_ago())

    async def _has_other_streams(self) -> bool:
        """True if the attempt has streams that the query excludes."""
        if self._stored_nodes or any(each.streams for each in self._feeds.values()):
            return True
        if not (self._query.stream or self._query.nodes):
            return False
        try:
            async with asyncio.timeout(_STORE_S):
                found = await self._sources.archive.streams(
                    self.name, tuple(LogKind), (), self._span()
                )
        except (TimeoutError, Unavailable):
            return False
        return bool(found)

    def _ended_long_ago(self) -> bool:
        """True if no node can have text that is not stored and not known here."""
        ended = self._attempt_now().ended
        return ended is not None and self._sources.clock.now() - ended > _SETTLED

    def _nodes(self) -> list[str]:
        nodes = list(NodeSet.parse(self.name.attempt.nodes))
        wanted = set(self._query.nodes)
        unknown = wanted - set(nodes)
        if unknown:
            raise NotFound(
                f"Node {min(unknown)} is none of this allocation's.",
                hint=f"It has {self.name.attempt.nodes}.",
            )
        return [each for each in nodes if not wanted or each in wanted]

    async def _first_answers(self) -> None:
        """Wait until each node has answered. A follower does not wait long for the last few.

        With `tail` it does: the last lines of all nodes are counted together.
        """
        loop = asyncio.get_running_loop()
        has_no_tail = self._query.follow and self._query.tail is None
        end_s = last_s = loop.time() + _FIRST_ANSWER_S
        silent = self._silent()
        while silent and (left_s := end_s - loop.time()) > 0:
            await self._rounds.change(left_s)
            if len(silent) > _SEVERAL:
                await asyncio.sleep(_SETTLE_S)
            before, silent = len(silent), self._silent()
            if has_no_tail and len(silent) < before:
                end_s = min(last_s, loop.time() + _NO_OTHER_S)

    def _silent(self) -> list[str]:
        return [node for node, feed in self._feeds.items() if not feed.reported.is_set()]

    async def _refresh(self) -> None:
        """Read which streams are stored; if the store is slow, continue without it."""
        if self._asked is None:
            kinds = self._query.stream or tuple(LogKind)
            self._asked = asyncio.ensure_future(
                self._sources.archive.streams(self.name, kinds, self._query.nodes, self._span())
            )
        archive, now = self._sources.archive, self._sources.clock.monotonic()
        known_silent = archive.silent_at is not None and now - archive.silent_at < _SILENT_FOR_S
        patience_s = _STORE_AGAIN_S if known_silent else _STORE_S
        done, _ = await asyncio.wait((self._asked,), timeout=patience_s)
        if not done:
            archive.silent_at = now
            self.away = "The object store does not answer."
            return
        asked, self._asked = self._asked, None
        try:
            stored = asked.result()
        except Unavailable as error:
            self.away = error.message
            return
        archive.silent_at, self.away = None, ""
        self._stored_nodes |= {each.node for each in stored}
        self.faults = stored.faults
        for name, each in stored.items():
            known = self.view.streams.get(name)
            if known is not None:
                known.stored = each
                self.view.mark(known)
            elif self._is_wanted(name, labelled=each.labelled):
                self._add(StreamView(name, self._sources.archive, each, self._feeds.get(name.node)))

    def _take_streams(self, changed: Iterable[FedStream]) -> None:
        """Mark the streams that changed on their nodes, and add new ones."""
        for fed in changed:
            name, feed = fed.name, self._feeds[fed.name.node]
            known = self.view.streams.get(name)
            if known is not None:
                known.feed = feed
                self.view.mark(known)
            elif self._is_wanted(name, labelled=fed.labelled):
                self._add(StreamView(name, self._sources.archive, None, feed))

    def _add(self, stream: StreamView) -> None:
        self.view.add(stream)
        streams = self.view.streams
        stream.form = self._form.frames
        if len(streams) > 1:
            # They are merged by the times of their reads.
            for each in streams.values() if len(streams) == 2 else (stream,):
                each.form = FrameForm.READS
        at = self.positions.get(stream.name)
        if at is not None:
            stream.begin(ViewStart(at=at))

    def _is_wanted(self, name: StreamName, *, labelled: bool) -> bool:
        query = self._query
        if query.stream and name.kind not in query.stream:
            return False
        if query.nodes and name.node not in query.nodes:
            return False
        return not query.ranks or labelled or name.source.task in query.ranks

    def _is_sifted(self, stream: StreamView) -> bool:
        """True if the query excludes some of its lines by rank."""
        return bool(self._query.ranks) and stream.labelled

    def _span(self) -> Span:
        query = self._query
        since_ms = int(query.since.timestamp() * 1000) if query.since else 0
        until_ms = int(query.until.timestamp() * 1000) if query.until else None
        return Span(since_ms, until_ms, query.offset or 0, query.tail)

    def _begin(self) -> None:
        query = self._query
        since_ms, until_ms = self._span().since_ms, self._span().until_ms
        for name, stream in self.view.streams.items():
            if name in self.positions:
                continue
            line = 0
            if query.tail is not None and not self._is_sifted(stream):
                line = max(0, stream.end.line - query.tail)
            stream.begin(
                ViewStart(line=line, offset=query.offset or 0, time_ms=since_ms, until_ms=until_ms)
            )

    async def caught_up(self) -> AsyncGenerator[list[LogRecord]]:
        """Everything up to now, filtered. With `tail`, the last lines of all streams together.

        A cursor is valid after the last record of a group. An empty group means that lines were
        filtered out.
        """
        ends: dict[StreamName, int] | None = None
        tail, streams = self._query.tail, self.view.streams
        is_joint = len(streams) > 1 or any(map(self._is_sifted, streams.values()))
        if tail is not None and is_joint and not self._query.cursor:
            gaps, ends = await go_to_last(tail, self._items(), self.view, self._span())
            # All of it is read once more.
            self.scanned_bytes = 0
            self.view.mark_all()
            yield [gap(stream.name, each) for stream, each in gaps]
        async with aclosing(self._groups(ends)) as groups:
            async for group in groups:
                yield group

    async def _groups(
        self, ends: Mapping[StreamName, int] | None = None
    ) -> AsyncGenerator[list[LogRecord]]:
        async with aclosing(self._items(ends)) as items:
            async for stream, item in items:
                yield self._shown(stream, item)

    async def _items(
        self, ends: Mapping[StreamName, int] | None = None
    ) -> AsyncGenerator[tuple[StreamView, Item]]:
        passed = 0
        visited: dict[StreamView, None] = {}
        for _ in range(_MOST_REFRESHES):
            streams = self.view.take_changed()
            visited.update(dict.fromkeys(streams))
            self._visited.update(visited)
            async with aclosing(self.view.caught_up(streams, self._sieve, ends)) as items:
                async for stream, item in items:
                    if self._filter.is_past(item.time_ms):
                        # They come in the order of time.
                        return
                    self.scanned_bytes += 0 if isinstance(item, Gap) else _size(item)
                    yield stream, item
                    passed += 1
                    if passed % _AT_ONCE == 0:
                        await asyncio.sleep(0)
            if not any(each.is_moved for each in streams):
                break
            await self._refresh()
        for stream in in_order(visited):
            rest = stream.last_line()
            if rest is None:
                continue
            found: list[Item] = [rest]
            if self._sieve.works_on(stream):
                found = await self._sieve.filtered(stream, [rest])
            for each in found:
                yield stream, each

    async def _follow(self) -> AsyncIterator[RecordWithCursor]:
        clock = self._sources.clock
        quiet_since = clock.monotonic()
        over_since: float | None = None
        gather = False
        while True:
            second_passed = await self._rounds.next(many=len(self._feeds) > 1, gather=gather)
            self._take_streams(self._rounds.take_streams())
            shown, size = False, 0
            async for each in self._news():
                record, _ = each
                shown = shown or record.type != "note" or record.kind is not NoteKind.ALIVE
                size += _text_bytes(record)
                yield each
            self._flooded = size >= _FLOOD_BYTES
            gather = self._flooded and size < _PLENTY_BYTES
            # In a flood every piece ends within a line, and the next one completes it.
            for record in () if self._flooded else self._beginnings():
                shown = True
                yield record, ""
            now = clock.monotonic()
            if shown:
                quiet_since = now
            elif now - quiet_since >= _ALIVE_S and not self._notices.lost:
                quiet_since = now
                yield self._notices.alive(), self.cursor()
            if self.ended:
                if over_since is None or second_passed:
                    await self._refresh()
                over_since = now if over_since is None else over_since
                if self.view.is_complete or now - over_since > _DRAIN_S:
                    async for each in self._news():
                        yield each
                    await self._refuse_if_nothing()
                    streams = self.view.streams.values()
                    end = self._notices.end(self._attempt_now(), streams, all_known=self._knows_all)
                    yield end, self.cursor()
                    return

    async def _news(self) -> AsyncGenerator[RecordWithCursor]:
        """Changes of the nodes, and new lines, since the last call."""
        changed = {node: self._feeds[node] for node in self._rounds.take_nodes()}
        for note in self._notices.changes(changed):
            yield note, ""
        if not self.view.has_changes:
            return
        async with aclosing(self._items()) as items:
            async for stream, item in items:
                for each in self._with_cursor(self._shown(stream, item)):
                    yield each

    def _beginnings(self) -> list[LogRecord]:
        """Unfinished lines that changed since the last report: a progress bar, a prompt."""
        if not self._visited or self._query.grep or self._query.exclude:
            return []
        now = self._sources.clock.monotonic()
        if now - self._begun_at < _BEGINNINGS_S:
            return []
        self._begun_at = now
        now_ms = int(self._sources.clock.now().timestamp() * 1000)
        records: list[LogRecord] = []
        visited, self._visited = self._visited, {}
        for stream in in_order(visited):
            name, begun = stream.name, stream.lines.unfinished(now_ms)
            if begun is None:
                self._begun.pop(name, None)
            elif self._begun.get(name) != begun.text:
                self._begun[name] = begun.text
                shown = replace(begun, text=last_state(begun.text))
                if not stream.labelled:
                    records.append(self._block(name, shown))
                    continue
                torn = stream.is_torn(begun.at)
                for rank, _ in self._filter.matching_by_rank(begun, torn=torn):
                    records.append(self._block(name, shown, rank))
        return records

    def _shown(self, stream: StreamView, item: Item) -> list[LogRecord]:
        if isinstance(item, Gap):
            return [gap(stream.name, item)]
        if isinstance(item, Filtered):
            return [self._block(stream.name, lines, rank) for rank, lines in item.runs]
        if isinstance(item, PassedFrame):
            return [self._form.frame(stream.name, item)]
        return [self._block(stream.name, item)]

    @property
    def _knows_all(self) -> bool:
        """True if there can be no unknown stream."""
        feeds = self._feeds.values()
        return not self.away or (bool(feeds) and all(each.over for each in feeds))


def _text_bytes(record: Any) -> int:
    if record.type != "lines":
        return 0
    return record.plain_bytes if isinstance(record, PackedLines) else len(record.text)


def _size(item: Lines | Filtered | PassedFrame) -> int:
    return item.end.offset - item.at.offset


def _is_known(stream: StreamView) -> bool:
    """True if it has text or a gap, or is known to be empty."""
    return stream.is_over or bool(stream.end.offset) or stream.has_gaps
