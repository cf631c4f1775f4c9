"""One open stream per node and attempt, shared by all followers on this server.

A node pushes its measurements and alerts. A late follower first gets the current state. A node is
reported stale at once if its connection breaks, else after two intervals without a message. It is
reported back when it answers. An alert is reported once, even after lost messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.domain.alert import Alert, Phase
from lattice.domain.attempts import AttemptLookup, JobAttempt
from lattice.domain.node_snapshot import (
    NodeAlert,
    NodeBack,
    NodeMeasured,
    NodeNews,
    NodeOver,
    NodeSnapshot,
    NodeStale,
    NodeUnreachable,
)
from lattice.domain.stream import Lane, NodeStreams, StreamKind, StreamQuestion
from lattice.domain.telemetry import ModeOf
from lattice.features.telemetry.convert.snapshot_rows import SnapshotReader
from lattice.features.telemetry.convert.snapshots import (
    ALERTS_BEAT_S,
    AgentNews,
    BadSnapshot,
    SnapshotRequest,
    Want,
    opening_bytes,
)
from lattice.features.telemetry.service.node_news import FollowedNews
from lattice.observe.node_questions import (
    OTHER_RUN,
    NoAnswer,
    is_own_run,
    started_s,
    stream_question,
)
from lattice.observe.node_stream import NodeStream, SharedStreams
from lattice.observe.opening_turns import OpeningTurns
from lattice.wire.conduit import Conduit, patient_conduit

MOST_ALERTS = 256
"""Per node."""
_TOO_MANY = "it tells of more alerts than there can be"
_IDLE_S = 10.0
_OVER_PAUSE_S = 5.0


def question(
    signer: GrantSigner,
    attempt: JobAttempt,
    node: str,
    want: Want,
    *,
    session: str = "",
    resume: bool = False,
    alerts_only: bool = False,
) -> StreamQuestion:
    request = SnapshotRequest(
        attempt.allocation.job_id,
        want,
        started_s(attempt),
        rows=want is Want.FOLLOW,
        alerts_only=alerts_only,
    )
    return stream_question(
        signer,
        StreamKind.METRICS,
        node,
        attempt,
        opening_bytes(request),
        session=session,
        resume=resume,
        lane=Lane.BULK if want is Want.FOLLOW else Lane.INTERACTIVE,
    )


def two_missed(interval_s: float) -> float:
    """Return after how many seconds without a measurement a node is stale."""
    return 2 * interval_s + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The dependencies of a follow."""

    nodes: NodeStreams
    signer: GrantSigner
    clock: Clock
    find_attempt: AttemptLookup
    modes: ModeOf
    patience: Callable[[float], float] = two_missed


class NodeFollow(NodeStream):
    """The live stream of one node for one attempt."""

    def __init__(
        self,
        attempt: JobAttempt,
        node: str,
        means: Means,
        turns: OpeningTurns,
        *,
        alerts_only: bool,
    ) -> None:
        """Connections are opened in `turns`."""
        super().__init__(node, means.nodes, turns)
        self._alerts_only = alerts_only
        self.followers: list[FollowedNews] = []
        self._attempt = attempt
        self._means = means
        self._clock = means.clock
        self._snapshot: NodeSnapshot | None = None
        self._measured_s = 0.0
        self._standing: dict[tuple[str, str], Alert] = {}
        self._silence: NodeUnreachable | None = None
        self._silent_from_s: float | None = None
        self._over = False
        self._anew = True
        """True until the first snapshot of a session: earlier changes were not received."""
        self._early: list[Alert] = []
        """Alerts before that snapshot, which alone identifies their run."""
        self._doubted: set[tuple[str, str]] = set()
        """Earlier alerts that a restarted judge can't know yet."""

    def join(self, follower: FollowedNews) -> None:
        """Add a follower and give it the current state."""
        if self._over:
            follower.give(NodeOver(self.node))
        elif self._silence is not None:
            follower.give(NodeStale(self._silence))
        elif self._snapshot is not None:
            firing = tuple(self._standing.values())
            follower.give(NodeMeasured(replace(self._snapshot, firing=firing)))
        self.followers.append(follower)

    def _publish(self, news: NodeNews) -> None:
        for each in self.followers:
            each.give(news)

    def begin(self, conduit: Conduit) -> None:  # noqa: ARG002 - the base class's
        """Start a session. Its run is unknown until the first snapshot."""
        self._anew = True
        self._early.clear()

    def conduit(self) -> Conduit:
        """The server's end of a session: a job of a thousand nodes has a thousand of them."""
        return patient_conduit()

    def pause_s(self, failures: int) -> float:
        """Return a longer pause once the job's processes have left the node."""
        return _OVER_PAUSE_S if self._over else super().pause_s(failures)

    def question(self, session: str, *, resume: bool) -> StreamQuestion:
        """Return the request for the node's measurements and alerts from now on."""
        means = self._means
        return question(
            means.signer,
            self._attempt,
            self.node,
            Want.FOLLOW,
            session=session,
            resume=resume,
            alerts_only=self._alerts_only,
        )

    async def read(self, conduit: Conduit) -> None:
        """Process the node's messages until its last."""
        reader = SnapshotReader(self.node, self._attempt.allocation.job_id)
        while (message := await self._received(conduit)) is not None:
            try:
                news = reader.news(bytes(message))
            except BadSnapshot as error:
                raise NoAnswer(str(error)) from None
            await self._take(news)
        await conduit.send(b"", last=True)

    async def _received(self, conduit: Conduit) -> bytes | None:
        """Return the next message; report the node stale if it takes too long."""
        while True:
            limit_s = self._means.patience(self._interval_s)
            try:
                async with asyncio.timeout(limit_s):
                    return await conduit.receive()
            except TimeoutError:
                self.lost(f"it has told of no measurement for {limit_s:g} s")

    @property
    def _interval_s(self) -> float:
        # The longer of both: after a switch the node still samples at the old interval.
        usual = self._means.modes(self._attempt.allocation.ref).interval_s
        measured_s = self._snapshot.now.resolution_s if self._snapshot else 0.0
        return max(usual, measured_s, ALERTS_BEAT_S if self._alerts_only else 0.0)

    async def _take(self, news: AgentNews | None) -> None:
        if isinstance(news, NodeMeasured):
            if not await is_own_run(
                self._means.find_attempt,
                self._attempt,
                self.node,
                news.snapshot.now.identity.started,
            ):
                raise NoAnswer(OTHER_RUN)
            self._take_snapshot(news.snapshot)
        elif isinstance(news, NodeAlert):
            if not self._anew:
                self._take_alert(news.alert)
            elif len(self._early) < MOST_ALERTS:
                self._early.append(news.alert)
            else:
                raise NoAnswer(_TOO_MANY)
        elif isinstance(news, NodeOver) and not self._over:
            self._over = True
            self._reached()
            self._publish(news)

    def _take_snapshot(self, snapshot: NodeSnapshot) -> None:
        self._reached()
        self._over = False
        self._snapshot, self._measured_s = snapshot, self._clock.monotonic()
        early, self._early = self._early, []
        for alert in early:
            self._take_alert(alert)
        self._publish(NodeMeasured(snapshot))
        firing = {alert.key for alert in snapshot.firing}
        self._doubted -= firing
        if self._anew:
            self._anew = False
            self._doubted |= self._standing.keys() - firing
        # First, so that alerts that are over make room for new ones.
        self._settle(snapshot)
        for alert in snapshot.firing:
            self._take_alert(alert)

    def _settle(self, snapshot: NodeSnapshot) -> None:
        """Clear earlier alerts, or report them as unknown while the node can't tell."""
        for key in sorted(self._doubted):
            alert = self._standing.get(key)
            if alert is None:
                self._doubted.discard(key)
                continue
            phase, why = Phase.UNKNOWN, "The node looks anew. It was"
            if snapshot.knows_of(alert.since):
                phase, why = Phase.CLEARED, "No longer so, since the node was not heard"
                self._doubted.discard(key)
            if alert.phase is not phase:
                text = f"{why}: {alert.text}"
                self._take_alert(replace(alert, phase=phase, time=snapshot.now.time, text=text))

    def _take_alert(self, alert: Alert) -> None:
        """Report an alert once for each of its phases."""
        before = self._standing.get(alert.key)
        if alert.phase is Phase.CLEARED:
            if self._standing.pop(alert.key, None) is None:
                return
        else:
            if before is not None and (before.phase, before.since) == (alert.phase, alert.since):
                return
            if before is None and len(self._standing) >= MOST_ALERTS:
                # The known ones stay: they are not reported again, and their end is.
                raise NoAnswer(_TOO_MANY)
            self._standing[alert.key] = alert
        self._publish(NodeAlert(self.node, alert))

    def _reached(self) -> None:
        if self._silence is None:
            return
        gone_s = self._clock.monotonic() - (self._silent_from_s or self._clock.monotonic())
        self._silence = self._silent_from_s = None
        self._publish(NodeBack(self.node, gone_s))

    def answered(self) -> None:
        """The node is connected again; its last snapshot is current unless it is too old."""
        since_s = self._clock.monotonic() - self._measured_s
        if self._snapshot is not None and since_s < self._means.patience(self._interval_s):
            self._reached()

    def lost(self, why: str) -> None:
        """Report the node as stale to the followers."""
        if self._silence is not None or self._over:
            return
        since = self._snapshot.now.time if self._snapshot else None
        self._silence = NodeUnreachable(self.node, why, since)
        self._silent_from_s = self._clock.monotonic()
        self._publish(NodeStale(self._silence))


class NodeFollows:
    """Every node with a follower, now or a moment ago.

    Whoever wants only alerts shares a stream with measurements if there is one.
    """

    def __init__(self, means: Means, *, idle_s: float = _IDLE_S) -> None:
        self._means = means
        self._streams: SharedStreams[tuple[str, int, str, bool], NodeFollow] = SharedStreams(idle_s)
        self.aclose = self._streams.aclose

    @property
    def open(self) -> int:
        return self._streams.open

    @contextmanager
    def joined(
        self,
        attempt: JobAttempt,
        node: str,
        follower: FollowedNews,
        *,
        alerts_only: bool = False,
    ) -> Iterator[None]:
        """Send the follower this node's news while the context lasts."""
        here = attempt.allocation.ref, attempt.attempt.number, node
        alerts_only = alerts_only and (*here, False) not in self._streams
        key = (*here, alerts_only)

        def make() -> NodeFollow:
            return NodeFollow(
                attempt, node, self._means, self._streams.turns, alerts_only=alerts_only
            )

        with self._streams.used(key, make) as follow:
            follow.join(follower)
            try:
                yield
            finally:
                follow.followers.remove(follower)
