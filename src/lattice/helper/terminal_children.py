"""The children that answer `enter`. One is forked ahead, because a fork of the helper takes time.

    helper ─ fork ─► waits ─ a request ─► answers ─► holds the terminal

A waiting child has the helper's own rights and nothing of a user: no grant, no descriptor of a
request, no group of a job. Its one socket leads to the helper, and it ends when the helper does.

The first request forks its own child, so a node without terminals has none that waits. The next one
is forked half a second after a request: it must not delay the terminal that just opens. A child
has a copy of the helper's state, so it is replaced when the helper's clock is set.

The kernel copies a page of a fork at the first write to it. So a child that waits first rehearses a
request, and these copies are made before one comes.

While it answers, a child takes one of the helper's slots. A holder takes none (`sessions` limits
those).
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from lattice.base import packet
from lattice.domain.privileged import Outcome
from lattice.helper.journal import HelperJournal, peer_of
from lattice.helper.judge import read_unchecked
from lattice.helper.responder import Responder
from lattice.helper.terminal_process import close_others, forget_handlers

AHEAD_S = 0.5
_AFTER_FAULT_S = 5.0
"""Until the next try, after one died while it waited or could not be forked."""
_MOST_DESCRIPTORS = packet.MOST_DESCRIPTORS + 1
"""Those of the request, and its connection."""


@dataclass(frozen=True, slots=True)
class _WaitingChild:
    pid: int
    control: socket.socket


class TerminalOpener(Protocol):
    """What a child does around its answer."""

    def rehearse(self) -> None:
        """Use the memory that a request will use. Changes nothing and asks no other process."""

    def hold(self) -> None:
        """Hold the terminal that was opened, until its end."""


class TerminalChildren:
    """Forks and reaps them. The helper's main process has one."""

    def __init__(
        self,
        responder: Responder,
        opener: TerminalOpener | None,
        journal: HelperJournal,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A child ends after its answer, or with an `opener` when that holds nothing any more."""
        self._responder = responder
        self._opener = opener
        self._journal = journal
        self._monotonic = monotonic
        self._waiting: _WaitingChild | None = None
        self._answering: dict[int, socket.socket] = {}
        """The helper's end of the sockets, by pid. A child that becomes a holder closes its end."""
        self._holding: set[int] = set()
        self._due: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether a child will be forked soon."""
        return self._due is not None

    def start(self, body: bytes, connection: socket.socket, descriptors: Sequence[int]) -> int:
        """Pass a judged request to a child; returns its pid. Raises `OSError`."""
        waiting, self._waiting = self._waiting, None
        self._due = self._monotonic() + AHEAD_S
        if waiting is not None:
            with suppress(OSError):  # it has died
                return self._pass(waiting, body, connection, descriptors)
        return self._pass(self._forked(ahead=False), body, connection, descriptors)

    def has_answered(self, pid: int) -> bool:
        """Whether this child now holds a terminal; True once."""
        control = self._answering.get(pid)
        if control is None or not _is_closed(control):
            return False
        self._answering.pop(pid).close()
        self._holding.add(pid)
        return True

    def ended(self, pid: int) -> None:
        """A child was reaped before it held a terminal."""
        control = self._answering.pop(pid, None)
        if control is not None:
            control.close()

    def tend(self, *, idle: bool) -> None:
        """Reap children that ended, and fork the next one if it is due and the helper is idle."""
        for pid in list(self._holding):
            if self._has_ended(pid):
                self._holding.discard(pid)
        now = self._monotonic()
        if self._waiting is not None and self._has_ended(self._waiting.pid):
            self._waiting.control.close()
            self._waiting, self._due = None, now + _AFTER_FAULT_S
        if self._due is None or self._due > now or not idle:
            return
        self._due = None
        if self._waiting is None:
            try:
                self._waiting = self._forked(ahead=True)
            except OSError:
                self._due = now + _AFTER_FAULT_S

    def renew(self) -> None:
        """Replace the waiting child: what it copied from the helper has changed."""
        if self._waiting is not None:
            self.close()
            self._due = self._monotonic() + AHEAD_S

    def close(self) -> None:
        """End the waiting child. The others go on."""
        if self._waiting is not None:
            self._waiting.control.close()
            self._holding.add(self._waiting.pid)
            self._waiting = None

    def close_copies(self) -> None:
        """For other children of the helper: close what they inherited of these."""
        self.close()
        for control in self._answering.values():
            control.close()

    def _pass(
        self,
        child: _WaitingChild,
        body: bytes,
        connection: socket.socket,
        descriptors: Sequence[int],
    ) -> int:
        passed = [connection.fileno(), *descriptors]
        try:
            packet.send(child.control, body, passed, most_descriptors=_MOST_DESCRIPTORS)
        except OSError:
            child.control.close()
            self._holding.add(child.pid)
            raise
        self._answering[child.pid] = child.control
        return child.pid

    def _forked(self, *, ahead: bool) -> _WaitingChild:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            self._serve(theirs, ahead=ahead)
        theirs.close()
        ours.setblocking(False)
        return _WaitingChild(pid, ours)

    def _has_ended(self, pid: int) -> bool:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and os.WIFSIGNALED(status):
            self._journal.note("ended", verb="enter", reason=f"signal {os.WTERMSIG(status)}")
        return bool(ended)

    def _serve(self, control: socket.socket, *, ahead: bool) -> NoReturn:
        """Runs in the child and ends it. Nothing may unwind into the helper's code."""
        try:
            os.setsid()
            forget_handlers()
            close_others({control.fileno(), self._journal.descriptor})
            gc.freeze()
            if ahead and self._opener is not None:
                self._opener.rehearse()
            body, descriptors = packet.receive(control, most_descriptors=_MOST_DESCRIPTORS)
            if body:  # otherwise the helper has ended
                self._answer(body, descriptors)
        except BaseException as error:  # noqa: BLE001 - see above
            self._journal.note("defect", verb="enter", reason=type(error).__name__)
        finally:
            os._exit(0)

    def _answer(self, body: bytes, descriptors: Sequence[int]) -> None:
        connection = socket.socket(fileno=descriptors[0])
        peer, asked = peer_of(connection), read_unchecked(body)
        outcome = self._responder.respond(connection, peer, asked, descriptors[1:])
        if outcome is Outcome.DONE and self._opener is not None:
            self._opener.hold()


def _is_closed(control: socket.socket) -> bool:
    try:
        return not control.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
