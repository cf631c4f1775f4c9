"""One connection of a caller: the first message, the frames, the last message.

A session outlives its connections. A server keeps no more of it than the record in the state store
and the caller's slot. The steps come in this order. The caller owns the allocation and it can be
entered; a slot is free; the record is written; the node gets the request.

After `error` and `ended` the client can't come back. After any other end it reconnects, to this
server or another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import (
    LatticeError,
    NotFound,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.domain.allocation import Allocation
from lattice.domain.privileged import Enter, Rejoin
from lattice.domain.scheduler import Scheduler
from lattice.domain.stream import Carrier, CarrierLost, NodeStreams, is_session
from lattice.domain.terminal import EndCause
from lattice.features.attach.model import (
    PREEMPTED_TEXT,
    TRY_AGAIN,
    AttachToken,
    BadWord,
    ClientWord,
    Ended,
    EndReason,
    Failure,
    Opened,
    ServerWord,
    Start,
    read_client_word,
    write_word,
)
from lattice.features.attach.service.node_choice import by_hand, ends_at, meant, node_of, refusal
from lattice.features.attach.service.questions import HelperQuestions
from lattice.features.attach.service.recorded import (
    UNRECORDED,
    RecordingEnded,
    TerminalRecording,
)
from lattice.features.attach.service.registry import REASONS, SessionEntry, SessionRegistry
from lattice.features.attach.service.tap import SessionTap, ends
from lattice.features.attach.service.watcher import CHECK_EVERY_S, SessionWatch
from lattice.wire.lines import ORDERLY, LineClosed, TerminalLine
from lattice.wire.websocket import SocketCaller

_log = logging.getLogger(__name__)

START_S = 10.0
_LAST_WORD_S = 2.0
_SLURM_S = 1.1
_YOUNG_S = 60.0
_PAUSES_S = (0.3, 0.7, 1.0, 2.0, 4.0)
_PERMISSION = Permission.ATTACH_ALLOCATION
_RECORDED = (
    "A job has one recorded terminal at a time, in an image that the site has signed. "
    "An earlier one may take some seconds to end."
)


@dataclass(eq=False, slots=True)
class _Session:
    """The parts of one connection."""

    start: Start
    job: Allocation
    entry: SessionEntry
    line: TerminalLine
    watch: SessionWatch


class _NodeGone(Exception):
    """The carrier to the node has ended."""


_FORESEEN = (LatticeError, LineClosed, _NodeGone)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """How a connection ends. With a `reason` its session ends too."""

    word: ServerWord | None = None
    close: int | None = None
    reason: EndReason | None = None
    error: LatticeError | None = None


class AttachService:
    """Serves terminals to owners of running jobs."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        scheduler: Scheduler,
        finder: AllocationFinder,
        nodes: NodeStreams,
        asking: HelperQuestions,
        keeping: SessionRegistry,
        recording: TerminalRecording,
        clock: Clock,
        replica: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._recording = recording
        self._scheduler = scheduler
        self._finder = finder
        self._nodes = nodes
        self._asking = asking
        self._keeping = keeping
        self._clock = clock
        self._replica = replica
        self._sleep = sleep
        self.open = 0
        """Connections open now."""

    async def serve(
        self, standing: SocketCaller[Actor], name: str, line: TerminalLine
    ) -> LatticeError | None:
        """Serve a connection until it ends; returns the error that was sent last, if any.

        Raises `LineClosed` if the caller left before the session began.
        """
        self.open += 1
        try:
            session = await self._started(standing, name, line)
            return await self._run(session) if session is not None else None
        except LatticeError as error:
            await _last(line, _failure(error))
            return error
        finally:
            self.open -= 1

    async def _started(
        self, standing: SocketCaller[Actor], name: str, line: TerminalLine
    ) -> _Session | None:
        actor = standing.caller
        # Find the job while the caller's first message is on its way.
        finding = asyncio.ensure_future(self._found(actor, name))
        try:
            start = await _first_word(line)
            job = await finding
        finally:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
        if start.resume:
            entry = await self._keeping.resume(actor, job, start.session)
            if self._recording.lacks(job, recorded=entry.record.recorded):
                await self._keeping.end(entry, EndReason.REFUSED)
                raise PermissionRefused(UNRECORDED)
            if entry.record.session.attempt != job.attempt:
                text = PREEMPTED_TEXT.format(id=job.id)
                await _last(line, Ended(reason=EndReason.REQUEUED, words=text))
                await self._keeping.end(entry, EndReason.REQUEUED)
                return None
        else:
            if (problem := refusal(job)) is not None:
                raise problem
            node = node_of(job, start)
            self._asking.enter(start)
            recording = await self._recording.beginning(actor, job, node, start)
            entry = await self._keeping.begin(actor, job, node, start, recording)
        watch = SessionWatch(
            self._scheduler,
            self._nodes,
            self._clock,
            standing,
            job,
            entry.node,
            entry.passage,
            lambda: self._keeping.lock(actor, entry.node, entry.session),
            knows_state=lambda: not entry.record.recorded or self._keeping.knows_state,
        )
        return _Session(start, job, entry, line, watch)

    async def _found(self, actor: Actor, name: str) -> Allocation:
        found = self._finder.find_live(actor, _PERMISSION, name)
        if found is None or refusal(meant(found, name)) is not None:
            # The job may have started since the last snapshot; a client that waits for a job
            # attaches then.
            found = await self._find_anew(actor, name)
        if meant(found, name).state.waiting:
            # Slurm reports changes by the second: a second change in one second comes with the
            # next.
            await self._sleep(_SLURM_S)
            found = await self._find_anew(actor, name)
        return meant(found, name)

    async def _find_anew(self, actor: Actor, name: str) -> Found:
        # Only the owner attaches.
        await self._scheduler.fresh(users={actor.user})
        found = self._finder.find_live(actor, _PERMISSION, name)
        return found or await self._finder.find(actor, _PERMISSION, name)

    async def _run(self, session: _Session) -> LatticeError | None:
        """Run the frames and the watcher until the first of them ends."""
        tasks = [
            asyncio.ensure_future(step)
            for step in (
                self._carry(session),
                self._attend(session),
                _replaced(session.entry),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await asyncio.shield(self._keeping.leave(session.entry))
            raise
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return await self._finish(session, outcomes)

    async def _finish(
        self, session: _Session, outcomes: list[Ended | BaseException]
    ) -> LatticeError | None:
        for each in outcomes:
            if isinstance(each, Exception) and not isinstance(each, _FORESEEN):
                _log.error("session: not foreseen", exc_info=each)
        verdict = _verdict(session, outcomes)
        # Tell the client first: its message must not wait for the state store.
        if verdict.word is not None:
            await _last(session.line, verdict.word)
        elif verdict.close is not None:
            await session.line.close(verdict.close, "try again" * (verdict.close == TRY_AGAIN))
        if verdict.reason is None:
            await self._keeping.leave(session.entry)
        else:
            await self._keeping.end(session.entry, verdict.reason)
        return verdict.error

    # Frames

    async def _carry(self, session: _Session) -> Ended:
        *others, last = self._questions(session)
        for question in others:
            with suppress(NotFound):
                return await self._carried(session, question)
        try:
            for pause_s in self._patience(session):
                with suppress(NotFound):
                    return await self._carried(session, last)
                await self._sleep(pause_s)
            return await self._carried(session, last)
        except (NotFound, PermissionRefused) as refused:
            if session.start.resume:
                return Ended(reason=EndReason.SHELL_LOST, words=refused.message)
            raise self._by_hand(session, refused) from None
        except Unavailable as away:
            if session.start.resume:
                # The watcher's loop would not see a try that fails at once.
                session.entry.passage.broken()
                for message in await session.watch.check():
                    if isinstance(message, Ended):
                        return message
            raise self._by_hand(session, away) from None

    def _patience(self, session: _Session) -> tuple[float, ...]:
        """Pauses between retries: a new job may have no process yet on a slow node."""
        begun = session.job.started
        if session.start.resume or begun is None:
            return ()
        young = (self._clock.now() - begun).total_seconds() < _YOUNG_S
        return _PAUSES_S if young else ()

    def _questions(self, session: _Session) -> tuple[Enter | Rejoin, ...]:
        recorded = session.entry.record.recorded
        rejoin = self._asking.rejoin(session.entry.session, recorded=recorded)
        if session.start.resume:
            return (rejoin,)
        enter = self._asking.enter(session.start, recorded=recorded)
        # The client repeats its first request; nobody knows how far the first one got.
        return (rejoin, enter) if session.entry.record.sequence > 1 else (enter,)

    async def _carried(self, session: _Session, question: Enter | Rejoin) -> Ended:
        entry, recording = session.entry, None
        if entry.record.recorded:
            recording = await self._recording.of(entry.session)
        order = recording.order if recording is not None else None
        asked = self._asking.of_node(entry.actor, session.job, entry.node, question, order)
        async with self._nodes.open(asked) as opened:
            await session.line.send_word(write_word(self._opened(session)))
            carrier: Carrier = opened
            directions: list[Coroutine[None, None, Ended]] = []
            if recording is not None:
                carrier = recorded = self._recording.carrier(opened, recording)
                directions.append(recorded.run())
            directions += (self._inwards(session, carrier), self._outwards(session, carrier))
            tasks = [asyncio.ensure_future(direction) for direction in directions]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Ended):
                return result
            if isinstance(result, RecordingEnded):
                return Ended(reason=EndReason.UNRECORDED, words=str(result))
        raise next(each for each in results if isinstance(each, Exception))

    async def _inwards(self, session: _Session, carrier: Carrier) -> Ended:
        line, passage = session.line, session.entry.passage
        while True:
            message = await line.receive()
            if isinstance(message, str):
                await _heed(message, session.watch)
                continue
            await passage.typed(message)
            try:
                await carrier.send(message)
            except CarrierLost:
                raise _NodeGone from None

    async def _outwards(self, session: _Session, carrier: Carrier) -> Ended:
        line, passage = session.line, session.entry.passage
        recorded = session.entry.record.recorded
        while True:
            try:
                frame = bytes(await carrier.receive())
            except CarrierLost:
                passage.broken()
                raise _NodeGone from None
            await passage.shown(frame)
            if ends(frame) and recorded and _lost_its_recorder(passage):
                return Ended(
                    reason=EndReason.UNRECORDED,
                    words=f"recording impossible: the recorder on {session.entry.node} stood still",
                )
            if ends(frame) and passage.exit and passage.exit.cause is EndCause.JOB_ENDED:
                for message in await session.watch.farewell():
                    if isinstance(message, Ended):
                        return message
                    await line.send_word(write_word(message))
            await line.send(frame)

    async def _attend(self, session: _Session) -> Ended:
        while True:
            for message in await session.watch.check():
                if isinstance(message, Ended):
                    return message
                await session.line.send_word(write_word(message))
            await self._sleep(CHECK_EVERY_S)

    def _opened(self, session: _Session) -> Opened:
        return Opened(
            node=session.entry.node,
            replica=self._replica,
            job=session.job.id,
            user=session.job.user,
            ends=ends_at(session.job),
            recorded=session.entry.record.recorded,
            sequence=session.entry.record.sequence,
        )

    @staticmethod
    def _by_hand(session: _Session, error: LatticeError) -> LatticeError:
        if isinstance(error, PermissionRefused):
            return error
        if session.entry.record.recorded:
            # What Slurm opens would not be recorded.
            return Unavailable(error.message, hint=_RECORDED)
        command = by_hand(session.job, session.entry.node, session.start)
        return Unavailable(error.message, hint=f"On a login node this does the same: {command}")


def _lost_its_recorder(passage: SessionTap) -> bool:
    """True if the holder gave the terminal up although its client is there.

    For the holder the recorder is the client; it waits for the person.
    """
    exit_ = passage.exit
    return exit_ is not None and exit_.cause is EndCause.CLIENT_LOST and not passage.left


def _verdict(session: _Session, outcomes: list[Ended | BaseException]) -> _Verdict:
    for each in outcomes:
        if isinstance(each, Ended):
            # Another server's session now, so its record stays open.
            return _Verdict(each, reason=None if each.reason is EndReason.REPLACED else each.reason)
    shell = session.entry.passage.exit
    over = REASONS[shell.cause] if shell is not None else None
    closed = next((each for each in outcomes if isinstance(each, LineClosed)), None)
    if closed is not None:
        return _Verdict(reason=over or EndReason.CLOSED) if closed.orderly else _Verdict()
    if over is not None and any(isinstance(each, _NodeGone) for each in outcomes):
        return _Verdict(close=ORDERLY, reason=over)
    refused = next((each for each in outcomes if isinstance(each, LatticeError)), None)
    if refused is None or (session.start.resume and isinstance(refused, Unavailable)):
        return _Verdict(close=TRY_AGAIN)
    return _Verdict(_failure(refused), reason=EndReason.FAILED, error=refused)


def _failure(error: LatticeError) -> Failure:
    return Failure(code=error.code, message=error.message, hint=error.hint)


def _read(message: str, which: str) -> ClientWord:
    try:
        return read_client_word(message)
    except BadWord as fault:
        raise UsageError(f"{which} is not right: {fault}.") from None


async def _first_word(line: TerminalLine) -> Start:
    try:
        async with asyncio.timeout(START_S):
            message = await line.receive()
    except TimeoutError:
        raise UsageError("Nothing was asked for.", hint="The first message is `start`.") from None
    if not isinstance(message, str):
        raise UsageError("The first message is not `start`.")
    start = _read(message, "The first message")
    if not isinstance(start, Start) or not is_session(start.session):
        raise UsageError("The first message is `start`, with a session of 32 hex digits.")
    return start


async def _heed(message: str, watch: SessionWatch) -> None:
    word = _read(message, "A message")
    if isinstance(word, AttachToken):
        await watch.renew(word.token)
    elif isinstance(word, Start):
        raise UsageError("A session is started once on a connection.")


async def _replaced(entry: SessionEntry) -> Ended:
    await entry.slot.wait_gone()
    return Ended(reason=EndReason.REPLACED, words="the session goes on elsewhere")


async def _last(line: TerminalLine, word: ServerWord) -> None:
    """Send a last message if the client is still connected, and close."""
    with suppress(LineClosed, TimeoutError):
        async with asyncio.timeout(_LAST_WORD_S):
            await line.send_word(write_word(word))
            await line.close(ORDERLY, "")
