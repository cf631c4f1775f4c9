"""The socket and the children: one request a connection, one child a request, all limited.

The main process only receives, checks and forks; it starts no thread. It closes connections that
are silent for 5 s. While all slots are taken, a request waits in a queue, and after 5 s gets the
answer "busy". No grant is used up before it has a slot. A child that stays connected
(`Verb.lasting`) takes one of a few separate slots. If none is free, the oldest conversation is
ended for the new one. A child that opened a terminal goes on as its holder, without a slot
(`terminal_children`).

Verbs with a share have their own slots, with a limit for each user. A request that waits for one of
those does not delay requests with a free slot. A user may have 8 requests waiting for a verb.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from lattice.base import packet
from lattice.domain.privileged import Answer, Enter, Outcome, SetClock, write_answer
from lattice.helper.child_slots import Child, ChildSlots, SlotShare
from lattice.helper.journal import HelperJournal, Peer, peer_of
from lattice.helper.judge import AskedGrant, GrantClaim, GrantJudge, Refusal, claim_of
from lattice.helper.responder import Act, Responder
from lattice.helper.terminal_children import TerminalChildren, TerminalOpener

_SILENCE_S = 5.0
_MOST_WAITING = 64
_MOST_WAITING_A_USER = 8
_TICK_S = 0.25
_TURN_S = 0.01
"""While a request waits for a slot: the end of a child causes no event."""
_REST_S = 1.0
"""While no request is being answered except conversations; their end may be noticed late."""

_TOO_MANY = Refusal(Outcome.BUSY, "too many questions at once", "busy")

_TOO_MANY_YOURS = Refusal(
    Outcome.BUSY, "earlier questions for this user are still under way", "busy for this user"
)

_MOST_LASTING = 2
_TOO_MANY_LASTING = Refusal(Outcome.BUSY, "too many conversations at once", "busy")

Stay = Callable[[AskedGrant, socket.socket], None]
"""Continues a lasting verb after its answer; the child ends when this returns."""


class SocketRefused(Exception):
    """The socket can't be created at this path; the text gives the reason."""


def bind(path: Path, gid: int) -> socket.socket:
    """A socket that only root and one group can reach, in a folder that only root can change."""
    folder = path.parent.stat()
    if folder.st_uid != 0 or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SocketRefused(f"{path.parent} must belong to root and be writable by root alone")
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketRefused(f"{path} exists and is no socket")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    os.chown(path, 0, gid)
    path.chmod(0o660)
    listener.listen(_MOST_WAITING)
    listener.setblocking(False)
    return listener


def adopt(listener: socket.socket) -> socket.socket:
    """A socket that systemd opened, if only root and a group can reach it."""
    path = Path(listener.getsockname())
    facts = path.stat()
    if facts.st_uid != 0 or facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SocketRefused(f"{path} must belong to root and be closed to others")
    listener.setblocking(False)
    return listener


@dataclass(frozen=True, slots=True)
class _Visitor:
    connection: socket.socket
    peer: Peer
    until: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that was read and has no slot yet."""

    visitor: _Visitor
    body: bytes
    descriptors: Sequence[int]
    until: float
    claim: GrantClaim

    def close(self) -> None:
        packet.close_all(self.descriptors)
        self.visitor.connection.close()


class HelperListener:
    """Accepts connections, checks requests, forks and reaps children."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        listener: socket.socket,
        judge: GrantJudge,
        act: Act,
        journal: HelperJournal,
        *,
        most_at_once: int,
        longest_s: float,
        stay: Stay | None = None,
        longest_stay_s: float = 0.0,
        opener: TerminalOpener | None = None,
        shares: Mapping[str, SlotShare] | None = None,
        slow_s: float | None = None,
    ) -> None:
        """`opener` holds the terminal that an `enter` opened, in its child.

        `shares`, by the name of a verb: these verbs have their own slots.

        `slow_s`: after how long a child takes no normal slot; None: when it is killed.
        """
        self._listener = listener
        self._judge = judge
        self._journal = journal
        self._responder = Responder(act, journal)
        self._terminals = TerminalChildren(self._responder, opener, journal)
        self._longest_s = longest_s
        self._visitors: dict[int, _Visitor] = {}
        self._queue: deque[_Waiting] = deque()
        self._stay = stay
        self._longest_stay_s = longest_stay_s
        self._slots = ChildSlots(most_at_once, slow_s=slow_s)
        self._shares = {
            verb: ChildSlots(share.most_at_once, share.most_a_user)
            for verb, share in (shares or {}).items()
        }
        self._lasting = ChildSlots(_MOST_LASTING)
        self._selector = selectors.DefaultSelector()
        self._stopping = False

    def run(self, alive: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT; requests under way are finished.

        `alive` is called at each turn, at least once a second or so.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._stopping:
            for key, _ in self._selector.select(self._patience_s):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(self._visitors[key.fd])
            self._show_out()
            self._reap()
            self._serve()
            self._terminals.tend(idle=not self._visitors and not self._queue)
            alive()
        self._terminals.close()
        self._selector.unregister(self._listener)
        self._listener.close()
        until = time.monotonic() + self._longest_s + _TICK_S
        # Children that hang end by themselves, or never.
        slots = (self._slots, *self._shares.values())
        while any(each.answering for each in slots) and time.monotonic() < until:
            self._reap()
            time.sleep(0.05)

    @property
    def _patience_s(self) -> float:
        if self._queue:
            return _TURN_S
        awaits = self._visitors or self._running or self._terminals.is_due
        return _TICK_S if awaits else _REST_S

    @property
    def _running(self) -> int:
        """Requests that are being answered, without conversations."""
        return sum(map(len, (self._slots, *self._shares.values())))

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        peer = peer_of(connection)
        if len(self._visitors) >= _MOST_WAITING:
            connection.close()
            return
        visitor = _Visitor(connection, peer, time.monotonic() + _SILENCE_S)
        self._visitors[connection.fileno()] = visitor
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        try:
            body, descriptors = packet.receive(visitor.connection)
        except packet.BadPacket as error:
            self._refuse(visitor, Refusal(Outcome.BAD_QUESTION, str(error), str(error)))
            return
        except OSError as error:
            self._journal.note("lost", visitor.peer, reason=str(error))
            visitor.connection.close()
            return
        claim = claim_of(body) if self._shares else GrantClaim()
        waiting = _Waiting(visitor, body, descriptors, time.monotonic() + _SILENCE_S, claim)
        try:
            self._judge.admit(visitor.peer)
            if len(self._queue) >= _MOST_WAITING:
                raise _TOO_MANY
            if self._waiting_for(claim) >= _MOST_WAITING_A_USER:
                raise _TOO_MANY_YOURS
        except Refusal as refusal:
            self._refuse(visitor, refusal)
            waiting.close()
            return
        if body:
            self._queue.append(waiting)
            self._serve()
        else:
            waiting.close()

    def _serve(self) -> None:
        """Start waiting requests in order, as far as slots are free."""
        for waiting in tuple(self._queue):
            if not self._slots_of(waiting.claim).has_room_for(waiting.claim.user):
                continue
            self._queue.remove(waiting)
            try:
                self._put(waiting)
            except Refusal as refusal:
                self._refuse(waiting.visitor, refusal)
            except OSError as error:
                self._journal.note("lost", waiting.visitor.peer, reason=str(error))
            finally:
                waiting.close()
        now = time.monotonic()
        while self._queue and self._queue[0].until < now:
            waiting = self._queue.popleft()
            used_up = self._slots_of(waiting.claim).are_used_up_by(waiting.claim.user)
            self._refuse(waiting.visitor, _TOO_MANY_YOURS if used_up else _TOO_MANY)
            waiting.close()

    def _slots_of(self, claim: GrantClaim) -> ChildSlots:
        return self._shares.get(claim.verb, self._slots)

    def _waiting_for(self, claim: GrantClaim) -> int:
        """How many requests of the same user wait for the same verb; 0 if no verb has a share."""
        return sum(each.claim == claim for each in self._queue) if claim.verb else 0

    def _put(self, waiting: _Waiting) -> None:
        visitor = waiting.visitor
        asked = self._judge.judge(waiting.body)
        answer = self._judge.answered(asked)
        slots, longest_s = self._find_room_for(asked)
        if answer is not None:
            self._responder.record(visitor.peer, asked, replace(answer, output=""), 0.0)
            if isinstance(asked.question, SetClock):
                self._terminals.renew()
            with suppress(OSError):
                packet.send(visitor.connection, write_answer(answer))
            return
        if isinstance(asked.question, Enter):
            pid = self._terminals.start(waiting.body, visitor.connection, waiting.descriptors)
        else:
            pid = os.fork()
            if pid == 0:
                self._answer(visitor, asked, waiting.descriptors)
        now = time.monotonic()
        slots.take(pid, Child(asked, visitor.peer, now + longest_s), now)

    def _find_room_for(self, asked: AskedGrant) -> tuple[ChildSlots, float]:
        if asked.verb.lasting:
            if self._lasting.full:
                self._end_oldest_conversation()
            if self._lasting.full:
                raise _TOO_MANY_LASTING
            return self._lasting, self._longest_stay_s
        slots = self._shares.get(asked.verb.name, self._slots)
        if slots.hangs_for(asked.user, asked.job_id):
            message = "earlier questions for this user or job still hang"
            raise Refusal(Outcome.BUSY, message, message, asked.verb.name)
        return slots, self._longest_s

    def _end_oldest_conversation(self) -> None:
        """It may hang in the kernel, so it is killed and its end is not awaited."""
        pid = self._lasting.oldest()
        if pid is None:
            return
        self._lasting.put_aside(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _answer(self, visitor: _Visitor, asked: AskedGrant, descriptors: Sequence[int]) -> NoReturn:
        """Runs in the child and ends it."""
        try:
            os.setpgid(0, 0)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._listener.close()
            self._selector.close()
            for other in self._visitors.values():
                other.connection.close()
            for waiting in self._queue:
                waiting.close()
            self._terminals.close_copies()
            outcome = self._responder.respond(visitor.connection, visitor.peer, asked, descriptors)
            if asked.verb.lasting and self._stay is not None and outcome is Outcome.DONE:
                self._stay(asked, visitor.connection)
        except Exception as error:  # noqa: BLE001 - a defect must not leak out of the child
            self._responder.report_defect(visitor.connection, visitor.peer, asked.verb.name, error)
        finally:
            os._exit(0)

    def _refuse(self, visitor: _Visitor, refusal: Refusal) -> None:
        self._journal.note(
            "refused",
            visitor.peer,
            verb=refusal.verb,
            outcome=refusal.outcome.value,
            reason=refusal.reason,
        )
        answer = Answer(outcome=refusal.outcome, message=refusal.message)
        with suppress(OSError):
            packet.send(visitor.connection, write_answer(answer))
        visitor.connection.close()

    def _forget(self, visitor: _Visitor) -> None:
        self._selector.unregister(visitor.connection)
        del self._visitors[visitor.connection.fileno()]

    def _show_out(self) -> None:
        now = time.monotonic()
        for visitor in [each for each in self._visitors.values() if each.until < now]:
            self._forget(visitor)
            visitor.connection.close()

    def _reap(self) -> None:
        for slots in (self._slots, *self._shares.values(), self._lasting):
            self._reap_from(slots)

    def _reap_from(self, slots: ChildSlots) -> None:
        for pid in slots.pids():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                child = slots.leave(pid)
                self._terminals.ended(pid)
                if os.WIFSIGNALED(status):
                    reason = f"signal {os.WTERMSIG(status)}"
                    self._journal.note(
                        "ended", child.peer, verb=child.asked.verb.name, reason=reason
                    )
            elif self._terminals.has_answered(pid):
                slots.leave(pid)
        for pid, child in slots.overdue(time.monotonic()):
            # A child ends its own program in time; this is for one that can't.
            self._journal.note("killed", child.peer, verb=child.asked.verb.name)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
