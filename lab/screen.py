"""A program in a terminal of its own, as a person has it before her: typed at, resized, read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyte

from lab.command import LabError

_CONTROLS = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>()][0AB]?"
)


class _Picture(pyte.Screen):
    """Vim asks with a question mark what pyte takes for colours: that is none of ours."""

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attrs)


class Screen:
    """The three streams of the program are a terminal of 24 rows and 80 columns."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.begun = time.perf_counter()
        self._picture = _Picture(80, 24)
        self._paint = pyte.ByteStream(self._picture)
        self.leader, self._follower = pty.openpty()
        self.resize(24, 80)
        self.modes = termios.tcgetattr(self._follower)
        """As they were before the program had it."""
        self.process = subprocess.Popen(
            argv,
            env={**environment, "TERM": "xterm"},
            stdin=self._follower,
            stdout=self._follower,
            stderr=self._follower,
            start_new_session=True,
        )
        self.seen = b""
        """Everything it has shown since it was last cleared."""

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, size)
        self._picture.resize(rows, columns)
        if hasattr(self, "process"):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGWINCH)

    @property
    def modes_now(self) -> list[int | list[bytes | int]]:
        return termios.tcgetattr(self._follower)

    def type(self, text: bytes | str) -> None:
        """At once as far as it goes, the rest as it is taken; what is shown meanwhile is kept."""
        left = text.encode() if isinstance(text, str) else text
        while left:
            ready, room, _ = select.select([self.leader], [self.leader], [], 30)
            if ready:
                self._read()
            if room:
                left = left[os.write(self.leader, left[:1024]) :]
            elif not ready:
                raise LabError("what was typed is not taken")

    @property
    def text(self) -> str:
        """What was shown, without what moves and colours it."""
        return _CONTROLS.sub(b"", self.seen).decode(errors="replace")

    @property
    def picture(self) -> list[str]:
        """What stands on the screen now, line by line."""
        return [line.rstrip() for line in self._picture.display]

    def until(self, pattern: str, timeout_s: float = 120.0) -> re.Match[str]:
        """Until what is shown matches; what was shown up to there is let go of."""
        deadline = time.perf_counter() + timeout_s
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.leader], [], [], deadline - time.perf_counter())
            if not ready or not self._read():
                raise LabError(f"{pattern!r} was not shown, but: {self.text[-800:]!r}")
        self.seen = self.text[found.end() :].encode()
        return found

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit code; what is shown meanwhile is kept."""
        deadline = time.perf_counter() + timeout_s
        while (code := self.process.poll()) is None:
            if time.perf_counter() > deadline:
                raise LabError(f"it does not end; it shows {self.text[-800:]!r}")
            if select.select([self.leader], [], [], 0.05)[0]:
                self._read()
        while select.select([self.leader], [], [], 0.05)[0] and self._read():
            pass
        return code

    def settle(self, quiet_s: float = 0.5) -> None:
        """Until nothing more is shown for a while."""
        while select.select([self.leader], [], [], quiet_s)[0] and self._read():
            pass

    def _read(self) -> bool:
        try:
            text = os.read(self.leader, 65536)
        except OSError:
            text = b""
        self.seen += text
        self._paint.feed(text)
        return bool(text)

    def close(self) -> None:
        """Its window is closed: hung up on, and killed if it does not go."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired, LabError):
                self.wait(3.0)
                break
        self.process.wait()
        os.close(self.leader)
        os.close(self._follower)


@contextmanager
def screen(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[Screen]:
    """Ended with the context."""
    shown = Screen(argv, environment)
    try:
        yield shown
    finally:
        shown.close()
