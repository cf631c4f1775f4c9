"""One query of an attempt's logs in progress: reads and follows its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from lattice.domain.logs import Gap, Position, StreamName
from lattice.features.logs.blocks import PackedLines
from lattice.features.logs.lines import Lines, last_state
from lattice.features.logs.model import LogQuery, LogRecord, NoteKind
from lattice.features.logs.service.cursor import write_cursor
from lattice.features.logs.service.frames import PassedFrame
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.merge import go_to_last, in_order
from lattice.features.logs.service.query_streams import LogSources, QueryStreams
from lattice.features.logs.service.records import DECODED, LineFilter, RecordForm, gap
from lattice.features.logs.service.sieve import Sieve
from lattice.features.logs.service.view import Filtered, Item, StreamView

_FLOOD_BYTES, _PLENTY_BYTES = 32 * 1024, 128 * 1024
"""Bytes in one round: between these two, output is gathered into larger portions."""
_ALIVE_S = 5.0
_CURSOR_S = 1.0
_CURSOR_STREAM_S = 0.004
"""The time between two cursors, and more for each stream: a cursor has them all."""
_BEGINNINGS_S = 0.25
"""Between two checks of unfinished lines: fast writers end their lines anyway."""
_MOST_REFRESHES = 3
_DRAIN_S = 30.0
"""After the end of a job, for the last of its output to arrive."""
_AT_ONCE = 128
"""So many items pass before other tasks get a turn of the event loop."""

RecordWithCursor: TypeAlias = tuple[Any, str]
"""A record, and the cursor after it if there is one."""


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
        positions: Mapping[StreamName, Position] | None = None,
    ) -> None:
        """`caller` pays for the filter's work; `positions` are from a cursor."""
        self.found = QueryStreams(sources, name, query, form.frames, positions)
        self.view = self.found.view
        self.scanned_bytes = 0
        """Text that was returned or filtered out so far."""
        rest = replace(query, tail=None, since=None, offset=None, cursor="")
        self.again = partial(LogQueryRun, sources, name, rest, line_filter, caller, form)
        """Makes a run of the same query from `positions` on."""
        self._caller = caller
        self._form = form
        self._block = form.lines
        self._sources = sources
        self._query = query
        self._filter = line_filter
        self._sieve = Sieve(line_filter, sources.turns, caller)
        self._notices = self.found.notices
        self._begun: dict[StreamName, bytes] = {}
        self._begun_at = 0.0
        self._visited: dict[StreamView, None] = {}
        """Since the last check of unfinished lines."""
        self._cursor_at = 0.0
        self._flooded = False
        self.is_resting = True
        """True between two rounds: what was read was also returned."""

    def cursor(self) -> str:
        return write_cursor(self.found.name.attempt.number, self.view.positions())

    @property
    def shared_key(self) -> Hashable | None:
        """What followers that share a run have in common; None if the query can't be shared.

        What a run leaves out, it leaves out for all. So `since` must be the same. A cursor must not
        have a position of a stream that is still to come. Who filters does so at their own expense.
        """
        query, found = self._query, self.found
        if query.until or query.offset or found.ended or found.has_positions_ahead:
            return None
        payer = self._caller if query.grep or query.exclude or query.ranks else ""
        asked = replace(query, tail=None, offset=None, cursor="", limit=0, attempt=0)
        return self.found.name.prefix, asked, payer, self._form

    async def history(self, stack: AsyncExitStack) -> AsyncGenerator[RecordWithCursor]:
        """Everything up to now. What was opened for it is closed with `stack`."""
        await self.found.open(stack)
        for note in self.found.opening_notes():
            yield note, ""
        yield self._notices.alive(), self.cursor()
        async with aclosing(self.caught_up()) as groups:
            async for group in groups:
                for each in self._with_cursor(group):
                    yield each
        yield self._notices.alive(), self.cursor()

    async def rest(self) -> AsyncGenerator[RecordWithCursor]:
        """What was written since `history`, up to where another run continues."""
        async with aclosing(self._groups()) as groups:
            async for group in groups:
                for record in group:
                    yield record, ""
        for record in self._beginnings():
            yield record, ""

    async def follow(self) -> AsyncGenerator[list[RecordWithCursor]]:
        """What comes, in groups, until the attempt is over.

        An empty group ends each round: nothing is held back then. A cursor is valid after a group.
        """
        found, clock = self.found, self._sources.clock
        quiet_since = clock.monotonic()
        over_since: float | None = None
        gather = False
        try:
            while True:
                second_passed = await found.rounds.next(many=len(found.feeds) > 1, gather=gather)
                self.is_resting = False
                shown, size = False, 0
                async for group in self._news():
                    shown = shown or not _is_alive(group)
                    size += sum(_text_bytes(record) for record, _ in group)
                    yield group
                self._flooded = size >= _FLOOD_BYTES
                gather = self._flooded and size < _PLENTY_BYTES
                # In a flood every piece ends within a line, and the next one completes it.
                begun = [] if self._flooded else self._beginnings()
                if begun:
                    shown = True
                    yield [(record, "") for record in begun]
                now = clock.monotonic()
                if shown:
                    quiet_since = now
                elif now - quiet_since >= _ALIVE_S and not self._notices.lost:
                    quiet_since = now
                    yield [(self._notices.alive(), self.cursor())]
                if found.ended:
                    if over_since is None or second_passed:
                        await found.refresh()
                    over_since = now if over_since is None else over_since
                    if self.view.is_complete or now - over_since > _DRAIN_S:
                        async for group in self._news():
                            yield group
                        await found.refuse_if_nothing()
                        yield [(self._end_note(), self.cursor())]
                        return
                self.is_resting = True
                yield []
        finally:
            found.rounds.stop()

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

    async def caught_up(self) -> AsyncGenerator[list[LogRecord]]:
        """Everything up to now, filtered. With `tail`, the last lines of all streams together.

        A cursor is valid after the last record of a group. An empty group means that lines were
        filtered out.
        """
        ends: dict[StreamName, int] | None = None
        tail, streams = self._query.tail, self.view.streams
        is_joint = len(streams) > 1 or any(map(self.found.is_sifted, streams.values()))
        if tail is not None and is_joint and not self._query.cursor:
            gaps, ends = await go_to_last(tail, self._items(), self.view, self.found.span())
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
            await self.found.refresh()
        for stream in in_order(visited):
            rest = stream.last_line()
            if rest is None:
                continue
            found: list[Item] = [rest]
            if self._sieve.works_on(stream):
                found = await self._sieve.filtered(stream, [rest])
            for each in found:
                yield stream, each

    async def _news(self) -> AsyncGenerator[list[RecordWithCursor]]:
        """Changes of the nodes, and new lines, since the last call."""
        found = self.found
        found.take_streams(found.rounds.take_streams())
        changed = {node: found.feeds[node] for node in found.rounds.take_nodes()}
        notes = self._notices.changes(changed)
        if notes:
            yield [(note, "") for note in notes]
        if not self.view.has_changes:
            return
        async with aclosing(self._items()) as items:
            async for stream, item in items:
                group = self._with_cursor(self._shown(stream, item))
                if group:
                    yield group

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

    def _end_note(self) -> LogRecord:
        found = self.found
        streams = self.view.streams.values()
        return self._notices.end(found.attempt_now(), streams, all_known=found.knows_all)

    def _shown(self, stream: StreamView, item: Item) -> list[LogRecord]:
        if isinstance(item, Gap):
            return [gap(stream.name, item)]
        if isinstance(item, Filtered):
            return [self._block(stream.name, lines, rank) for rank, lines in item.runs]
        if isinstance(item, PassedFrame):
            return [self._form.frame(stream.name, item)]
        return [self._block(stream.name, item)]


def _is_alive(group: list[RecordWithCursor]) -> bool:
    record, _ = group[0]
    return bool(record.type == "note" and record.kind is NoteKind.ALIVE)


def _text_bytes(record: Any) -> int:
    if record.type != "lines":
        return 0
    return record.plain_bytes if isinstance(record, PackedLines) else len(record.text)


def _size(item: Lines | Filtered | PassedFrame) -> int:
    return item.end.offset - item.at.offset
