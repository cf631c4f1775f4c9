"""A terminal in a job over as many connections as it takes: the client's end of its pipe.

It never blocks: a loop around `select` asks it what to wait for and calls `turn`
(`lattice.cli.attached`, `lattice.client.attached`). A lost connection is made again at another
server, in a thread, while input, leaving and resizing continue. Input and output themselves are not
its concern.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from lattice.base.call import TerminalCall
from lattice.base.clock import Clock
from lattice.base.errors import (
    BY_CODE,
    InternalError,
    LatticeError,
    LoginRequired,
    PermissionRefused,
    RateLimited,
    Unavailable,
)
from lattice.base.fast_start.connector import reason
from lattice.base.fast_start.websocket import BadSocket, Opcode
from lattice.client.background import BackgroundCalls
from lattice.client.dialler import Dialler, new_session
from lattice.client.wire import Wire
from lattice.domain.pipe import BadFrame, Pipe
from lattice.domain.terminal import (
    DEFAULT_COLUMNS,
    DEFAULT_ROWS,
    BadMessage,
    Exit,
    Resize,
    StdinEnd,
    TerminalMessage,
    read_message,
    write_message,
)
from lattice.features.attach.model import (
    PING_EVERY_S,
    RESUME_S,
    SILENCE_S,
    AttachToken,
    BadWord,
    Ended,
    Failure,
    Keepalive,
    Notice,
    NoticeKind,
    Opened,
    read_server_word,
    write_word,
)
from lattice.features.attach.terminal_call import start_text

_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 3.0)
_STEADY_S = 5.0
"""After so long a connection counts as good, and the next failure begins a new series."""
_FIRST_PATIENCE_S = 15.0
"""For a session that was never opened: nothing is lost if it ends."""
_TOKEN_EVERY_S = 15.0
_ODD_VERSION = "Client and server may be of different versions; compare `lattice --version`."


class HasDescriptor(Protocol):
    """What `select` takes."""

    def fileno(self) -> int: ...


class ConnectionLost(NamedTuple):
    """The connection is lost and is being made again."""

    why: str


class Back(NamedTuple):
    """It is connected again; no input or output is missing."""

    away_s: float


LinkEvent: TypeAlias = Opened | Notice | ConnectionLost | Back


class TerminalLink:
    """`open` it, then call `turn`; `take` what came and `write` while it is `writable`.

    It is over when `end` is set and nothing is left to take, or when `exit` was taken.
    """

    def __init__(
        self,
        call: TerminalCall,
        dialler: Dialler,
        clock: Clock,
        *,
        terminal: str = "",
        size: tuple[int, int] = (DEFAULT_ROWS, DEFAULT_COLUMNS),
        session: str = "",
    ) -> None:
        self._call = call
        self._dialler = dialler
        self._clock = clock
        self._terminal = terminal
        self._size = size
        self._session = session or new_session()
        self._pipe = Pipe()
        self._wire: Wire | None = None
        self._errands = BackgroundCalls()
        self._busy = False
        self._node = call.node
        self._opened = self._was_opened = self._received = False
        self._opened_at = self._ping_at = self._retry_at = self._token_at = 0.0
        self._tries = 0
        self._lost_at: float | None = None
        self.events: deque[LinkEvent] = deque()
        self.exit: Exit | None = None
        """How the shell ended, once that was taken."""
        self.end: Ended | LatticeError | None = None
        """Why the server, or the connection to it, ended the session."""

    # For its owner.

    def open(self) -> None:
        """Make the first connection. Blocks, and raises if that fails."""
        self._begin(self._dialler.dial_first())

    def adopt(self, wire: Wire) -> None:
        """Use a first connection that is open already and on which `start` was sent."""
        self._begin(wire, started=True)

    @property
    def writable(self) -> bool:
        """True while more may be written; otherwise read no more input."""
        return self._pipe.writable and self.end is None and self.exit is None

    def write(self, message: TerminalMessage) -> None:
        """Send a message to the other end, at once if possible."""
        self._pipe.write(write_message(message))
        self._speak()

    def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        if (rows, columns) != self._size:
            self._size = (rows, columns)
            if self.writable:
                self.write(Resize(rows, columns))

    def take(self) -> TerminalMessage | None:
        """The next message of the other end, or None."""
        message = self._pipe.take()
        if message is None:
            return None
        if self._pipe.ready:
            self._speak()
        try:
            found = read_message(message.payload)
        except BadMessage as error:
            self._refuse(error)
            return None
        if isinstance(found, Exit):
            self.exit = found
            self._pipe.write(write_message(StdinEnd()), last=True)
            self._speak()
        return found

    @property
    def away_s(self) -> float | None:
        """How long there has been no connection; None while there is one."""
        return None if self._lost_at is None else self._clock.monotonic() - self._lost_at

    @property
    def delivered(self) -> bool:
        """True when the other end has confirmed all that was written."""
        return self._pipe.delivered

    def close(self) -> None:
        """Hang up. What was not confirmed may be lost."""
        self._finish(Unavailable("The session was left."))
        self._errands.finish()
        self._errands.close()

    # For the loop around it.

    @property
    def reading(self) -> list[HasDescriptor]:
        """Call `turn` when one of these can be read."""
        return [self._errands] if self._wire is None else [self._wire, self._errands]

    @property
    def writing(self) -> list[HasDescriptor]:
        """Call `turn` when one of these can be written."""
        return [self._wire] if self._wire is not None and self._wire.wants_write else []

    @property
    def wait_s(self) -> float:
        """Call `turn` after so long in any case."""
        if self._wire is None:
            # A running errand wakes the loop itself.
            until = self._retry_at if not self._busy else self._clock.monotonic() + 1.0
        elif self._wire.unread:
            return 0.0
        else:
            until = min(self._ping_at, self._wire.last_received_at + SILENCE_S)
        return max(0.0, until - self._clock.monotonic())

    def turn(self) -> None:
        """Read, write and do what is due; never blocks."""
        if self.end is not None:
            return
        self._errands.finish()
        wire = self._wire
        if wire is None:
            self._redial()
            return
        try:
            for kind, payload in wire.receive():
                self._hear(kind, payload)
                if self._wire is not wire:
                    return
            wire.flush()
            self._keep_up(wire)
        except OSError as error:
            self._lose(reason(error))
        self._speak()

    # Internal.

    def _begin(self, wire: Wire, *, started: bool = False) -> None:
        now = self._clock.monotonic()
        self._wire = wire
        self._opened = False
        self._pipe.connected()
        self._ping_at = now + PING_EVERY_S
        self._token_at = now + _TOKEN_EVERY_S
        if not started:
            start = start_text(
                self._call,
                self._session,
                resume=self._received,
                node=self._node,
                terminal=self._terminal,
                size=self._size,
            )
            try:
                wire.send_text(start)
            except OSError as error:
                self._lose(reason(error))
        # The greeting is sent along; it waits wherever the route is not complete yet.
        self._speak()

    def _speak(self) -> None:
        if self._wire is None or not self._pipe.ready:
            return
        try:
            self._wire.send_frames(self._pipe.frames())
        except OSError as error:
            self._lose(reason(error))

    def _hear(self, kind: Opcode, payload: bytes) -> None:
        try:
            if kind is Opcode.BINARY:
                self._pipe.receive(payload)
                self._received = True
            else:
                word = read_server_word(payload.decode())
                if word is not None:
                    self._obey(word)
        except (BadFrame, BadWord) as error:
            self._refuse(error)

    def _obey(self, word: Opened | Notice | Failure | Ended) -> None:
        if isinstance(word, Opened):
            self._open_up(word)
        elif isinstance(word, Notice):
            if word.kind is NoticeKind.TOKEN_EXPIRING and not self._busy:
                self._renew(lambda: self.events.append(word), refused=True)
            else:
                self.events.append(word)
        elif isinstance(word, Failure):
            self._fail(_error(word))
        else:
            self._finish(word)

    def _open_up(self, word: Opened) -> None:
        now = self._clock.monotonic()
        self._node = word.node
        self._opened, self._opened_at = True, now
        if self._lost_at is not None:
            away_s, self._lost_at = now - self._lost_at, None
            if self._was_opened:
                self.events.append(Back(away_s))
        if not self._was_opened:
            self._was_opened = True
            self.events.append(word)
        self._speak()

    def _fail(self, error: LatticeError) -> None:
        passing = isinstance(error, Unavailable | RateLimited)
        if passing and self._was_opened and not self._opened:
            # The reply to a reconnect: a server that does not have the node yet.
            self._lose(error.message)
        elif isinstance(error, LoginRequired) and self._was_opened:
            self._finish(PermissionRefused(error.message, hint=error.hint))
        else:
            self._finish(error)

    def _refuse(self, error: Exception) -> None:
        self._finish(
            InternalError(
                f"The other end of the terminal can't be understood: {error}", hint=_ODD_VERSION
            )
        )

    def _finish(self, end: Ended | LatticeError) -> None:
        if self.end is None:
            self.end = end
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _lose(self, why: str) -> None:
        now = self._clock.monotonic()
        if self._wire is not None:
            self._wire.close(1001)
            self._wire = None
            self._dialler.pass_on()
        if self.exit is not None:
            self._finish(Unavailable(why))
            return
        if self._opened and now - self._opened_at > _STEADY_S:
            self._tries = 0
        self._opened = False
        if self._lost_at is None:
            self._lost_at = now
            self.events.append(ConnectionLost(why))
        self._tries += 1
        self._retry_at = now + _PAUSES_S[min(self._tries, len(_PAUSES_S)) - 1]
        patience_s = RESUME_S if self._was_opened else _FIRST_PATIENCE_S
        if now - self._lost_at > patience_s:
            self._finish(
                Unavailable(
                    f"The connection was lost and did not come back in {patience_s:.0f} s: {why}",
                    hint="The job goes on. `lattice attach` begins a new session.",
                )
            )

    def _redial(self) -> None:
        if self._busy or self._clock.monotonic() < self._retry_at:
            return
        self._busy = True
        self._errands.send(self._dialled)

    def _dialled(self) -> Callable[[], None]:
        """An errand that connects."""
        try:
            wire = self._dialler.dial()
        except OSError as error:
            why = reason(error)
            return lambda: self._missed(lambda: self._lose(why))
        except LatticeError as error:
            refused = error
            return lambda: self._missed(lambda: self._fail(refused))
        except Exception as error:  # noqa: BLE001 - nobody would see a thread's error
            defect = InternalError(f"lattice failed: {type(error).__name__}: {error}")
            return lambda: self._missed(lambda: self._finish(defect))

        if self.end is not None:
            wire.close()

        def begin() -> None:
            self._busy = False
            if self.end is None:
                self._begin(wire)
            else:
                wire.close()

        return begin

    def _missed(self, act: Callable[[], None]) -> None:
        self._busy = False
        if self.end is None:
            act()

    def _keep_up(self, wire: Wire) -> None:
        now = self._clock.monotonic()
        if now - wire.last_received_at > SILENCE_S:
            raise BadSocket(f"the server has been silent for {SILENCE_S:.0f} s")
        if now >= self._ping_at:
            self._ping_at = now + PING_EVERY_S
            wire.send_text(write_word(Keepalive()))
            wire.ping()
            if self._opened:
                # Ping the holder of the shell too; the server reports if it does not answer.
                wire.send_frames([self._pipe.ping()])
            if now >= self._token_at and not self._busy:
                self._token_at = now + _TOKEN_EVERY_S
                self._renew(lambda: None, refused=False)

    def _renew(self, otherwise: Callable[[], None], *, refused: bool) -> None:
        def errand() -> Callable[[], None]:
            token = self._dialler.fresh_token(refused=refused)
            return lambda: self._renewed(token, otherwise)

        self._busy = True
        self._errands.send(errand)

    def _renewed(self, token: str | None, otherwise: Callable[[], None]) -> None:
        self._busy = False
        if token is None:
            otherwise()
        elif self._wire is not None and self._opened:
            self._dialler.token = token
            try:
                self._wire.send_text(write_word(AttachToken(token=token)))
            except OSError as error:
                self._lose(reason(error))


def _error(word: Failure) -> LatticeError:
    return BY_CODE.get(word.code, InternalError)(word.message, hint=word.hint)
