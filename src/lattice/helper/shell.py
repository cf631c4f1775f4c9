"""The program at a holder's hand: its terminal or its three pipes, its signals, and its end.

The program is the leader of a session of its own and is not reaped before the holder ends, so that
no number of it (process, group, session) can mean anyone else as long as signals are sent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lattice.domain.terminal import MOST_BYTES, Errors, Output, TerminalSignal

_SIZE = struct.Struct("HHHH")
_SIGNALS = {each: signal.Signals[f"SIG{each.value}"] for each in TerminalSignal}
_BY_KERNEL = frozenset({TerminalSignal.INT, TerminalSignal.QUIT, TerminalSignal.TSTP})
_TIOCSIG = 0x40045436
_VEOF_USUAL = b"\x04"


@dataclass(slots=True)
class Source:
    """One descriptor that the program writes to; -1 when nothing more can come."""

    descriptor: int
    kind: type[Output | Errors]
    left: bool = False
    """Nobody has the other side of the terminal now. It stays open: if it were closed, the kernel
    would hang up on a program that has let go of it and is about to end by itself."""

    def read(self) -> bytes:
        """What is there now, up to one message."""
        parts: list[bytes] = []
        left = MOST_BYTES
        while left > 0 and self.descriptor >= 0:
            try:
                part = os.read(self.descriptor, left)
            except BlockingIOError:
                self.left = False
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.left = True
                break
            self.left = False
            if not part:
                self.close()
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Streams(Protocol):
    """What is between the holder and the program."""

    @property
    def sources(self) -> list[Source]:
        """Where its output comes from."""

    @property
    def input(self) -> int:
        """Where it is written to; -1 when that is over."""

    def write(self, text: bytes) -> int:
        """How much of it went in now. Raises `BrokenPipeError` when nobody reads any more."""

    def end_input(self) -> bytes:
        """Nothing more will come. What has still to be written, to say so."""

    def resize(self, rows: int, columns: int) -> None: ...

    def foreground(self) -> int:
        """The group that runs in front; 0 if there is none."""

    def signal(self, name: TerminalSignal, /) -> bool:
        """True if the kernel itself delivered it."""


@dataclass(slots=True)
class Terminal:
    """A pseudo terminal by its master side."""

    master: int
    sources: list[Source] = field(init=False)
    _mid_line: bool = False

    def __post_init__(self) -> None:
        os.set_blocking(self.master, False)
        self.sources = [Source(self.master, Output)]

    @property
    def input(self) -> int:
        return -1 if self.sources[0].left else self.sources[0].descriptor

    def write(self, text: bytes) -> int:
        try:
            written = os.write(self.input, text)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokenPipeError from error
        if written:
            self._mid_line = text[written - 1] not in b"\r\n"
        return written

    def end_input(self) -> bytes:
        """The character that means it; behind half a line, the first one only ends that."""
        if self.input < 0:
            return b""
        character = _VEOF_USUAL
        with suppress(termios.error):
            told = termios.tcgetattr(self.input)[6][termios.VEOF]
            character = told if isinstance(told, bytes) else character
        return character * (2 if self._mid_line else 1)

    def resize(self, rows: int, columns: int) -> None:
        if self.input >= 0:
            fcntl.ioctl(self.input, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))

    def foreground(self) -> int:
        with suppress(OSError):
            return os.tcgetpgrp(self.input) if self.input >= 0 else 0
        return 0

    def signal(self, name: TerminalSignal, /) -> bool:
        if name in _BY_KERNEL and self.input >= 0:
            with suppress(OSError):
                fcntl.ioctl(self.input, _TIOCSIG, int(_SIGNALS[name]))
                return True
        return False


@dataclass(slots=True)
class Pipes:
    """Three pipes: binary, each its own way."""

    input: int
    sources: list[Source]

    @classmethod
    def of(cls, stdin: int, stdout: int, stderr: int) -> Pipes:
        for each in (stdin, stdout, stderr):
            os.set_blocking(each, False)
        return cls(stdin, [Source(stdout, Output), Source(stderr, Errors)])

    def write(self, text: bytes) -> int:
        try:
            return os.write(self.input, text)
        except BlockingIOError:
            return 0

    def end_input(self) -> bytes:
        if self.input >= 0:
            os.close(self.input)
            self.input = -1
        return b""

    def resize(self, rows: int, columns: int) -> None:
        """There is nothing that has a size."""

    def foreground(self) -> int:
        return 0

    def signal(self, _: TerminalSignal, /) -> bool:
        return False


class Shell:
    """The program itself."""

    def __init__(self, pid: int, streams: Streams, proc: Path = Path("/proc")) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.streams = streams
        self._proc = proc
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """As `waitstatus_to_exitcode` has it: negative for a signal. None while it runs."""
        if self._status is None and self._look().poll(0):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                by_itself = ended.si_code == os.CLD_EXITED
                self._status = ended.si_status if by_itself else -ended.si_status
        return self._status

    def signal(self, name: TerminalSignal) -> int:
        """To what runs in the foreground; without a terminal, to the program's group."""
        if not self.streams.signal(name):
            self._kill_group(self.streams.foreground() or self.pid, _SIGNALS[name])
        return int(_SIGNALS[name])

    def hang_up(self) -> None:
        """As a terminal does whose line is cut: whatever is in front, and the leader."""
        for group in dict.fromkeys((self.streams.foreground() or self.pid, self.pid)):
            for number in (signal.SIGHUP, signal.SIGCONT):
                self._kill_group(group, number)

    def kill(self) -> None:
        """Every process of the session, and none besides."""
        for group in (self.streams.foreground(), self.pid):
            self._kill_group(group, signal.SIGKILL)
        for pid in self._session():
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    # Asked again: its number may be another's since.
                    if os.getsid(pid) == self.pid:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)

    def reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _look(self) -> select.poll:
        look = select.poll()
        look.register(self.pidfd, select.POLLIN)
        return look

    def _kill_group(self, group: int, number: int) -> None:
        with suppress(OSError):
            if group > 0 and os.getsid(group) == self.pid:
                os.killpg(group, number)

    def _session(self) -> list[int]:
        """Looked for among all processes: this is done once in a session's life, if at all."""
        found = []
        for entry in self._proc.iterdir():
            # Asked of the kernel: a process of any job can hold whoever reads its files in /proc.
            if entry.name.isdecimal():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == self.pid:
                        found.append(int(entry.name))
        return found
