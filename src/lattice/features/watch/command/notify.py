"""Notifications of `lattice watch`: the terminal bell, or a command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Protocol

from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.alert import Phase
from lattice.features.watch.model import WatchAlert, WatchEnd, WatchRecord

_MOST_AT_ONCE = 8
_LAST_S = 5.0


class DesktopNotice(Protocol):
    """One kind of notification."""

    def send(self, shell: Shell, record: WatchRecord) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Bell:
    """Rings the terminal."""

    def send(self, shell: Shell, record: WatchRecord) -> None:  # noqa: ARG002
        if shell.live:
            shell.write("\a")

    def end(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class OwnCommand:
    """Runs a program with a line of JSON on its standard input, without waiting for it.

    Text from a job or a node never becomes part of the command line.
    """

    argv: list[str]
    _running: list[subprocess.Popen[bytes]] = field(
        default_factory=list, init=False, compare=False, repr=False
    )

    def send(self, shell: Shell, record: WatchRecord) -> None:
        self._running = [each for each in self._running if each.poll() is None]
        if len(self._running) >= _MOST_AT_ONCE:
            return
        try:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            shell.warn(f"--notify: {inert(self.argv[0])} can't be run: {error.strerror}.")
            return
        self._running.append(process)
        assert process.stdin is not None
        try:
            process.stdin.write(_summary(record).encode() + b"\n")
            process.stdin.close()
        except BrokenPipeError:
            pass

    def end(self) -> None:
        """Wait up to 5 s for all running commands together, then kill the rest."""
        deadline_s = time.monotonic() + _LAST_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
        self._running.clear()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        try:
            # It leads its own session, and is not reaped yet: the id can't be another's.
            os.killpg(process.pid, signal.SIGKILL)
        except PermissionError:
            # It runs as another user, such as one that `sudo` started.
            return
        process.wait()


def _summary(record: WatchRecord) -> str:
    if isinstance(record, WatchAlert):
        fields = {
            "type": record.type,
            "node": record.node,
            "rule": record.rule,
            "severity": record.severity.value,
            "phase": record.phase.value,
            "words": record.words,
            "remedy": record.remedy,
        }
    elif isinstance(record, WatchEnd):
        fields = {"type": record.type, "id": record.allocation, "state": record.state.value}
    else:
        fields = {"type": record.type}
    return json.dumps(fields)


def is_notable(record: WatchRecord) -> bool:
    """Return True for records that cause a notification."""
    if isinstance(record, WatchAlert):
        return record.phase is Phase.FIRING
    return isinstance(record, WatchEnd)


def read_notice(text: str) -> DesktopNotice:
    """Parse `bell` or a command. Raises `UsageError`."""
    if text == "bell":
        return Bell()
    try:
        argv = shlex.split(text)
    except ValueError as problem:
        raise UsageError(
            f"{text!r} is no command: {problem}.", hint="Write bell, or a command."
        ) from None
    if not argv:
        raise UsageError("There is nothing to be told by.", hint="Write bell, or a command.")
    return OwnCommand(argv)
