"""A session in a job on this terminal, or between pipes: one loop, no threads for input.

Keys are sent as they come and output is written as it comes. What can't be written yet is not taken
from the pipe, so that a slow terminal slows the program and fills no memory.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress

from lattice.base.clock import Clock
from lattice.cli.escapekeys import HELP_LINES, EscapeAct, EscapeKeys
from lattice.cli.screenstate import ScreenState, TerminalNotices
from lattice.cli.signals import CaughtSignals, stop_here
from lattice.cli.sink import Sink
from lattice.cli.terminal import Guardian, LocalTerminal
from lattice.client.outcome import exit_code
from lattice.client.terminal import Back, ConnectionLost, HasDescriptor, LinkEvent, TerminalLink
from lattice.domain.terminal import (
    MOST_BYTES,
    EndCause,
    Errors,
    Exit,
    Output,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
)
from lattice.features.attach.model import Notice, Opened
from lattice.features.attach.render import back_line, banner, lost_line, suspended_line

_REPORT_LOST_AFTER_S = 2.0
_REPORT_BACK_AFTER_S = 1.0
_FAREWELL_S = 1.0
"""For a shell to react to its hang-up, and for the server's last word."""
_JOB_END_S = 5.0
"""For that word if the job's end may be the cause: Slurm takes a while to report it."""
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"
_HANG_UP = 128 + signal.SIGHUP


class Attached:
    """What both forms share: the loop, and how it ends."""

    def __init__(self, link: TerminalLink, clock: Clock, *, quiet: bool) -> None:
        self._link = link
        self._clock = clock
        self._quiet = quiet
        self._reported_loss = ""
        self._why_lost = ""
        self._code: int | None = None
        """Set if this side ends it."""

    def _loop(self, signals: CaughtSignals) -> None:
        link = self._link
        while not self._over():
            sinks = [sink for sink in self._sinks() if sink.wants_write]
            keys = self._keys() if link.writable else None
            reads: list[HasDescriptor | int] = [signals, *link.reading]
            if keys is not None:
                reads.append(keys)
            ready, free, _ = select.select(reads, [*link.writing, *sinks], [], self._wait_s())
            if keys in ready:
                self._typed(_read(keys))
            if signals in ready:
                for number in signals.caught():
                    self._caught(number)
            for sink in sinks:
                if sink in free:
                    sink.flush()
            link.turn()
            self._hear()

    def _over(self) -> bool:
        self._show()
        if self._code is not None or self._link.exit is not None:
            return True
        return self._link.end is not None and not any(sink.full for sink in self._sinks())

    def _wait_s(self) -> float:
        wait_s = self._link.wait_s
        away_s = self._link.away_s
        if away_s is not None and not self._reported_loss:
            wait_s = min(wait_s, max(0.0, _REPORT_LOST_AFTER_S - away_s))
        return wait_s

    def _show(self) -> None:
        while not any(sink.full for sink in self._sinks()):
            message = self._link.take()
            if message is None:
                return
            self._shown(message)
            if isinstance(message, Exit):
                return

    def _hear(self) -> None:
        events = self._link.events
        while events:
            self._event(events.popleft())
        away_s = self._link.away_s
        if away_s is not None and away_s >= _REPORT_LOST_AFTER_S and not self._reported_loss:
            self._reported_loss = self._why_lost or "no answer"
            self._notify(lost_line(self._reported_loss))

    def _event(self, event: LinkEvent) -> None:
        if isinstance(event, ConnectionLost):
            self._why_lost = event.why
        elif isinstance(event, Back):
            self._reported_loss = self._why_lost = ""
            if event.away_s > _REPORT_BACK_AFTER_S:
                self._notify(back_line(event.away_s))
        elif isinstance(event, Notice):
            self._notify(event.words)
        else:
            self._opened(event)

    def _hang_up(self, code: int) -> None:
        """End it from this side: the shell gets SIGHUP and a moment to end."""
        self._code = code
        if self._link.writable:
            self._link.write(Signal(TerminalSignal.HUP))
        self._give_turns(_FAREWELL_S, lambda: self._link.exit is not None)

    def _give_turns(self, for_s: float, enough: Callable[[], bool]) -> None:
        link = self._link
        end = self._clock.monotonic() + for_s
        while link.end is None and not enough():
            left_s = end - self._clock.monotonic()
            if left_s <= 0 or link.away_s is not None:
                return
            select.select(link.reading, link.writing, [], min(left_s, link.wait_s))
            link.turn()
            # Output from now on comes too late to be seen.
            while link.exit is None and link.take() is not None:
                pass

    def _hear_the_end(self) -> int:
        """The exit code, after waiting for the server's last word, which may explain the end."""
        exit_ = self._link.exit
        if self._code is None and exit_ is not None:
            # If the exit code is known, only the confirmation to the holder is left to send.
            known = exit_.code is not None
            self._give_turns(
                _FAREWELL_S if known else _JOB_END_S, lambda: known and not self._link.writing
            )
        self._hear()
        if self._code is not None:
            return self._code
        return exit_code(exit_, self._link.end)

    # Each form implements these.

    def _sinks(self) -> list[Sink]:
        raise NotImplementedError

    def _keys(self) -> int | None:
        raise NotImplementedError

    def _typed(self, text: bytes | None) -> None:
        raise NotImplementedError

    def _caught(self, number: int) -> None:
        raise NotImplementedError

    def _shown(self, message: TerminalMessage) -> None:
        raise NotImplementedError

    def _notify(self, text: str) -> None:
        raise NotImplementedError

    def _opened(self, opened: Opened) -> None:
        raise NotImplementedError


class AttachedTerminal(Attached):
    """On a terminal, which is always restored."""

    def __init__(
        self,
        link: TerminalLink,
        terminal: LocalTerminal,
        clock: Clock,
        *,
        quiet: bool,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(link, clock, quiet=quiet)
        self._terminal = terminal
        self._warn = warn
        self._sink = Sink(terminal.screen)
        self._screen = ScreenState()
        self._notices = TerminalNotices(self._screen, self._sink.write)
        self._keys_read = EscapeKeys()
        self._title_saved = False
        self._guardian: Guardian | None = None

    def run(self) -> int:
        """Run until the end and return the exit code. Raises what else ended it."""
        caught = (
            signal.SIGHUP,
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGQUIT,
            signal.SIGTSTP,
            signal.SIGCONT,
            signal.SIGWINCH,
        )
        with CaughtSignals(caught) as signals:
            guardian: Guardian | None = None
            try:
                self._terminal.raw()
                self._guardian = guardian = Guardian(self._terminal)
                self._loop(signals)
            finally:
                self._put_right()
                if guardian is not None:
                    guardian.dismiss()
            try:
                return self._hear_the_end()
            finally:
                for line in self._notices.left():
                    self._warn(line)
                self._link.close()
                self._sink.close()

    def _put_right(self) -> None:
        exit_ = self._link.exit
        broken = exit_ is None or exit_.cause is not EndCause.EXITED
        undo = self._screen.undo() if broken else b""
        try:
            if broken and not self._screen.at_line_start and not self._screen.full_screen:
                undo += b"\r\n"
            if self._title_saved:
                undo += _POP_TITLE
            with suppress(OSError):
                self._sink.write(undo)
                self._drain()
        finally:
            self._terminal.restore(drop_keys=bool(undo) and broken)

    def _drain(self) -> None:
        """Write what is left, unless the terminal does not accept it."""
        while self._sink.wants_write and select.select([], [self._sink], [], 1.0)[1]:
            self._sink.flush()

    def _sinks(self) -> list[Sink]:
        return [self._sink]

    def _keys(self) -> int | None:
        return self._terminal.keys

    def _typed(self, text: bytes | None) -> None:
        if not text:
            self._code = _HANG_UP  # the terminal is gone
            return
        for part in self._keys_read.feed(text, self._clock.monotonic()):
            if isinstance(part, bytes):
                self._link.write(Stdin(part))
            elif part is EscapeAct.LEAVE:
                self._notices.show("--- session ended by ~. ---")
                self._hang_up(_HANG_UP)
                return
            elif part is EscapeAct.HELP:
                for line in HELP_LINES:
                    self._notices.show(line)
            else:
                self._suspend()

    def _caught(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._link.resize(*self._terminal.size())
        elif number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT:
            self._go_on()
        elif self._code is None:
            self._hang_up(128 + number)

    def _suspend(self) -> None:
        self._notices.show(suspended_line())
        with suppress(OSError):
            self._drain()
        self._terminal.restore()
        stop_here()
        self._go_on()

    def _go_on(self) -> None:
        self._terminal.raw()
        self._link.resize(*self._terminal.size())

    def _shown(self, message: TerminalMessage) -> None:
        if isinstance(message, Output | Errors):
            piece = message.text
            if not self._title_saved and b"\x1b]" in piece:
                # Terminals with a stack of titles restore the old one at the end.
                self._title_saved = True
                self._sink.write(_PUSH_TITLE)
            self._screen.feed(piece)
            undo = self._screen.undo() if b"\x1b" in piece else None
            # Before the screen changes: a kill in between must not leave it changed.
            if undo and self._guardian is not None:
                self._guardian.note(undo)
            self._sink.write(piece)
            # After the screen is restored, for the same reason.
            if undo == b"" and self._guardian is not None:
                self._guardian.note(undo)
            self._notices.flush()
        elif isinstance(message, Started):
            for warning in message.warnings:
                self._notices.show(warning)

    def _notify(self, text: str) -> None:
        self._notices.show(text)

    def _opened(self, opened: Opened) -> None:
        if not self._quiet:
            self._notices.show(banner(opened, self._clock.now()))


class AttachedPipes(Attached):
    """Without a terminal: bytes in, bytes out, errors separate, and no notices among them."""

    def __init__(
        self,
        link: TerminalLink,
        clock: Clock,
        *,
        quiet: bool,
        warn: Callable[[str], None],
        descriptors: tuple[int | None, int, int] = (0, 1, 2),
    ) -> None:
        super().__init__(link, clock, quiet=quiet)
        self._input: int | None = descriptors[0]
        self._out, self._errors = Sink(descriptors[1]), Sink(descriptors[2])
        self._warn = warn
        self._asked: set[int] = set()

    def run(self) -> int:
        """Run until the end and return the exit code. Raises what else ended it."""
        caught = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
        with CaughtSignals(caught) as signals:
            try:
                self._loop(signals)
                self._drain(signals)
            except BrokenPipeError:
                self._hang_up(_HANG_UP)
                raise
            try:
                return self._hear_the_end()
            finally:
                self._link.close()
                self._out.close()
                self._errors.close()

    def _drain(self, signals: CaughtSignals) -> None:
        while left := [sink for sink in self._sinks() if sink.wants_write]:
            ready, free, _ = select.select([signals], left, [])
            for sink in free:
                sink.flush()
            if signals in ready:
                self._code = 128 + signals.caught()[-1]
                return

    def _sinks(self) -> list[Sink]:
        return [self._out, self._errors]

    def _keys(self) -> int | None:
        return self._input

    def _typed(self, text: bytes | None) -> None:
        if text:
            self._link.write(Stdin(text))
        else:
            self._input = None
            self._link.write(StdinEnd())

    def _caught(self, number: int) -> None:
        name = signal.Signals(number).name.removeprefix("SIG")
        if number in self._asked or not self._link.writable:
            # The second one is meant for this program.
            self._hang_up(128 + number)
            return
        self._asked.add(number)
        self._link.write(Signal(TerminalSignal(name)))

    def _shown(self, message: TerminalMessage) -> None:
        if isinstance(message, Output):
            self._out.write(message.text)
        elif isinstance(message, Errors):
            self._errors.write(message.text)
        elif isinstance(message, Started):
            for warning in message.warnings:
                self._warn(warning)

    def _notify(self, text: str) -> None:
        self._warn(text)

    def _opened(self, opened: Opened) -> None:
        """No banner, because programs read this."""


def _read(descriptor: int | None) -> bytes | None:
    assert descriptor is not None
    try:
        return os.read(descriptor, MOST_BYTES)
    except OSError:
        return None
