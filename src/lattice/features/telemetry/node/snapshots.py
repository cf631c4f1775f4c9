"""The newest snapshots of each job, with their alerts and followers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from lattice.domain.alert import Alert, Judge
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import CLOCK_SLACK_S, JobIdentity

_log = logging.getLogger(__name__)

SOON_S = 0.5
"""Two snapshots that are closer make no rate."""
_MOST_LIVES = 512
_MOST_ALERTS = 256

SnapshotPair: TypeAlias = tuple[JobSnapshot | None, JobSnapshot]
"""The snapshot before, for rates, and the newest."""


class Follower:
    """Data for one server that is not sent yet: the newest snapshot, and up to 256 alerts."""

    def __init__(self) -> None:
        self.sight: SnapshotPair | None = None
        self.alerts: deque[Alert] = deque(maxlen=_MOST_ALERTS)
        self.changed = asyncio.Event()

    def take(self) -> tuple[SnapshotPair | None, tuple[Alert, ...]]:
        """Return the newest snapshot unless it was taken already, and the alerts."""
        told = self.sight, tuple(self.alerts)
        self.sight = None
        self.alerts.clear()
        self.changed.clear()
        return told


@dataclass(eq=False, slots=True)
class JobRun:
    """One run of a job on this node."""

    identity: JobIdentity
    judge: Judge
    before: JobSnapshot | None = None
    now: JobSnapshot | None = None
    ended: bool = False
    followers: set[Follower] = field(default_factory=set)

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
        told: Callable[[float], float] = lambda here_s: here_s,
        leaps: Callable[[], int] = lambda: 0,
    ) -> None:
        """`judge` creates a judge for each run; `output` returns when a job last wrote.

        Both times are by the servers' clock. `told` converts a time of the node's clock to the
        servers'. `leaps` returns how often that time stepped.
        """
        self._judge = judge
        self._output = output
        self._told = told
        self._leaps = leaps
        self._leapt = leaps()
        self._lives: dict[JobIdentity, JobRun] = {}
        self._arrival = asyncio.Event()

    def appeared(self, identity: JobIdentity) -> None:
        if identity in self._lives:
            return
        self._lives[identity] = JobRun(identity, self._judge())
        if len(self._lives) > _MOST_LIVES:
            over = next((each for each in self._lives.values() if each.ended), None)
            if over is not None:
                del self._lives[over.identity]
        self._arrival.set()
        self._arrival = asyncio.Event()

    def measured(self, snapshot: JobSnapshot) -> None:
        self.appeared(snapshot.identity)
        life = self._lives[snapshot.identity]
        if self._leaps() != self._leapt:
            self._leapt = self._leaps()
            for each in self._lives.values():
                each.before = each.now = None
                each.judge = self._judge()
        life.before, life.now = life.now, snapshot
        alerts = self._judged(life, snapshot)
        for follower in life.followers:
            follower.sight = (life.before, snapshot)
            follower.alerts.extend(alerts)
            follower.changed.set()

    def ended(self, identity: JobIdentity) -> None:
        life = self._lives.get(identity)
        if life is not None:
            life.ended = True
            life.before = life.now = None
            for follower in life.followers:
                follower.changed.set()

    def find(self, job_id: int, started: float) -> JobRun | None:
        """Return the newest run of the job that began within the attempt."""
        lives = [
            life
            for life in self._lives.values()
            if life.identity.job_id == job_id
            and self.began(life.identity) >= started - CLOCK_SLACK_S
        ]
        return max(lives, key=lambda life: life.identity.started, default=None)

    def began(self, identity: JobIdentity) -> float:
        """Return when a job began here, by the servers' clock."""
        return self._told(identity.started)

    async def arrival(self) -> None:
        """Wait until a job appears."""
        await self._arrival.wait()

    def newest(self) -> Iterator[JobSnapshot]:
        """Return the newest snapshot of every job on the node."""
        return (life.now for life in self._lives.values() if life.now is not None)

    def _judged(self, life: JobRun, snapshot: JobSnapshot) -> tuple[Alert, ...]:
        try:
            return life.judge.see(snapshot, self._output(life.identity))
        except Exception:  # noqa: BLE001 - a rule's defect must not keep samples from being taken
            _log.exception("job %d can't be judged", life.identity.job_id)
            return ()
