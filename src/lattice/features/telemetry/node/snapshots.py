"""The newest snapshots of each job, with their alerts, events and followers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lattice.domain.alert import Alert, Judge
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import CLOCK_SLACK_S, JobIdentity
from lattice.domain.run_events import NodeEvents, RunEvent
from lattice.features.telemetry.node.events import RunEvents

_log = logging.getLogger(__name__)

SOON_S = 0.5
"""Two snapshots that are closer make no rate."""
_MAX_RUNS = 512
MOST_ALERTS = 256
MOST_EVENT_BYTES = 4 * 1024 * 1024
"""Of the events of all runs."""

SnapshotPair: TypeAlias = tuple[JobSnapshot | None, JobSnapshot]
"""The snapshot before, for rates, and the newest."""


class Follower:
    """Data for one server that is not sent yet: the newest snapshot, and up to 256 alerts.

    A follower with more alerts is cut off: a server that asks again gets the current state. With
    `every_s` it gets a snapshot no more often than that, and whenever there are alerts.
    """

    def __init__(self, every_s: float = 0.0) -> None:
        self.pair: SnapshotPair | None = None
        self._every_s = every_s
        self._taken_time = 0.0
        self.alerts: list[Alert] = []
        self.lost = 0
        """Alerts beyond the bound; the follower is cut off if there are any."""
        self.changed = asyncio.Event()

    def give(self, pair: SnapshotPair, alerts: Sequence[Alert]) -> None:
        self.pair = pair
        # After a gap nothing more is added: alerts stay in order.
        room = 0 if self.lost else MOST_ALERTS - len(self.alerts)
        self.alerts += alerts[:room]
        self.lost += len(alerts[room:])
        if alerts or pair[1].time >= self._taken_time + self._every_s:
            self.changed.set()

    def take(self) -> tuple[SnapshotPair | None, tuple[Alert, ...]]:
        """Return the newest snapshot unless it was taken already, and the alerts."""
        taken = self.pair, tuple(self.alerts)
        if self.pair is not None:
            self._taken_time = self.pair[1].time
        self.pair = None
        self.alerts.clear()
        self.changed.clear()
        return taken


@dataclass(eq=False, slots=True)
class JobRun:
    """One run of a job on this node."""

    identity: JobIdentity
    judge: Judge
    before: JobSnapshot | None = None
    now: JobSnapshot | None = None
    ended: bool = False
    followers: set[Follower] = field(default_factory=set)
    events: RunEvents = field(default_factory=RunEvents)
    first: float | None = None
    """The time of its first snapshot: what happened before is not known."""
    last: float = 0.0

    def before_of(self, snapshot: JobSnapshot) -> JobSnapshot | None:
        """Return the snapshot to compare with: the newest that is old enough and not stale."""
        oldest = snapshot.time - 2 * snapshot.resolution_s - 5.0
        for each in (self.now, self.before):
            if each is not None and oldest <= each.time <= snapshot.time - SOON_S:
                return each
        return None


class SnapshotStore:
    """The snapshots of all jobs on this node; ended jobs stay for a while."""

    def __init__(
        self,
        judge: Callable[[], Judge],
        output: Callable[[JobIdentity], float | None] = lambda _: None,
        *,
        to_server_time: Callable[[float], float] = lambda here_s: here_s,
        leaps: Callable[[], int] = lambda: 0,
        mode: Callable[[int], str] = lambda _: "",
    ) -> None:
        """`judge` creates a judge for each run; `output` returns when a job last wrote.

        Both times are by the servers' clock. `to_server_time` converts a time of the node's clock
        to the servers'. `leaps` returns how often that time stepped. `mode` returns in which mode a
        job is measured, or an empty text if that is not known.
        """
        self._mode = mode
        self._judge = judge
        self._output = output
        self._to_server_time = to_server_time
        self._leaps = leaps
        self._leapt = leaps()
        self._runs: dict[JobIdentity, JobRun] = {}
        self._arrival = asyncio.Event()

    def reload(self, judge: Callable[[], Judge]) -> None:
        """From now on judge by this one, runs that are known too."""
        self._judge = judge
        for each in self._runs.values():
            each.events.close(each.judge.firing, each.last)
            each.judge = judge()

    def appeared(self, identity: JobIdentity) -> None:
        if identity in self._runs:
            return
        self._runs[identity] = JobRun(identity, self._judge())
        if len(self._runs) > _MAX_RUNS:
            over = next((each for each in self._runs.values() if each.ended), None)
            if over is not None:
                del self._runs[over.identity]
        self._arrival.set()
        self._arrival = asyncio.Event()

    def measured(self, snapshot: JobSnapshot) -> None:
        self.appeared(snapshot.identity)
        run = self._runs[snapshot.identity]
        if self._leaps() != self._leapt:
            self._leapt = self._leaps()
            for each in self._runs.values():
                each.before = each.now = None
                each.judge = self._judge()
        run.before, run.now = run.now, snapshot
        run.first = run.first or snapshot.time
        run.last = snapshot.time
        run.events.take_mode(self._mode(snapshot.identity.job_id), snapshot.time)
        alerts = self._judged(run, snapshot)
        if alerts:
            run.events.take_changes(alerts)
            self._make_room()
        for follower in run.followers:
            follower.give((run.before, snapshot), alerts)

    def ended(self, identity: JobIdentity) -> None:
        run = self._runs.get(identity)
        if run is not None:
            if not run.ended:
                run.events.close(run.judge.firing, run.last)
            run.ended = True
            run.before = run.now = None
            for follower in run.followers:
                follower.changed.set()

    def take_modes(self, time: float) -> None:
        """Note in which mode each job is measured from now on."""
        for run in self._runs.values():
            if not run.ended:
                run.events.take_mode(self._mode(run.identity.job_id), time)

    def report(self, identity: JobIdentity, event: RunEvent) -> bool:
        """Add what a job reported; return False if the job is not measured here."""
        run = self._runs.get(identity)
        if run is None or run.ended:
            return False
        run.events.report(event)
        self._make_room()
        return True

    def events(self, node: str, job_id: int, started: float) -> Iterator[NodeEvents]:
        """Return the events of each run that `find` chooses from, the newest run first."""
        for run in reversed(self._runs_of(job_id, started)):
            if run.first is None:
                continue
            standing = () if run.ended else run.judge.firing
            yield NodeEvents(
                node=node,
                began=self.began(run.identity),
                since=run.first,
                dropped=run.events.dropped,
                events=run.events.read(standing),
            )

    def find(self, job_id: int, started: float) -> JobRun | None:
        """Return the newest run of the job that began within the attempt."""
        return next(reversed(self._runs_of(job_id, started)), None)

    def _runs_of(self, job_id: int, started: float) -> list[JobRun]:
        runs = [
            run
            for run in self._runs.values()
            if run.identity.job_id == job_id and self.began(run.identity) >= started - CLOCK_SLACK_S
        ]
        return sorted(runs, key=lambda run: run.identity.started)

    def _make_room(self) -> None:
        """Drop events while there are too many: of ended runs first."""
        size_bytes = sum(each.events.size_bytes for each in self._runs.values())
        if size_bytes <= MOST_EVENT_BYTES:
            return
        for run in sorted(self._runs.values(), key=lambda each: not each.ended):
            while size_bytes > MOST_EVENT_BYTES and run.events.size_bytes:
                before = run.events.size_bytes
                run.events.drop_oldest()
                size_bytes -= before - run.events.size_bytes

    def began(self, identity: JobIdentity) -> float:
        """Return when a job began here, by the servers' clock."""
        return self._to_server_time(identity.started)

    async def arrival(self) -> None:
        """Wait until a job appears."""
        await self._arrival.wait()

    def newest(self) -> Iterator[JobSnapshot]:
        """Return the newest snapshot of every job on the node."""
        return (run.now for run in self._runs.values() if run.now is not None)

    def _judged(self, run: JobRun, snapshot: JobSnapshot) -> tuple[Alert, ...]:
        try:
            return run.judge.see(snapshot, self._output(run.identity))
        except Exception:  # noqa: BLE001 - a rule's defect must not keep samples from being taken
            _log.exception("job %d can't be judged", run.identity.job_id)
            return ()
