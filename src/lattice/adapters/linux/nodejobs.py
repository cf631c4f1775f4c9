"""`NodeJobs`: which jobs, steps, tasks and processes are on this node, now and as they change.

    run()      keeps the picture, until cancelled; ready() waits for its first
    jobs       the picture
    changes()  what happens to it, beginning with what is there
    refresh()  the picture read anew, for whoever needs processes of this moment
    reread()   one job read anew
    missed()   the next stretch in which jobs can have come and gone unseen

Folders tell by inotify when they come and go; processes come and go silently. So a job is read
when its folders move, again a few times soon after (tasks and processes follow their folders),
and with everything else once a minute. All reading is done in one worker thread, one turn at a
time, and a storm of steps is answered with longer pauses, not with more reading. What only
processes tell is read by further threads, which are left behind where the kernel holds them.

Needs no privilege. What it can't see or do it says in `trouble`, and goes on with what it can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lattice.adapters.linux.absences import LONGEST_S, Absences
from lattice.adapters.linux.groups import Birth, birth_of_folder
from lattice.adapters.linux.inotify import Inotify, WatchLimit
from lattice.adapters.linux.listener import Listener
from lattice.adapters.linux.lookout import Lookout
from lattice.base.clock import Clock
from lattice.base.impatience import PATIENCE_S
from lattice.domain.nodejobs import Absence, JobEvent, JobIdentity, NodeJob

_RESCAN_S = 60.0
_BLIND_RESCAN_S = 3.0
"""Between full readings while the kernel sends no notices."""
_SHORTEST_PAUSE_S = 0.01
_REST = 4.0
"""Pauses are at least this many times as long as the reading before: a fifth of one CPU at most."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel and Slurm show themselves; other places in tests and containers."""

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
        """`patience_s`: how long one process may hold whoever reads it."""
        self._clock = clock
        self._rescan_s = rescan_s
        self._blind_rescan_s = blind_rescan_s
        self._notices = notices
        self._no_notices = "" if notices else "inotify: switched off"
        self._lookout = Lookout(
            roots.proc, roots.cgroup, roots.spool, clock, birth, patience_s=patience_s
        )
        self._listeners: dict[Listener, float] = {}
        """With when each was last read, in monotonic time."""
        self._absences = Absences(clock)
        self._turned_at = clock.monotonic()
        self._one_turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]:
        """Every job on the node, as last read."""
        return MappingProxyType(self._lookout.picture)

    def job(self, job_id: int) -> NodeJob | None:
        """The newest life of a job, by its number."""
        lives = [job for job in self._lookout.picture.values() if job.id == job_id]
        return max(lives, key=lambda job: job.identity.started, default=None)

    @property
    def trouble(self) -> str | None:
        """Why the picture may be late or incomplete; None if it is neither."""
        told = [text for text in (self._no_notices, self._lookout.trouble) if text]
        return "; ".join(told) or None

    async def changes(self) -> AsyncIterator[JobEvent]:
        """Events without end: first each job that is there, then what happens.

        Whoever listens too slowly misses what came and went meanwhile, and nothing else.
        """
        listener = Listener(self._lookout.picture)
        try:
            while True:
                self._listeners[listener] = self._clock.monotonic()
                for event in await listener.take(lambda: self._lookout.picture):
                    yield event
        finally:
            self._listeners.pop(listener, None)

    async def missed(self) -> Absence:
        """The next stretch in which jobs can have come and gone unseen; for one reader."""
        return await self._absences.next()

    async def ready(self) -> None:
        """Return when `run` has read everything once and has its watches."""
        await self._ready.wait()

    async def refresh(self) -> None:
        """Read everything now."""
        await self._turn(everything=True)

    async def reread(self, identity: JobIdentity) -> NodeJob | None:
        """Read one job now; None if it is gone."""
        self._lookout.read_soon(identity)
        await self._turn(everything=False)
        return self._lookout.picture.get(identity)

    async def run(self) -> None:
        """Watch, until cancelled."""
        loop = asyncio.get_running_loop()
        pulse = asyncio.create_task(self._absences.run(), name="jobs pulse")
        try:
            while True:
                inotify = self._open()
                due = self._clock.monotonic() + self._pace_s
                took_s = await self._turn(everything=True)
                if self._no_notices or self._lookout.blind:
                    self._absences.note(self._pace_s)
                self._ready.set()
                while self._clock.monotonic() < due:
                    await asyncio.sleep(max(_SHORTEST_PAUSE_S, took_s * _REST))
                    next_s = min(due, self._lookout.next_reading or due) - self._clock.monotonic()
                    await self._pause(loop, inotify, next_s)
                    took_s = await self._turn(everything=False)
        finally:
            pulse.cancel()
            async with self._one_turn:
                self._lookout.close()

    @property
    def _pace_s(self) -> float:
        blind = self._no_notices or self._lookout.blind
        return min(self._blind_rescan_s, self._rescan_s) if blind else self._rescan_s

    def _open(self) -> Inotify | None:
        """Notices, or the reason why there are none; asked again before each full reading."""
        if not self._notices:
            return None
        if self._lookout.inotify is None:
            try:
                self._lookout.inotify = Inotify()
                self._no_notices = ""
            except WatchLimit as limit:
                self._no_notices = f"{limit}: jobs are looked for every {self._blind_rescan_s:g} s"
        return self._lookout.inotify

    async def _pause(
        self, loop: asyncio.AbstractEventLoop, inotify: Inotify | None, seconds: float
    ) -> None:
        """Until there are notices, or for so long."""
        self._wake.clear()
        # The reader is taken away before the turn, which drains the notices in another thread:
        # left in place it would spin on them meanwhile.
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
        """One reading; how much of a processor's time it took."""
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
                if listener.tell(events):
                    self._absences.note(self._clock.monotonic() - read_at)
            return took_s

    def _note_absence(self, began_at: float) -> None:
        """What a reading itself says: it hung, or the kernel dropped notices before it."""
        now_s = self._clock.monotonic()
        if self._lookout.notices_lost:
            self._absences.note(now_s - self._turned_at)
        elif now_s - began_at > LONGEST_S:
            self._absences.note(now_s - began_at)
        self._turned_at = began_at

    def _timed(self, everything: bool) -> tuple[tuple[JobEvent, ...], float]:
        # What it took of a processor: on a crowded node a turn lasts longer than it costs.
        began_s = time.thread_time() + self._lookout.reading_cpu_s
        events = self._lookout.turn(everything)
        return events, time.thread_time() + self._lookout.reading_cpu_s - began_s
