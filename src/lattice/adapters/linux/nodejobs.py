"""`NodeJobs`: the jobs, steps, tasks and processes of this node, now and as they change.

    run()      updates the snapshot until cancelled; ready() waits for the first one.
    jobs       The snapshot.
    changes()  Its events, starting with the jobs that exist.
    refresh()  Reads everything now, for callers that need current processes.
    reread()   Reads one job now.
    missed()   The next period in which jobs can have come and gone unseen.

inotify reports created and removed folders, but not processes. So a job is read when its folders
change, and a few times soon after, because tasks and processes follow their folders. Everything is
read once a minute. One worker thread does all scans, one at a time. Many steps at once lead to
longer pauses, not to more scans. Further threads read data that only processes have. They are
abandoned if the kernel blocks them.

It needs no privilege. `trouble` has what it can't see or do; it continues with the rest.

`Absences`: periods in which this process could not watch the node's jobs, though the node ran.

A process that is stopped or starved does not notice it. So a pulse measures its own delay, by the
monotonic clock, which stops while the whole node is suspended. `NodeJobs` notes other reasons to
miss jobs: a scan that hangs, notices that the kernel dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lattice.adapters.linux.groups import Birth, birth_of_folder
from lattice.adapters.linux.inotify import Inotify, WatchLimit
from lattice.adapters.linux.scanner import JobScanner
from lattice.base.clock import Clock
from lattice.base.impatience import PATIENCE_S
from lattice.domain.nodejobs import (
    CLOCK_SLACK_S,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    Picture,
    WatchPause,
    compare,
)

_MOST_WAITING = 4096


class JobListener:
    """Queues events until they are taken.

    If there are too many, they are replaced by a comparison with the current snapshot. Jobs that
    came and went in between are then lost.
    """

    def __init__(self, picture: Picture, most: int = _MOST_WAITING) -> None:
        self._delivered: dict[JobIdentity, NodeJob] = {}
        self._waiting: list[JobEvent] = list(compare({}, picture))
        self._most = most
        self._lost = False
        self._some = asyncio.Event()
        if self._waiting:
            self._some.set()

    def add(self, events: Iterable[JobEvent]) -> bool:
        """Add these; True if there were too many and events are lost."""
        self._waiting += events
        lost = len(self._waiting) > self._most
        if lost:
            self._waiting.clear()
            self._lost = True
        if self._waiting or self._lost:
            self._some.set()
        return lost

    async def take(self, picture: Callable[[], Picture]) -> tuple[JobEvent, ...]:
        """All queued events, once there are some; `picture` gives the snapshot to catch up with."""
        await self._some.wait()
        self._some.clear()
        events = compare(self._delivered, picture()) if self._lost else tuple(self._waiting)
        self._lost = False
        self._waiting = []
        for event in events:
            if isinstance(event, NodeJobEnded):
                self._delivered.pop(event.job.identity, None)
            else:
                self._delivered[event.job.identity] = event.job
        return events


PULSE_S = 1.0
LONGEST_S = CLOCK_SLACK_S
"""A job that came and went within less can still be matched by the time it was noticed."""


class Absences:
    """For one reader: merges the absences that are noted before it reads."""

    def __init__(self, clock: Clock, pulse_s: float = PULSE_S) -> None:
        self._clock = clock
        self._pulse_s = pulse_s
        self._beat_at = clock.monotonic()
        self._waiting: WatchPause | None = None
        self._noted = asyncio.Event()

    async def run(self) -> None:
        """Beat until cancelled."""
        self._beat_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._pulse_s)
            self.beat()

    def beat(self) -> None:
        """Note an absence if the last beat is too long ago."""
        now_s = self._clock.monotonic()
        since_s, self._beat_at = self._beat_at, now_s
        if now_s - since_s > self._pulse_s + LONGEST_S:
            self.note(now_s - since_s)

    def note(self, seconds: float) -> None:
        """Note that nothing was watched for the last `seconds`."""
        until = self._clock.now().timestamp()
        absence = WatchPause(until - seconds, until)
        before = self._waiting
        self._waiting = before.with_(absence) if before else absence
        self._noted.set()

    async def next(self) -> WatchPause:
        """The next absence, once there is one."""
        await self._noted.wait()
        self._noted.clear()
        absence, self._waiting = self._waiting, None
        assert absence is not None
        return absence


_RESCAN_S = 60.0
_BLIND_RESCAN_S = 3.0
"""Between full scans while the kernel sends no notices."""
_SHORTEST_PAUSE_S = 0.01
_REST = 4.0
"""Pauses are at least this many times the processor time of the scan before: 20% of a CPU at
most.
"""


@dataclass(frozen=True, slots=True)
class Roots:
    """The paths of the kernel's and Slurm's files; others in tests and containers."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    spool: Path | None = None
    """Slurm's SlurmdSpoolDir; without it there is one sign less."""


class NodeJobs:
    """The jobs of one node."""

    def __init__(
        self,
        roots: Roots,
        clock: Clock,
        *,
        rescan_s: float = _RESCAN_S,
        blind_rescan_s: float = _BLIND_RESCAN_S,
        birth: Birth = birth_of_folder,
        notices: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: how long one process may block its reader."""
        self._clock = clock
        self._rescan_s = rescan_s
        self._blind_rescan_s = blind_rescan_s
        self._notices = notices
        self._no_notices = "" if notices else "inotify: switched off"
        self._scanner = JobScanner(
            roots.proc, roots.cgroup, roots.spool, clock, birth, patience_s=patience_s
        )
        self._listeners: dict[JobListener, float] = {}
        """With the monotonic time at which each was last read."""
        self._absences = Absences(clock)
        self._turned_at = clock.monotonic()
        self._one_turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]:
        """Every job on the node, as last read."""
        return MappingProxyType(self._scanner.picture)

    def job(self, job_id: int) -> NodeJob | None:
        """The newest attempt of a job, by its number."""
        lives = [job for job in self._scanner.picture.values() if job.id == job_id]
        return max(lives, key=lambda job: job.identity.started, default=None)

    @property
    def trouble(self) -> str | None:
        """Why the snapshot may be late or incomplete; None if it is neither."""
        reasons = [text for text in (self._no_notices, self._scanner.trouble) if text]
        return "; ".join(reasons) or None

    async def changes(self) -> AsyncIterator[JobEvent]:
        """Events without end: first each existing job, then changes.

        A listener that is too slow misses only jobs that came and went meanwhile.
        """
        listener = JobListener(self._scanner.picture)
        try:
            while True:
                self._listeners[listener] = self._clock.monotonic()
                for event in await listener.take(lambda: self._scanner.picture):
                    yield event
        finally:
            self._listeners.pop(listener, None)

    async def missed(self) -> WatchPause:
        """The next period in which jobs can have come and gone unseen; for one reader."""
        return await self._absences.next()

    async def ready(self) -> None:
        """Return when `run` has read everything once and has its watches."""
        await self._ready.wait()

    async def refresh(self) -> None:
        """Read everything now."""
        await self._turn(everything=True)

    async def reread(self, identity: JobIdentity) -> NodeJob | None:
        """Read one job now; None if it is gone."""
        self._scanner.read_soon(identity)
        await self._turn(everything=False)
        return self._scanner.picture.get(identity)

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        pulse = asyncio.create_task(self._absences.run(), name="jobs pulse")
        try:
            while True:
                inotify = self._open()
                due = self._clock.monotonic() + self._pace_s
                took_s = await self._turn(everything=True)
                if self._no_notices or self._scanner.blind:
                    self._absences.note(self._pace_s)
                self._ready.set()
                while self._clock.monotonic() < due:
                    await asyncio.sleep(max(_SHORTEST_PAUSE_S, took_s * _REST))
                    next_s = min(due, self._scanner.next_reading or due) - self._clock.monotonic()
                    await self._pause(loop, inotify, next_s)
                    took_s = await self._turn(everything=False)
        finally:
            pulse.cancel()
            async with self._one_turn:
                self._scanner.close()

    @property
    def _pace_s(self) -> float:
        blind = self._no_notices or self._scanner.blind
        return min(self._blind_rescan_s, self._rescan_s) if blind else self._rescan_s

    def _open(self) -> Inotify | None:
        """Open inotify, or note why that fails; tried again before each full scan."""
        if not self._notices:
            return None
        if self._scanner.inotify is None:
            try:
                self._scanner.inotify = Inotify()
                self._no_notices = ""
            except WatchLimit as limit:
                self._no_notices = f"{limit}: jobs are looked for every {self._blind_rescan_s:g} s"
        return self._scanner.inotify

    async def _pause(
        self, loop: asyncio.AbstractEventLoop, inotify: Inotify | None, seconds: float
    ) -> None:
        """Wait for notices, at most for `seconds`."""
        self._wake.clear()
        # Removed before the scan, which drains the notices in another thread: otherwise the event
        # loop would spin on them meanwhile.
        if inotify is not None:
            loop.add_reader(inotify.fileno(), self._wake.set)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            if inotify is not None:
                loop.remove_reader(inotify.fileno())

    async def _turn(self, *, everything: bool) -> float:
        """Run one scan; return the processor time it took."""
        async with self._one_turn:
            self._absences.beat()
            began_at = self._clock.monotonic()
            reading = asyncio.ensure_future(asyncio.to_thread(self._timed, everything))
            try:
                events, took_s = await asyncio.shield(reading)
            except asyncio.CancelledError:
                await reading  # the thread can't be cancelled, and what it uses is closed next
                raise
            self._note_absence(began_at)
            for listener, read_at in self._listeners.items():
                if listener.add(events):
                    self._absences.note(self._clock.monotonic() - read_at)
            return took_s

    def _note_absence(self, began_at: float) -> None:
        """Note that this scan hung, or that the kernel dropped notices before it."""
        now_s = self._clock.monotonic()
        if self._scanner.notices_lost:
            self._absences.note(now_s - self._turned_at)
        elif now_s - began_at > LONGEST_S:
            self._absences.note(now_s - began_at)
        self._turned_at = began_at

    def _timed(self, everything: bool) -> tuple[tuple[JobEvent, ...], float]:
        # Processor time, because on a busy node a scan lasts longer than it costs.
        began_s = time.thread_time() + self._scanner.reading_cpu_s
        events = self._scanner.turn(everything)
        return events, time.thread_time() + self._scanner.reading_cpu_s - began_s
