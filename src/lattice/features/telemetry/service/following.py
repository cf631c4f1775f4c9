"""One open stream a node and attempt, shared by all who follow it on this server.

A node pushes what it measures and judges. Who joins late is told how things stand. A node that
is not heard is told stale, at once where its connection broke, else after two intervals without
a word, and back when it answers. An alert is told once, whatever was lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.alert import Alert, Phase
from lattice.domain.attempts import JobAttempt, Whose
from lattice.domain.nodelook import (
    NodeAlert,
    NodeBack,
    NodeMeasured,
    NodeNews,
    NodeOver,
    NodeSight,
    NodeSilence,
    NodeStale,
)
from lattice.domain.stream import Carrier, CarrierLost, NodeStreams
from lattice.domain.telemetry import ModeOf
from lattice.features.telemetry.convert.looks import BadTell, LookNews, Want, tell_of
from lattice.features.telemetry.service.asking import OTHER_RUN, is_own, question
from lattice.features.telemetry.service.followed import Followed
from lattice.wire.conduit import Conduit, ConduitClosed

_log = logging.getLogger(__name__)

MOST_ALERTS = 256
"""Of one node at a time."""
_TOO_MANY = "it tells of more alerts than there can be"
_IDLE_S = 10.0
_MOST_OPENING = 32
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_OVER_PAUSE_S = 5.0


def two_missed(interval_s: float) -> float:
    """After how long without a measurement a node is stale."""
    return 2 * interval_s + 2.0


class _Nonsense(Exception):
    """What a node says is not of this attempt, or can't be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What following a node takes."""

    nodes: NodeStreams
    signer: GrantSigner
    clock: Clock
    whose: Whose
    modes: ModeOf
    patience: Callable[[float], float] = two_missed


class NodeFollow:
    """What one node tells of one attempt, live."""

    def __init__(
        self, attempt: JobAttempt, node: str, means: Means, turn: asyncio.Semaphore
    ) -> None:
        """`turn` is taken while a way to the node is sought."""
        self.node = node
        self.followers: list[Followed] = []
        self._attempt = attempt
        self._means = means
        self._clock = means.clock
        self._turn = turn
        self._sight: NodeSight | None = None
        self._measured_s = 0.0
        self._standing: dict[tuple[str, str], Alert] = {}
        self._silence: NodeSilence | None = None
        self._silent_from_s: float | None = None
        self._over = False
        self._anew = True
        """True until the first sight of a session: what changed before it was not told."""
        self._early: list[Alert] = []
        """Told before that sight, which alone says of which run they are."""
        self._doubted: set[tuple[str, str]] = set()
        """What stood before, and a judge that was begun anew can't know of yet."""

    def join(self, follower: Followed) -> None:
        """From now on; told first how things stand."""
        if self._over:
            follower.give(NodeOver(self.node))
        elif self._silence is not None:
            follower.give(NodeStale(self._silence))
        elif self._sight is not None:
            firing = tuple(self._standing.values())
            follower.give(NodeMeasured(replace(self._sight, firing=firing)))
        self.followers.append(follower)

    def _tell(self, news: NodeNews) -> None:
        for each in self.followers:
            each.give(news)

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            conduit, session = Conduit(), secrets.token_hex(16)
            self._anew = True
            self._early.clear()
            reading = asyncio.create_task(self._read(conduit), name=f"follow {self.node}")
            try:
                while not conduit.over and not reading.done():
                    try:
                        async with self._opened(session, resume=conduit.begun) as carrier:
                            await conduit.carry(_Heard(carrier, self._heard))
                    except CarrierLost:
                        self._lost("the connection was lost")
                    failures = 0 if conduit.met else failures
                    await asyncio.sleep(_PAUSES_S[0])
                if reading.done():
                    reading.result()
            except LatticeError as error:
                self._lost(error.message.rstrip("."))
            except ConduitClosed:
                self._lost("the session is over")
            except (_Nonsense, BadTell) as error:
                self._lost(str(error))
            except Exception:  # noqa: BLE001 - a node's nonsense must not end the following
                _log.exception("metrics of %s: not foreseen", self.node)
                self._lost("what it said can't be read")
            finally:
                conduit.close()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            pause_s = _OVER_PAUSE_S if self._over else _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            await asyncio.sleep(pause_s)
            failures += 1

    @asynccontextmanager
    async def _opened(self, session: str, *, resume: bool) -> AsyncIterator[Carrier]:
        async with AsyncExitStack() as stack:
            async with self._turn:
                asked = question(
                    self._means.signer,
                    self._attempt,
                    self.node,
                    Want.FOLLOW,
                    session=session,
                    resume=resume,
                )
                carrier = await stack.enter_async_context(self._means.nodes.open(asked))
            yield carrier

    async def _read(self, conduit: Conduit) -> None:
        job_id = self._attempt.allocation.job_id
        try:
            while (message := await self._received(conduit)) is not None:
                await self._take(tell_of(bytes(message), self.node, job_id))
            await conduit.send(b"", last=True)
        except ConduitClosed:
            return
        except Exception:
            # Nobody reads any more: who carries has to hear of it.
            conduit.close()
            raise

    async def _received(self, conduit: Conduit) -> bytes | None:
        """The next message; stale is told on the way if it takes too long."""
        while True:
            limit_s = self._means.patience(self._interval_s)
            try:
                async with asyncio.timeout(limit_s):
                    return await conduit.receive()
            except TimeoutError:
                self._lost(f"it has told of no measurement for {limit_s:g} s")

    @property
    def _interval_s(self) -> float:
        # Whichever is longer: who was switched just now still measures as before.
        usual = self._means.modes(self._attempt.allocation.ref).interval_s
        return max(usual, self._sight.now.resolution_s) if self._sight else usual

    async def _take(self, tell: LookNews | None) -> None:
        if isinstance(tell, NodeMeasured):
            if not await is_own(self._means.whose, self._attempt, self.node, tell.sight.now):
                raise _Nonsense(OTHER_RUN)
            self._take_sight(tell.sight)
        elif isinstance(tell, NodeAlert):
            if not self._anew:
                self._take_alert(tell.alert)
            elif len(self._early) < MOST_ALERTS:
                self._early.append(tell.alert)
            else:
                raise _Nonsense(_TOO_MANY)
        elif isinstance(tell, NodeOver) and not self._over:
            self._over = True
            self._reached()
            self._tell(tell)

    def _take_sight(self, sight: NodeSight) -> None:
        self._reached()
        self._over = False
        self._sight, self._measured_s = sight, self._clock.monotonic()
        early, self._early = self._early, []
        for alert in early:
            self._take_alert(alert)
        self._tell(NodeMeasured(sight))
        for alert in sight.firing:
            self._take_alert(alert)
        self._doubted.difference_update(alert.key for alert in sight.firing)
        if self._anew:
            self._anew = False
            there = {alert.key for alert in sight.firing}
            self._doubted.update(key for key in self._standing if key not in there)
        self._settle(sight)

    def _settle(self, sight: NodeSight) -> None:
        """What stood before the node was not heard: passed, or not known as long as it can't be."""
        for key in sorted(self._doubted):
            alert = self._standing.get(key)
            if alert is None:
                self._doubted.discard(key)
                continue
            phase, why = Phase.UNKNOWN, "The node looks anew. It was"
            if sight.knows_of(alert.since):
                phase, why = Phase.CLEARED, "No longer so, since the node was not heard"
                self._doubted.discard(key)
            if alert.phase is not phase:
                words = f"{why}: {alert.words}"
                self._take_alert(replace(alert, phase=phase, time=sight.now.time, words=words))

    def _take_alert(self, alert: Alert) -> None:
        """Told once for each of its phases."""
        before = self._standing.get(alert.key)
        if alert.phase is Phase.CLEARED:
            if self._standing.pop(alert.key, None) is None:
                return
        else:
            if before is not None and (before.phase, before.since) == (alert.phase, alert.since):
                return
            self._standing[alert.key] = alert
            if len(self._standing) > MOST_ALERTS:
                self._standing.clear()
                raise _Nonsense(_TOO_MANY)
        self._tell(NodeAlert(self.node, alert))

    def _reached(self) -> None:
        if self._silence is None:
            return
        gone_s = self._clock.monotonic() - (self._silent_from_s or self._clock.monotonic())
        self._silence = self._silent_from_s = None
        self._tell(NodeBack(self.node, gone_s))

    def _heard(self) -> None:
        """The node is connected again; what it told last is current unless it is too old."""
        since_s = self._clock.monotonic() - self._measured_s
        if self._sight is not None and since_s < self._means.patience(self._interval_s):
            self._reached()

    def _lost(self, why: str) -> None:
        if self._silence is not None or self._over:
            return
        since = self._sight.now.time if self._sight else None
        self._silence = NodeSilence(self.node, why, since)
        self._silent_from_s = self._clock.monotonic()
        self._tell(NodeStale(self._silence))


class _Heard:
    """A carrier that tells when the other side is heard on it for the first time."""

    def __init__(self, carrier: Carrier, heard: Callable[[], None]) -> None:
        self._carrier = carrier
        self._heard: Callable[[], None] | None = heard
        self.send = carrier.send

    async def receive(self) -> bytes | memoryview:
        frame = await self._carrier.receive()
        if self._heard is not None:
            self._heard()
            self._heard = None
        return frame


@dataclass(eq=False, slots=True)
class _Shared:
    follow: NodeFollow
    task: asyncio.Task[None]
    closing: asyncio.TimerHandle | None = None


class NodeFollows:
    """Every node that somebody follows, or did a moment ago."""

    def __init__(self, means: Means, *, idle_s: float = _IDLE_S) -> None:
        self._means = means
        self._idle_s = idle_s
        self._shared: dict[tuple[str, int, str], _Shared] = {}
        self._turns = asyncio.Semaphore(_MOST_OPENING)

    @property
    def open(self) -> int:
        return len(self._shared)

    @contextmanager
    def joined(self, attempt: JobAttempt, node: str, follower: Followed) -> Iterator[None]:
        """Tell her of this node, as long as the context lasts."""
        key = (attempt.allocation.ref, attempt.attempt.number, node)
        shared = self._shared.get(key)
        if shared is None:
            follow = NodeFollow(attempt, node, self._means, self._turns)
            task = asyncio.create_task(follow.run(), name=f"metrics {node}")
            shared = self._shared[key] = _Shared(follow, task)
        if shared.closing:
            shared.closing.cancel()
            shared.closing = None
        shared.follow.join(follower)
        try:
            yield
        finally:
            shared.follow.followers.remove(follower)
            if not shared.follow.followers:
                loop = asyncio.get_running_loop()
                shared.closing = loop.call_later(self._idle_s, self._drop, key, shared)

    def _drop(self, key: tuple[str, int, str], shared: _Shared) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]
        shared.task.cancel()

    async def aclose(self) -> None:
        tasks = [each.task for each in self._shared.values()]
        for each in self._shared.values():
            if each.closing:
                each.closing.cancel()
        self._shared.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
