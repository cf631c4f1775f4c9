"""Holds a terminal while its connections come and go: one end of a pipe, and a program.

    client ── … ── agent ── packets ──▶ Holder ──▶ terminal or pipes ──▶ the program

The newest connection wins. Without a connection the program continues as far as the window lets it
write. After a minute it gets SIGHUP, and half a minute later SIGKILL. The holder's last message is
the program's exit; the holder waits a minute for a client to receive it.

One thread runs one `turn` after the other. Tests can call `turn` directly.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES, BadFrame, Pipe
from lattice.domain.terminal import (
    BadMessage,
    EndCause,
    Exit,
    Resize,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
    read_message,
    write_message,
)
from lattice.helper.journal import peer_of
from lattice.helper.shell import LoginShell, ShellSource

ADMITTED = b"admitted"
_LARGEST_FRAME = LARGEST_MESSAGE_BYTES + 64
_MOST_INPUT = 1024 * 1024
_MOST_OUTGOING = 256
_TURN_READS = 16
_FIRST_PACKET_S = 1.0
_LAST_WORD_S = 2.0
"""How long the program's children may still write after its end, and Slurm may clear the job."""
_RETRY_S = 0.02
"""A terminal that was full does not always report when it has room again."""
_IDLE_S = 5.0
_LEFT_S = 0.2
"""A program that closed its terminal may open it again, without an event."""
_GOODBYE_S = 5.0
"""For the client to send its last message after it has received ours."""
_BY_SIGNAL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTimes:
    silence_s: float = 15.0
    hang_up_s: float = 60.0
    """Without a connection."""
    kill_s: float = 30.0
    """After the hang-up."""
    linger_s: float = 60.0
    """After the program's end, for a client to receive its exit."""


class Holder:
    """One terminal, until its end."""

    def __init__(
        self,
        shell: LoginShell,
        connection: socket.socket,
        listener: socket.socket,
        *,
        belongs_to: Mapping[str, str],
        job_is_over: Callable[[], bool],
        clock: Clock,
        times: HolderTimes,
        end_others: Callable[[], object] = lambda: None,
    ) -> None:
        """A new client at `listener` must send exactly `belongs_to`.

        `end_others` is called once, when the program has ended.
        """
        self._end_others = end_others
        self._shell = shell
        self._listener = listener
        self._belongs_to = dict(belongs_to)
        self._job_is_over = job_is_over
        self._clock = clock
        self._times = times
        self._pipe = Pipe()
        self._outgoing: deque[bytes] = deque()
        self._input = bytearray()
        self._input_ends = False
        self._connection: socket.socket | None = None
        self._last_seen = self._lost = clock.monotonic()
        self._hung_up: float | None = None
        self._killed = False
        self._eof_sent = False
        self._sent: set[int] = set()
        """Signals that the client requested."""
        self._ended: float | None = None
        """When the program ended."""
        self._spoke = 0.0
        """When the program or a child of it last wrote after that."""
        self._finished: float | None = None
        """When all its output was in the pipe."""
        self._cause: EndCause | None = None
        self._connect(connection)

    @property
    def cause(self) -> EndCause | None:
        """Why the program ended; None while it runs."""
        return self._cause

    def begin(self, started: Started) -> None:
        self._pipe.write(write_message(started))

    def run(self) -> None:
        while not self.over:
            self.turn(self._wait_s())
        self._drop()

    @property
    def over(self) -> bool:
        """Whether all is delivered, or no client came for it in time."""
        if self._finished is None:
            return False
        if self._pipe.over and not self._outgoing:
            return True
        now = self._clock.monotonic()
        if self._connection is not None:
            return self._pipe.delivered and now - self._finished >= _GOODBYE_S
        late = now - max(self._finished, self._lost) >= self._times.linger_s
        return self._pipe.delivered or late

    def turn(self, wait_s: float) -> None:
        """Wait for one event and handle it."""
        ready = self._poll(wait_s)
        if self._listener.fileno() in ready:
            self._accept_client()
        if self._connection is not None and self._connection.fileno() in ready:
            self._hear(self._connection)
        self._take_messages()
        self._feed()
        for source in self._shell.streams.sources:
            if source.descriptor in ready or source.left:
                self._pump(source)
        if self._ended is not None or self._shell.pidfd in ready:
            self._watch_end()
        self._watch_time()
        self._flush()

    def _poll(self, wait_s: float) -> frozenset[int]:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._connection is not None:
            reads = select.POLLIN if len(self._outgoing) < _MOST_OUTGOING else 0
            writes = select.POLLOUT if self._outgoing else 0
            poll.register(self._connection, reads | writes)
        if self._ended is None:
            poll.register(self._shell.pidfd, select.POLLIN)
        streams = self._shell.streams
        wanted: dict[int, int] = {}
        if self._pipe.writable:
            wanted = {
                each.descriptor: select.POLLIN
                for each in streams.sources
                if each.descriptor >= 0 and not each.left
            }
        if self._input and streams.input >= 0:
            wanted[streams.input] = wanted.get(streams.input, 0) | select.POLLOUT
            wait_s = min(wait_s, _RETRY_S)
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        return frozenset(descriptor for descriptor, _ in poll.poll(wait_s * 1000))

    def _wait_s(self) -> float:
        if self._ended is not None and self._finished is None:
            return _RETRY_S
        now, times = self._clock.monotonic(), self._times
        due = [now + (_LEFT_S if self._left else _IDLE_S)]
        if self._connection is not None:
            due.append(self._last_seen + times.silence_s)
        elif self._hung_up is None:
            due.append(self._lost + times.hang_up_s)
        if self._hung_up is not None and not self._killed:
            due.append(self._hung_up + times.kill_s)
        return max(0.0, min(due) - now)

    @property
    def _left(self) -> bool:
        return any(each.left for each in self._shell.streams.sources)

    def _connect(self, connection: socket.socket) -> None:
        self._drop()
        connection.setblocking(False)
        self._connection = connection
        self._last_seen = self._clock.monotonic()
        self._pipe.connected()
        self._flush()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._lost = self._clock.monotonic()
        self._outgoing.clear()

    def _accept_client(self) -> None:
        """Accept a client with a new grant if it sends the same values as the first one."""
        try:
            visitor, _ = self._listener.accept()
        except OSError:
            return
        try:
            visitor.settimeout(_FIRST_PACKET_S)
            if (
                peer_of(visitor).uid == os.geteuid()
                and json.loads(visitor.recv(4096)) == self._belongs_to
            ):
                visitor.sendall(ADMITTED)
                self._connect(visitor)
                return
        except (OSError, ValueError, RecursionError):
            pass
        visitor.close()

    def _hear(self, connection: socket.socket) -> None:
        for _ in range(_TURN_READS):
            try:
                frame = connection.recv(_LARGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:
                frame = b""
            if not frame:
                self._drop()
                return
            self._last_seen = self._clock.monotonic()
            try:
                self._pipe.receive(frame)
            except BadFrame:
                self._drop()
                return

    def _flush(self) -> None:
        while self._connection is not None:
            if not self._outgoing:
                if not self._pipe.ready:
                    return
                self._outgoing.extend(self._pipe.frames())
                continue
            try:
                self._connection.send(self._outgoing[0])
            except BlockingIOError:
                return
            except OSError:
                self._drop()
                return
            self._outgoing.popleft()

    def _take_messages(self) -> None:
        while len(self._input) < _MOST_INPUT and (taken := self._pipe.take()) is not None:
            try:
                if taken.payload:
                    self._obey(read_message(taken.payload))
            except BadMessage:
                self._hang_up()
            if taken.last and self._ended is None:
                # The client ended before the program did: it will not come back.
                self._hang_up()

    def _obey(self, message: TerminalMessage) -> None:
        if isinstance(message, Stdin):
            if not self._input_ends:
                self._input += message.text
        elif isinstance(message, StdinEnd):
            self._input_ends = True
        elif isinstance(message, Resize):
            self._shell.streams.resize(message.rows, message.columns)
        elif isinstance(message, Signal):
            if message.name in (TerminalSignal.INT, TerminalSignal.QUIT):
                # As a terminal does: discard input that was typed before.
                self._input.clear()
            self._sent.add(self._shell.signal(message.name))
        else:
            raise BadMessage("a message that is not the client's to say")

    def _feed(self) -> None:
        streams = self._shell.streams
        try:
            while self._input and streams.input >= 0:
                written = streams.write(bytes(self._input[: 64 * 1024]))
                if written == 0:
                    return
                del self._input[:written]
        except BrokenPipeError:
            self._input.clear()
            self._input_ends = True
        if streams.input < 0 and not self._left:
            self._input.clear()
        if self._input_ends and not self._input and streams.input >= 0 and not self._eof_sent:
            self._eof_sent = True
            self._input += streams.end_input()

    def _pump(self, source: ShellSource) -> bool:
        if not self._pipe.writable:
            return False
        text = source.read()
        if text:
            self._pipe.write(write_message(source.kind(text)))
        return bool(text)

    def _watch_end(self) -> None:
        status = self._shell.status
        if status is None or self._finished is not None:
            return
        now = self._clock.monotonic()
        if self._ended is None:
            self._end_others()
            self._ended = self._spoke = now = self._clock.monotonic()
        if not self._pipe.writable:
            # Without a reader the rest can't be buffered; a later client gets the exit only.
            away = self._connection is None and now - max(self._ended, self._lost)
            if away is not False and away >= self._times.linger_s:
                self._finish(self._cause_of(status, late=True) or EndCause.EXITED, status)
            return
        moved = [self._pump(source) for source in self._shell.streams.sources]
        if any(moved):
            self._spoke = now
            return
        sources = self._shell.streams.sources
        closed = all(source.descriptor < 0 or source.left for source in sources)
        if closed or now - self._spoke >= _LAST_WORD_S:
            cause = self._cause_of(status, late=now - self._ended >= _LAST_WORD_S)
            if cause is not None:
                self._finish(cause, status)

    def _cause_of(self, status: int, *, late: bool) -> EndCause | None:
        """None while it can't be determined yet."""
        if self._hung_up is not None:
            return EndCause.CLIENT_LOST
        if status >= 0 or -status in self._sent:
            return EndCause.EXITED
        if -status not in (signal.SIGKILL, signal.SIGTERM):
            return EndCause.SIGNALLED
        # Slurm kills a job's processes before it removes the job, so this is checked again.
        if self._job_is_over():
            return EndCause.JOB_ENDED
        return EndCause.SIGNALLED if late else None

    def _finish(self, cause: EndCause, status: int) -> None:
        self._cause = cause
        self._finished = self._clock.monotonic()
        code = status if status >= 0 else _BY_SIGNAL - status
        self._pipe.write(write_message(Exit(cause=cause, code=code)), last=True)

    def _watch_time(self) -> None:
        now = self._clock.monotonic()
        if self._connection is not None and now - self._last_seen >= self._times.silence_s:
            self._drop()
        if self._ended is not None:
            return
        if self._connection is None and now - self._lost >= self._times.hang_up_s:
            self._hang_up()
        if self._hung_up is not None and now - self._hung_up >= self._times.kill_s:
            self._kill()

    def _hang_up(self) -> None:
        if self._hung_up is None and self._ended is None:
            self._hung_up = self._clock.monotonic()
            self._shell.hang_up()

    def _kill(self) -> None:
        if not self._killed:
            self._killed = True
            self._shell.kill()
