"""The streams of one query of an attempt's logs: found in the store and on the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, NotFound, Unavailable
from lattice.base.turns import Turns
from lattice.domain.allocation import Attempt
from lattice.domain.attempts import attempts_of
from lattice.domain.logs import LogKind, Position, StreamName
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import LiveCluster, Scheduler
from lattice.features.logs.model import LogNote, LogQuery
from lattice.features.logs.service.archive import Archive, Span, StoredStreams
from lattice.features.logs.service.frames import FrameForm
from lattice.features.logs.service.live_feeds import Feeds, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.merge import MergedView
from lattice.features.logs.service.notices import LogNotices, absence_error, reasons_of
from lattice.features.logs.service.retention import Removals, removal_error
from lattice.features.logs.service.view import StreamView, ViewStart
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
_SETTLED = timedelta(minutes=2)


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


class QueryStreams:
    """The streams of one query, and what is known of the attempt."""

    def __init__(
        self,
        sources: LogSources,
        name: AttemptName,
        query: LogQuery,
        form: FrameForm,
        positions: Mapping[StreamName, Position] | None = None,
    ) -> None:
        """`form` is how frames are read; `positions` are from a cursor."""
        self.name = name
        self.view = MergedView()
        self._positions = positions or {}
        self.feeds: dict[str, NodeFeed] = {}
        self.away = ""
        """Why the stored streams are unknown; empty if they are known."""
        self.faults: tuple[str, ...] = ()
        """How stored objects differ from their seal."""
        self.notices = LogNotices(sources.clock)
        self.rounds = Rounds()
        self._sources = sources
        self._query = query
        self._form = form
        self._known: tuple[LiveCluster, Attempt] | None = None
        """The attempt as it was in the last reading of Slurm."""
        self._asked: asyncio.Future[StoredStreams] | None = None
        self._stored_nodes: set[str] = set()
        """Nodes with a stored stream of the attempt."""

    @property
    def ended(self) -> bool:
        """True if the attempt is over."""
        return self.attempt_now().ended is not None

    def attempt_now(self) -> Attempt:
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

    @property
    def has_positions_ahead(self) -> bool:
        """True if the cursor has a position of a stream that is not known yet."""
        return any(name not in self.view.streams for name in self._positions)

    async def open(self, stack: AsyncExitStack) -> None:
        """Find the streams in the store and on the nodes."""
        # Before their names are used.
        nodes = self._nodes()
        stack.callback(self._ask_no_more)
        await self.refresh()
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
            opened = self._sources.feeds.opened(self.name, nodes, self.rounds)
            self.feeds = stack.enter_context(opened)
            await self._first_answers()
            # All of them, in the order of the nodes.
            self.rounds.take_streams()
            feeds = self.feeds.values()
            self.take_streams(each for feed in feeds for each in feed.streams.values())
        if self.away or not self._query.follow or self._ended_long_ago():
            await self.refuse_if_nothing()
        self._begin()

    def opening_notes(self) -> list[LogNote]:
        """Notes about what is not available now."""
        streams = self.view.streams.values()
        missed = {each.name.node for each in streams if not each.is_over}
        silent = self.feeds
        if self.ended and streams:
            # The others can have no text that is not known.
            silent = {node: feed for node, feed in silent.items() if node in missed}
        notes = self.notices.tampered(self.faults) + self.notices.opening(self.away, silent)
        if not self.ended:
            return notes
        known = self._stored_nodes if not self._query.stream else self.feeds.keys()
        return notes + self.notices.unread(reasons_of(self.feeds, known))

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

    async def refuse_if_nothing(self) -> None:
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
        raise absence_error(self.name, self.feeds, settled=self._ended_long_ago())

    async def _has_other_streams(self) -> bool:
        """True if the attempt has streams that the query excludes."""
        if self._stored_nodes or any(each.streams for each in self.feeds.values()):
            return True
        if not (self._query.stream or self._query.nodes):
            return False
        try:
            async with asyncio.timeout(_STORE_S):
                found = await self._sources.archive.streams(
                    self.name, tuple(LogKind), (), self.span()
                )
        except (TimeoutError, Unavailable):
            return False
        return bool(found)

    def _ended_long_ago(self) -> bool:
        """True if no node can have text that is not stored and not known here."""
        ended = self.attempt_now().ended
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
            await self.rounds.change(left_s)
            if len(silent) > _SEVERAL:
                await asyncio.sleep(_SETTLE_S)
            before, silent = len(silent), self._silent()
            if has_no_tail and len(silent) < before:
                end_s = min(last_s, loop.time() + _NO_OTHER_S)

    def _silent(self) -> list[str]:
        return [node for node, feed in self.feeds.items() if not feed.reported.is_set()]

    async def refresh(self) -> None:
        """Read which streams are stored; if the store is slow, continue without it."""
        if self._asked is None:
            kinds = self._query.stream or tuple(LogKind)
            self._asked = asyncio.ensure_future(
                self._sources.archive.streams(self.name, kinds, self._query.nodes, self.span())
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
                self._add(StreamView(name, self._sources.archive, each, self.feeds.get(name.node)))

    def take_streams(self, changed: Iterable[FedStream]) -> None:
        """Mark the streams that changed on their nodes, and add new ones."""
        for fed in changed:
            name, feed = fed.name, self.feeds[fed.name.node]
            known = self.view.streams.get(name)
            if known is not None:
                known.feed = feed
                self.view.mark(known)
            elif self._is_wanted(name, labelled=fed.labelled):
                self._add(StreamView(name, self._sources.archive, None, feed))

    def _add(self, stream: StreamView) -> None:
        self.view.add(stream)
        streams = self.view.streams
        stream.form = self._form
        if len(streams) > 1:
            # They are merged by the times of their reads.
            for each in streams.values() if len(streams) == 2 else (stream,):
                each.form = FrameForm.READS
        at = self._positions.get(stream.name)
        if at is not None:
            stream.begin(ViewStart(at=at))

    def _is_wanted(self, name: StreamName, *, labelled: bool) -> bool:
        query = self._query
        if query.stream and name.kind not in query.stream:
            return False
        if query.nodes and name.node not in query.nodes:
            return False
        return not query.ranks or labelled or name.source.task in query.ranks

    def is_sifted(self, stream: StreamView) -> bool:
        """True if the query excludes some of its lines by rank."""
        return bool(self._query.ranks) and stream.labelled

    def span(self) -> Span:
        query = self._query
        since_ms = int(query.since.timestamp() * 1000) if query.since else 0
        until_ms = int(query.until.timestamp() * 1000) if query.until else None
        return Span(since_ms, until_ms, query.offset or 0, query.tail)

    def _begin(self) -> None:
        query = self._query
        since_ms, until_ms = self.span().since_ms, self.span().until_ms
        for name, stream in self.view.streams.items():
            if name in self._positions:
                continue
            line = 0
            if query.tail is not None and not self.is_sifted(stream):
                line = max(0, stream.end.line - query.tail)
            stream.begin(
                ViewStart(line=line, offset=query.offset or 0, time_ms=since_ms, until_ms=until_ms)
            )

    @property
    def knows_all(self) -> bool:
        """True if there can be no unknown stream."""
        feeds = self.feeds.values()
        return not self.away or (bool(feeds) and all(each.over for each in feeds))


def _is_known(stream: StreamView) -> bool:
    """True if it has text or a gap, or is known to be empty."""
    return stream.is_over or bool(stream.end.offset) or stream.has_gaps
