"""A holder's program: its terminal or its three pipes, its signals, and its end.

The program leads its own session, and the holder does not reap it before its own end. So no id of
the program (process, group, session) can be reused while signals are sent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lattice.domain.terminal import MOST_BYTES, Errors, Output, TerminalSignal
from lattice.helper.process import has_ended

_SIZE = struct.Struct("HHHH")
_SIGNALS = {each: signal.Signals[f"SIG{each.value}"] for each in TerminalSignal}
_BY_KERNEL = frozenset({TerminalSignal.INT, TerminalSignal.QUIT, TerminalSignal.TSTP})
_TIOCSIG = 0x40045436
_VEOF_USUAL = b"\x04"


@dataclass(slots=True)
class ShellSource:
    """One descriptor that the program writes to; -1 after the end of its output."""

    descriptor: int
    kind: type[Output | Errors]
    left: bool = False
    """No process has the other side of the terminal open now. This side stays open. If it were
    closed, the kernel would send SIGHUP to a program that closed its terminal and is about to end.
    """

    def read(self) -> bytes:
        """The available output, up to one message."""
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


@dataclass(slots=True)
class Terminal:
    """The master side of a pseudo terminal. `sources` are the descriptors of its output."""

    master: int
    sources: list[ShellSource] = field(init=False)
    _mid_line: bool = False

    def __post_init__(self) -> None:
        os.set_blocking(self.master, False)
        self.sources = [ShellSource(self.master, Output)]

    @property
    def input(self) -> int:
        """The descriptor of its input; -1 when that is closed."""
        return -1 if self.sources[0].left else self.sources[0].descriptor

    def write(self, text: bytes) -> int:
        """Write what fits; returns its length. Raises `BrokenPipeError` without a reader."""
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
        """End the input. Returns bytes that must still be written for that: the EOF character.

        After an incomplete line the first one only ends that line.
        """
        if self.input < 0:
            return b""
        character = _VEOF_USUAL
        with suppress(termios.error):
            configured = termios.tcgetattr(self.input)[6][termios.VEOF]
            character = configured if isinstance(configured, bytes) else character
        return character * (2 if self._mid_line else 1)

    def resize(self, rows: int, columns: int) -> None:
        if self.input >= 0:
            fcntl.ioctl(self.input, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))

    def foreground(self) -> int:
        """The foreground process group; 0 if there is none."""
        with suppress(OSError):
            return os.tcgetpgrp(self.input) if self.input >= 0 else 0
        return 0

    def signal(self, name: TerminalSignal, /) -> bool:
        """Return True if the kernel delivered the signal."""
        if name in _BY_KERNEL and self.input >= 0:
            with suppress(OSError):
                fcntl.ioctl(self.input, _TIOCSIG, int(_SIGNALS[name]))
                return True
        return False


@dataclass(slots=True)
class Pipes:
    """Three pipes for binary data, with the methods of `Terminal`."""

    input: int
    sources: list[ShellSource]

    @classmethod
    def of(cls, stdin: int, stdout: int, stderr: int) -> Pipes:
        for each in (stdin, stdout, stderr):
            os.set_blocking(each, False)
        return cls(stdin, [ShellSource(stdout, Output), ShellSource(stderr, Errors)])

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
        """Do nothing: pipes have no size."""

    def foreground(self) -> int:
        return 0

    def signal(self, _: TerminalSignal, /) -> bool:
        return False


Streams: TypeAlias = Terminal | Pipes


class LoginShell:
    """The program itself."""

    def __init__(self, pid: int, streams: Streams, proc: Path = Path("/proc")) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.streams = streams
        self._proc = proc
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """As `waitstatus_to_exitcode` returns it: negative for a signal. None while it runs."""
        if self._status is None and has_ended(self.pidfd):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                by_itself = ended.si_code == os.CLD_EXITED
                self._status = ended.si_status if by_itself else -ended.si_status
        return self._status

    def signal(self, name: TerminalSignal) -> int:
        """Signal the foreground group; without a terminal, the program's group."""
        if not self.streams.signal(name):
            self._kill_group(self.streams.foreground() or self.pid, _SIGNALS[name])
        return int(_SIGNALS[name])

    def hang_up(self) -> None:
        """Hang up as a terminal does: the foreground group and the leader."""
        for group in dict.fromkeys((self.streams.foreground() or self.pid, self.pid)):
            for number in (signal.SIGHUP, signal.SIGCONT):
                self._kill_group(group, number)

    def kill(self) -> None:
        """Kill every process of the session, and no others."""
        for group in (self.streams.foreground(), self.pid):
            self._kill_group(group, signal.SIGKILL)
        for pid in self._session():
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    # Checked again: the pid may have been reused.
                    if os.getsid(pid) == self.pid:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)

    def reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _kill_group(self, group: int, number: int) -> None:
        with suppress(OSError):
            if group > 0 and os.getsid(group) == self.pid:
                os.killpg(group, number)

    def _session(self) -> list[int]:
        """Searches all processes; this happens at most once in a session."""
        found = []
        for entry in self._proc.iterdir():
            # By a system call: a process of any job can block readers of its files in /proc.
            if entry.name.isdecimal():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == self.pid:
                        found.append(int(entry.name))
        return found
