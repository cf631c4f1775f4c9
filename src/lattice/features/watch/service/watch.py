"""One open stream: the news of a job's nodes and its state in Slurm, for one reader.

A task follows the nodes and stores their news; the reader's pace decides when it is sent. So a slow
reader gets the newest snapshot of each node and every alert, and nothing piles up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt
from lattice.domain.node_snapshot import (
    NodeAlert,
    NodeBack,
    NodeLeftOut,
    NodeMeasured,
    NodeNews,
    NodeSnapshots,
    NodeStale,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import Scheduler
from lattice.domain.slices import AllocationSlice, slice_text
from lattice.domain.telemetry import ModeInForce, ModeOf
from lattice.features.watch.model import (
    USUAL,
    WatchMode,
    WatchNote,
    WatchNoteKind,
    WatchQuery,
    WatchRecord,
    moment_or_none,
)
from lattice.features.watch.service.cursor import WatchCursor, write_cursor
from lattice.features.watch.service.figures import WatchFigures
from lattice.features.watch.service.job_events import GettingOn, JobStory
from lattice.features.watch.service.ledger import AlertLedger

_GATHER = 0.25
_LONGEST_GATHER_S = 2.0
"""How long to wait for snapshots of other nodes, to send one message."""
_EVENTS_GATHER_S = 0.3
"""How long to wait for alerts of other nodes, so that a common event is one line."""
_PAST_EVERY_S = 5.0
_CURSOR_S = 1.0
_LEFT_OUT_EVERY_S = 10.0
"""How often dropped measurements are reported."""

StreamedRecord: TypeAlias = tuple[WatchRecord, str]
"""A record, and the cursor after it if there is one."""


@dataclass(frozen=True, slots=True)
class WatchSources:
    """The data sources of a stream."""

    scheduler: Scheduler
    looks: NodeSnapshots
    clock: Clock
    modes: ModeOf | None = None
    tick_s: float = 1.0
    """How often the snapshot of Slurm is checked."""
    slices: Callable[[Allocation], tuple[AllocationSlice, ...]] = lambda _: ()
    """The GPU slices that an allocation runs in."""


class WatchRun:
    def __init__(
        self,
        sources: WatchSources,
        allocation: Allocation,
        find: Callable[[], Awaitable[Allocation]],
        query: WatchQuery,
        cursor: WatchCursor,
    ) -> None:
        """`find` looks the job up again when Slurm no longer has it."""
        self._sources = sources
        self._allocation = allocation
        self._find = find
        self._query = query
        self._session = cursor.session
        self._ledger = AlertLedger(cursor.alerts)
        self._story = JobStory(cursor.attempt, cursor.state)
        self._sent_mode = cursor.mode
        self._sent_slices: dict[tuple[str, str], str] = {}
        self._figures = WatchFigures(query.metrics or USUAL, 0)
        self._getting_on = GettingOn()
        self._attempt: JobAttempt | None = None
        self._listening: asyncio.Task[None] | None = None
        self._began: float | None = None
        self._wake = asyncio.Event()
        self._left_out = 0
        """Measurements that were dropped before they came here, and are not reported yet."""
        self._left_out_due = 0.0
        self._figures_due = 0.0
        self._events_due: float | None = None
        self._past_due = 0.0
        self._slurm_away = False
        self._cursor_at = 0.0
        self._dirty = True

    async def records(self) -> AsyncGenerator[StreamedRecord, None]:
        """Yield records until the job is over."""
        try:
            yield self._note(WatchNoteKind.ALIVE), self._cursor_now()
            while True:
                records = await self._round()
                for number, record in enumerate(records, 1):
                    # A cursor is valid only after all records before it.
                    yield record, self._timely_cursor() if number == len(records) else ""
                if self._story.ended:
                    return
                await self._next()
        finally:
            await self._stop()

    async def _round(self) -> list[WatchRecord]:
        now = self._now
        records = self._news(now)
        allocation = await self._allocation_now(records)
        if allocation is not None:
            changes = self._story.update(allocation, self._sources.clock.now())
            if self._story.ended:
                records += self._ledger.drained(now)
            records += changes
            self._dirty = self._dirty or bool(changes)
            await self._follow(self._story.running)
        if not self._story.ended and not self._query.alerts_only:
            records += [*self._mode(), *self._slices()]
        return records

    def _news(self, now: float) -> list[WatchRecord]:
        """Return the news from the nodes."""
        if self._listening is not None and self._listening.done():
            # Raises the error that ended it; the reader reconnects with its cursor.
            self._listening.result()
        self._ledger.advance(now)
        records = self._events(now)
        if self._query.alerts_only:
            return records
        if self._left_out and now >= self._left_out_due:
            records.append(self._left_out_note())
            self._left_out, self._left_out_due = 0, now + _LEFT_OUT_EVERY_S
        if asyncio.get_running_loop().time() >= self._figures_due:
            measured = self._figures.drained()
            records += [measured] if measured is not None else []
        progress = self._getting_on.check(now, self._began)
        return [*records, progress] if progress is not None else records

    async def _allocation_now(self, records: list[WatchRecord]) -> Allocation | None:
        """Return the job as Slurm has it; None while Slurm does not answer."""
        try:
            reading = self._sources.scheduler.live()
        except Unavailable:
            reading = None
        is_away = reading is None or not reading.source.ok
        if is_away is not self._slurm_away:
            self._slurm_away = is_away
            records.append(
                self._note(WatchNoteKind.SLURM_AWAY if is_away else WatchNoteKind.SLURM_BACK)
            )
        if reading is None or is_away:
            return None
        mine = self._allocation
        same = [each for each in reading.cluster.of_job(mine.job_id) if each.user == mine.user]
        if same:
            self._allocation = next((each for each in same if each.ref == mine.ref), same[0])
            return self._allocation
        return await self._remembered()

    async def _remembered(self) -> Allocation | None:
        """Look in slurmdbd: slurmctld forgets a job some minutes after its end."""
        now = asyncio.get_running_loop().time()
        if self._allocation.state.finished:
            return self._allocation
        if now < self._past_due:
            return None
        self._past_due = now + _PAST_EVERY_S
        try:
            self._allocation = await self._find()
        except Unavailable:
            return None
        return self._allocation

    async def _follow(self, attempt: JobAttempt | None) -> None:
        """Follow the nodes of the current attempt, and no others."""
        if attempt is None or self._story.ended:
            return
        if self._attempt is not None and attempt.is_same_run(self._attempt):
            return
        if self._attempt is not None:
            await self._stop()
            self._ledger.forget()
        self._attempt = attempt
        self._figures = WatchFigures(self._query.metrics or USUAL, _count(attempt))
        self._getting_on = GettingOn()
        self._began = self._now
        self._listening = asyncio.create_task(self._listen(attempt), name="watch nodes")

    async def _listen(self, attempt: JobAttempt) -> None:
        following = self._sources.looks.follow(attempt, alerts_only=self._query.alerts_only)
        async with following as news:
            async for each in news:
                self._take(each)

    def _take(self, news: NodeNews) -> None:
        ledger, now = self._ledger, self._now
        if isinstance(news, NodeMeasured):
            self._measured(news, now)
            return
        if isinstance(news, NodeAlert):
            ledger.alert(news.node, news.alert)
        elif isinstance(news, NodeStale):
            self._figures.drop(news.silence.node)
            ledger.silent(news.silence, now)
        elif isinstance(news, NodeBack):
            ledger.back(news.node, news.gone_s, now)
        elif isinstance(news, NodeLeftOut):
            self._left_out += news.count
        else:
            self._figures.drop(news.node)
            ledger.over(news.node, now)
        self._wake.set()

    def _measured(self, news: NodeMeasured, now: float) -> None:
        snapshot = news.snapshot
        self._ledger.measured(snapshot, now)
        self._getting_on.take(snapshot.progress)
        if self._ledger.pending:
            self._wake.set()
        if self._query.alerts_only:
            return
        figures = self._figures
        figures.take(snapshot)
        expected = figures.node_count - len(self._ledger.stale)
        if figures.waiting >= expected:
            self._figures_due = 0.0
            self._wake.set()
        elif figures.waiting == 1:
            gather_s = min(snapshot.now.resolution_s * _GATHER, _LONGEST_GATHER_S)
            self._figures_due = asyncio.get_running_loop().time() + gather_s
            self._wake.set()

    def _events(self, now: float) -> list[WatchRecord]:
        """Return alerts and node events, after waiting for those of other nodes."""
        if not self._ledger.pending:
            return []
        time_s = asyncio.get_running_loop().time()
        if self._events_due is None:
            gather_s = _EVENTS_GATHER_S if self._figures.node_count > 1 else 0.0
            self._events_due = time_s + gather_s
        if time_s < self._events_due:
            return []
        self._events_due = None
        return self._ledger.drained(now)

    async def _next(self) -> None:
        """Wait until there is something to send, or for one tick."""
        wait_s, now_s = self._sources.tick_s, asyncio.get_running_loop().time()
        for due_s in (self._events_due, self._figures_due if self._figures.waiting else None):
            if due_s is not None:
                wait_s = min(wait_s, max(due_s - now_s, 0.0))
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def _mode(self) -> list[WatchRecord]:
        if self._sources.modes is None:
            return []
        mode = self._sources.modes(self._allocation.ref)
        name = _mode_name(mode)
        if name == self._sent_mode:
            return []
        self._sent_mode, self._dirty = name, True
        return [
            WatchMode(
                mode=mode.mode,
                interval_s=mode.interval_s,
                until=moment_or_none(mode.until),
                set_by=mode.set_by,
                time=self._sources.clock.now(),
            )
        ]

    def _slices(self) -> list[WatchRecord]:
        if not self._story.running:
            return []
        lines = {
            (each.node, each.guest.name): f"{each.node} is measured inside its slice "
            f"{slice_text(each.guest)}"
            for each in self._sources.slices(self._allocation)
        }
        changed = [text for key, text in lines.items() if self._sent_slices.get(key) != text]
        self._sent_slices = lines
        now = self._sources.clock.now()
        return [WatchNote(kind=WatchNoteKind.SLICE, time=now, words=text) for text in changed]

    def _timely_cursor(self) -> str:
        """Return a cursor if it has changed, about once a second at most."""
        now = self._sources.clock.monotonic()
        if self._ledger.pending:
            # The ledger already contains records that are not sent yet.
            return ""
        if not (self._dirty or self._ledger.changed) or now - self._cursor_at < _CURSOR_S:
            return ""
        return self._cursor_now()

    def _cursor_now(self) -> str:
        self._cursor_at = self._sources.clock.monotonic()
        self._dirty = self._ledger.changed = False
        return write_cursor(
            WatchCursor(
                self._session,
                self._story.sent_attempt,
                self._story.sent_state,
                self._sent_mode,
                self._ledger.known,
            )
        )

    @property
    def _now(self) -> float:
        return self._sources.clock.now().timestamp()

    def _left_out_note(self) -> WatchNote:
        text = (
            f"{self._left_out} older measurements were left out: this server was too slow for them."
        )
        return WatchNote(kind=WatchNoteKind.LEFT_OUT, time=self._sources.clock.now(), words=text)

    def _note(self, kind: WatchNoteKind) -> WatchNote:
        text = {
            WatchNoteKind.SLURM_AWAY: "Slurm does not answer; "
            "the job's state is not known meanwhile.",
            WatchNoteKind.SLURM_BACK: "Slurm answers again.",
        }.get(kind, "")
        return WatchNote(kind=kind, time=self._sources.clock.now(), words=text)


def _count(attempt: JobAttempt) -> int:
    try:
        return len(list(NodeSet.parse(attempt.attempt.nodes)))
    except ValueError:
        return attempt.attempt.node_count


def _mode_name(mode: ModeInForce) -> str:
    return f"{mode.mode.value} {mode.interval_s:g} {mode.until or 0:.0f}"
