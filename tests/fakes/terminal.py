"""A terminal that a program runs on: its screen is read, and it notices what is done to it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyte

from tests.eventually import PATIENCE_S, eventually

_LOCAL_MODES = 3
"""Its place in what `tcgetattr` answers."""
PROGRAM = [sys.executable, "-c", "from lattice.cli.main import main; main()"]


class Witness(pyte.HistoryScreen):
    """A screen that also keeps what it was asked, and what it was told to do besides text."""

    def __init__(self, *sizes: int, history: int = 100) -> None:
        self.said = ""
        super().__init__(*sizes, history=history)

    def write_process_input(self, data: str) -> None:
        self.said += data

    def bell(self, *_: Any) -> None:
        self.said += "bell"

    def state(self) -> dict[str, Any]:
        """All that a program may leave behind, besides text."""
        return {
            "modes": set(self.mode),
            "margins": self.margins,
            "title": self.title,
            "icon": self.icon_name,
            "charset": (self.charset, self.g0_charset, self.g1_charset),
            "stops": set(self.tabstops),
            "saved": list(self.savepoints),
            "look": self.cursor.attrs,
            "hidden": self.cursor.hidden,
            "said": self.said,
            "column": self.cursor.x,
        }


class Terminal:
    """`lattice logs` on a terminal, or another program, and what stands on it."""

    def __init__(
        self,
        environment: dict[str, str],
        *words: str,
        columns: int = 80,
        lines: int = 24,
        program: Sequence[str] = (*PROGRAM, "logs"),
    ) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._before = termios.tcgetattr(follower)
        self._follower = follower
        self.screen = Witness(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.process = subprocess.Popen(
            [*program, *words],
            env=environment,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )

    def rows(self) -> list[str]:
        above = [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
        rows = above + [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def until(self, holds: Callable[[list[str]], bool], timeout_s: float = PATIENCE_S) -> list[str]:
        end = time.monotonic() + timeout_s
        while not holds(self.rows()):
            if not self._read(max(end - time.monotonic(), 0)):
                os.killpg(self.process.pid, signal.SIGTERM)
                raise AssertionError(f"on the terminal stands {self.rows()}")
        return self.rows()

    def until_raw(self) -> None:
        """Wait until the program has put the terminal into raw mode."""
        eventually(self._is_raw)

    def _is_raw(self) -> bool:
        self._read(0)
        return not termios.tcgetattr(self._follower)[_LOCAL_MODES] & termios.ICANON

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], timeout_s)
        if not ready:
            return False
        try:
            piece = os.read(self._leader, 65536)
        except OSError:
            return False
        self.written += piece
        self._stream.feed(piece)
        return bool(piece)

    def type(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def type_all(self, keys: bytes) -> None:
        """As fast as they are taken, reading what comes meanwhile."""
        os.set_blocking(self._leader, False)
        while keys:
            assert self.process.poll() is None, self.rows()
            _, free, _ = select.select([], [self._leader], [], 0.05)
            if free:
                with suppress(BlockingIOError):
                    keys = keys[os.write(self._leader, keys[:4096]) :]
            self._read(0)
        os.set_blocking(self._leader, True)

    def resize(self, lines: int, columns: int) -> None:
        """The program's group hears of it, as from a real window."""
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def end(self, code: int) -> list[str]:
        while self.process.poll() is None:
            self._read(0.1)
        while self._read(0.05):
            pass
        assert self.process.returncode == code, self.rows()
        assert termios.tcgetattr(self._follower) == self._before
        assert self.screen.cursor.attrs == pyte.Screen(1, 1).cursor.attrs
        assert not self.screen.cursor.hidden
        assert self.screen.state() == Witness(self.screen.columns, self.screen.lines).state()
        os.close(self._follower)
        os.close(self._leader)
        return self.rows()
