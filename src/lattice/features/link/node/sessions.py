"""Sessions on a node: each begins with a granted ticket and can outlive its connections.

A ticket needs a grant of a server for this node, this act and this very request; a grant works
once. A session continues over a new connection only for the same caller, with a new grant. Without
a connection it ends after 60 s.

For kinds with `PassOn` the node's end is another process. The agent then relays frames and keeps no
session: each ticket has its own relay, and that process decides whether a session continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from lattice.access.grants import GrantChecker
from lattice.base.errors import LatticeError, NotFound, PermissionRefused, Unavailable
from lattice.domain.grant import BadGrant, Grant, Untimely
from lattice.domain.pipe import BadFrame
from lattice.domain.stream import (
    Carrier,
    CarrierLost,
    PassOn,
    Serve,
    StreamKind,
    digest_of,
    is_session,
)
from lattice.features.link.node.dialler import Dialling
from lattice.wire.carriers import GrpcCarrier, relay
from lattice.wire.conduit import Conduit, ConduitClosed, patient_conduit
from lattice.wire.lane import TlsLane
from lattice.wire.v1 import link_pb2 as pb

_log = logging.getLogger(__name__)

WAIT_S = 60.0
MOST_SESSIONS = 1000
KEY_POLLS = 60
_KEY_POLL_S = 0.1
"""A first renewal comes within about 5 s of the start."""
_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0)
"""Between dials with one ticket; the replica waits about as long."""


@dataclass(eq=False, slots=True)
class _Session:
    name: str
    kind: StreamKind
    subject: str
    conduit: Conduit
    serving: asyncio.Task[None]
    ticket: str = ""
    """The newest ticket: an older one must not take the stream over."""
    carrying: asyncio.Task[None] | None = None
    giving_up: asyncio.TimerHandle | None = None


class NodeSessions:
    """Serves tickets. `serve` and `pass_on` have the kinds that this node supports."""

    def __init__(
        self,
        dialling: Dialling,
        checker: GrantChecker,
        serve: Mapping[StreamKind, Serve],
        pass_on: Mapping[StreamKind, PassOn] | None = None,
        *,
        wait_s: float = WAIT_S,
        key_polls: int = KEY_POLLS,
    ) -> None:
        self._dialling = dialling
        self._checker = checker
        self._serve = serve
        self._pass_on = pass_on or {}
        self._relays: dict[str, asyncio.Task[None]] = {}
        self._wait_s = wait_s
        self._key_polls = key_polls
        self._sessions: dict[str, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: set[str] = set()
        """The tickets that are being served."""

    @property
    def open(self) -> int:
        """The number of open sessions and relays."""
        return len(self._sessions) + len(self._relays)

    def take(self, ticket: pb.Ticket) -> None:
        """Serve a ticket in the background; a refusal goes to the replica that sent it."""
        if ticket.id in self._answering:
            # The replica sends it again if it does not know whether it arrived.
            return
        self._answering.add(ticket.id)
        task = asyncio.create_task(self._answer(ticket), name=f"ticket {ticket.kind[:20]}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._forget_ticket(task, ticket.id))

    def _forget_ticket(self, task: asyncio.Task[None], ticket_id: str) -> None:
        self._tasks.discard(task)
        self._answering.discard(ticket_id)

    async def _answer(self, ticket: pb.Ticket) -> None:
        try:
            await self._wait_for_keys()
            kind, grant = self._granted(ticket)
            if kind in self._pass_on:
                await self._relay(ticket, self._pass_on[kind])
                return
            session = self._session(ticket, kind, grant)
        except LatticeError as error:
            _log.warning("ticket refused: %s", error.message)
            with suppress(CarrierLost):
                async with self._dialling.carrier(ticket) as carrier:
                    await _refuse(carrier, ticket, error)
            return
        session.ticket = ticket.id
        for pause_s in _PAUSES_S:
            with suppress(CarrierLost, ConduitClosed):
                async with self._dialling.carrier(ticket) as carrier:
                    await carrier.open_with(pb.StreamOpening(ticket=ticket.id))
                    if session.ticket != ticket.id or await self._carry(session, carrier):
                        return
            await asyncio.sleep(pause_s)
            if session.ticket != ticket.id:
                return

    async def _wait_for_keys(self) -> None:
        """Wait for the keys: without an enrolment an agent gets them by its first renewal."""
        for _ in range(self._key_polls):
            if self._checker.key_names:
                return
            await asyncio.sleep(_KEY_POLL_S)
        raise Unavailable(
            "the agent there has just begun and does not know the servers' keys yet. "
            "Try again in some seconds."
        )

    async def _relay(self, ticket: pb.Ticket, pass_on: PassOn) -> None:
        """Relay until either side is gone, or a newer ticket for the session takes over."""
        if ticket.session not in self._relays and self.open >= MOST_SESSIONS:
            raise _too_many()
        mine = asyncio.current_task()
        assert mine is not None
        older = self._relays.pop(ticket.session, None)
        self._relays[ticket.session] = mine
        try:
            if older is not None:
                # The ends send again what the older relay read and did not pass on.
                older.cancel()
                await asyncio.gather(older, return_exceptions=True)
            async with pass_on(ticket.session, ticket.opening, resume=ticket.resume) as far:
                await self._dialled(ticket, far)
        finally:
            if self._relays.get(ticket.session) is mine:
                del self._relays[ticket.session]

    async def _dialled(self, ticket: pb.Ticket, far: Carrier) -> None:
        for pause_s in _PAUSES_S:
            with suppress(CarrierLost):
                async with self._dialling.carrier(ticket) as near:
                    await near.open_with(pb.StreamOpening(ticket=ticket.id))
                    # Only a first frame shows that the replica accepted the ticket; the other end
                    # sends first.
                    first = await near.receive()
                    with suppress(CarrierLost):
                        await far.send(bytes(first))
                        await relay(near, far)
                    return
            await asyncio.sleep(pause_s)

    def _session(self, ticket: pb.Ticket, kind: StreamKind, grant: Grant) -> _Session:
        known = self._sessions.get(ticket.session)
        if known is not None and known.kind is kind and known.subject == grant.subject:
            # Also for a new session: the answer to the first try may have been lost.
            return known
        if ticket.resume or known is not None:
            raise NotFound("This session is over.", hint="Begin a new one.")
        if self.open >= MOST_SESSIONS:
            raise _too_many()
        return self._begin(ticket, kind, grant)

    def _granted(self, ticket: pb.Ticket) -> tuple[StreamKind, Grant]:
        try:
            kind = StreamKind(ticket.kind)
        except ValueError:
            raise _unknown_kind() from None
        if kind not in self._serve and kind not in self._pass_on:
            raise _unknown_kind()
        if not is_session(ticket.session):
            raise PermissionRefused("The session is not named well.")
        try:
            digest = digest_of(ticket.session, kind, ticket.opening)
            return kind, self._checker.check(ticket.grant, kind.act, digest=digest)
        except Untimely as fault:
            _log.warning("grant refused: %s", fault)
            raise Unavailable(
                f"the grant is not valid at {self._checker.now():%H:%M:%S} UTC, by which the agent "
                "goes there. An administrator compares the clocks."
            ) from None
        except BadGrant as fault:
            # The node's log has the exact fault; a forger must not learn it.
            _log.warning("grant refused: %s", fault)
            raise PermissionRefused("The grant does not hold.") from None

    def _begin(self, ticket: pb.Ticket, kind: StreamKind, grant: Grant) -> _Session:
        conduit = patient_conduit() if kind is StreamKind.METRICS else Conduit()
        serving = asyncio.create_task(
            self._run(ticket.session, kind, conduit, ticket.opening), name=f"session {kind.value}"
        )
        session = _Session(ticket.session, kind, grant.subject, conduit, serving)
        self._sessions[ticket.session] = session
        self._wait(session)
        return session

    def _wait(self, session: _Session) -> None:
        """Give the session up after `wait_s` without a connection."""
        loop = asyncio.get_running_loop()
        session.giving_up = loop.call_later(self._wait_s, self._give_up, session)

    async def _run(self, name: str, kind: StreamKind, conduit: Conduit, opening: bytes) -> None:
        try:
            await self._serve[kind](conduit, opening)
        except ConduitClosed:
            pass
        except Exception:  # noqa: BLE001 - one session's defect is not the agent's end
            _log.exception("session %s: not foreseen", kind.value)
            conduit.close()
            self._forget(name)

    async def _carry(self, session: _Session, carrier: GrpcCarrier | TlsLane) -> bool:
        """Carry until the connection is lost; True if the other end ever sent on it."""
        if session.carrying is not None:
            # The caller came back before the agent noticed that the old connection was dead.
            session.carrying.cancel()
            await asyncio.gather(session.carrying, return_exceptions=True)
        if session.giving_up is not None:
            session.giving_up.cancel()
            session.giving_up = None
        mine = asyncio.create_task(session.conduit.carry(carrier), name="carry")
        session.carrying = mine
        await asyncio.wait((mine,))
        if not mine.cancelled() and isinstance(mine.exception(), BadFrame):
            _log.warning("session %s: %s", session.kind.value, mine.exception())
        if session.carrying is mine:
            session.carrying = None
            # A finished session stays for a while too: the other end may not know of its end.
            self._wait(session)
        return mine.cancelled() or session.conduit.met

    def _give_up(self, session: _Session) -> None:
        session.conduit.close()
        self._forget(session.name)

    def _forget(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None and session.giving_up is not None:
            session.giving_up.cancel()

    async def aclose(self) -> None:
        for session in list(self._sessions.values()):
            self._give_up(session)
            session.serving.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _unknown_kind() -> NotFound:
    return NotFound("This node serves no streams of that kind.")


def _too_many() -> Unavailable:
    return Unavailable("The node serves too many sessions.", hint="Try again later.")


async def _refuse(carrier: GrpcCarrier | TlsLane, ticket: pb.Ticket, error: LatticeError) -> None:
    await carrier.open_with(
        pb.StreamOpening(ticket=ticket.id, refused_code=error.code, refused_message=error.message)
    )
    with suppress(CarrierLost):
        await carrier.receive()
