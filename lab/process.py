"""A handle on one long-running process of the lab.

The handle holds no process, only a name: who it is stands in `processes/NAME.json`, so another
program (or the next `up`, after this one was killed) finds and stops the same process. A record
that names a process of an earlier boot, or a pid the kernel has given to someone else, is a dead
process; such a pid is never signalled.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from lab.command import LabError
from lab.identity import Identity, children
from lab.layout import Layout
from lab.room import Room
from lab.survivor import Survivor

_POLL_S = 0.03
_KILLED_WITHIN_S = 30.0
"""A busy machine takes its time; the kernel collects memory and open files first."""
_LOG_TAIL_BYTES = 2000
_STDERR = 2

Probe = Callable[[], bool]


def recorded(record: Path) -> Identity | None:
    """Who a record names, alive or not; None if there is no record or half of one."""
    try:
        return Identity(**json.loads(record.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


class Process:
    """Start, wait for, stop, kill, freeze and thaw one process."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str] | Callable[[], Sequence[str]],
        layout: Layout,
        room: Room,
        *,
        user: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        prepare: Callable[[], None] | None = None,
        probe: Probe | None = None,
        healthy_within_s: float = 90.0,
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_s: float = 10.0,
    ) -> None:
        """`argv` is asked at each start, where it is a function."""
        self.name = name
        self._words = argv
        self._room = room
        self._user = user
        self._env = {} if env is None else env
        self._cwd = cwd
        self._prepare = prepare
        self._probe = probe
        self._healthy_within_s = healthy_within_s
        self._stop_signal = stop_signal
        self._grace_s = grace_s
        self._record = layout.processes / f"{name}.json"
        self.log_file = layout.log / f"{name}.out"
        self._spawned: set[int] = set()

    @property
    def identity(self) -> Identity | None:
        """Who the record names, alive or not; None if nothing is recorded."""
        return recorded(self._record)

    @property
    def alive(self) -> bool:
        self._reap()
        identity = self.identity
        return identity is not None and identity.alive

    @property
    def pid(self) -> int:
        identity = self.identity
        if identity is None or not identity.alive:
            raise LabError(f"{self.name} is not running")
        return identity.pid

    @property
    def condition(self) -> str:
        """One word for a person: absent, dead, frozen or running."""
        self._reap()
        identity = self.identity
        if identity is None:
            return "absent"
        state = identity.state()
        return "dead" if not state else "frozen" if state == "T" else "running"

    def start(self) -> None:
        """Start it without waiting for its health; starting a running process is an error."""
        if self.alive:
            raise LabError(f"{self.name} is running already, pid {self.pid}")
        if self._prepare is not None:
            self._prepare()
        argv = self._room.argv(self._with_environment(), user=self._user, cwd=self._cwd)
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            argv[0],
            argv,
            self._room.environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log_file), write, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited()),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
        self._spawned.add(pid)
        self._remember(Identity.of(self._forked(pid) if self._room.forks else pid))

    def _with_environment(self) -> Sequence[str]:
        """The command with its own variables set by `env`, right before the program.

        The wrappers before it run as root and must not see them: with `LD_PRELOAD`, libfaketime
        would make a semaphore there that the program then can't open.
        """
        argv = self._words() if callable(self._words) else self._words
        if not self._env:
            return argv
        return [
            "/usr/bin/env",
            *(f"{name}={value}" for name, value in self._env.items()),
            *argv,
        ]

    def _forked(self, parent: int) -> int:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if found := children(parent):
                return found[0]
            if not Identity.of(parent).alive:
                break
            time.sleep(0.002)
        raise LabError(f"{self.name} did not enter its namespaces: {self.log_tail()}")

    def _remember(self, identity: Identity) -> None:
        partial = self._record.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(identity)))
        partial.rename(self._record)

    def wait_healthy(self, probe: Probe | None = None, timeout_s: float | None = None) -> None:
        """Ask the probe until it says yes; a process that ends meanwhile is an error at once."""
        asked = probe or self._probe
        limit_s = self._healthy_within_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while asked is not None and not asked():
            if not self.alive:
                raise LabError(f"{self.name} ended while starting: {self.log_tail()}")
            if time.monotonic() > deadline:
                now = Survivor.of(self.pid)
                raise LabError(
                    f"{self.name} not healthy after {limit_s:g} s, {now}: {self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def up(self) -> None:
        """Start it if it is not running, and wait until it is healthy."""
        if not self.alive:
            self.start()
        self.wait_healthy()

    def stop(self) -> None:
        """Ask it to end, and kill it if it has not after its grace. Harmless if it is gone."""
        self._end(self._stop_signal, self._grace_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL, self._grace_s)

    def restart(self) -> None:
        self.stop()
        self.up()

    def _end(self, how: signal.Signals, grace_s: float) -> None:
        identity = self.identity
        if identity is not None:
            identity.wake_parent()
        # A stopped process gets SIGTERM only once it is continued.
        if identity is not None and identity.send(how, signal.SIGCONT):
            if not identity.wait(grace_s):
                identity.send(signal.SIGKILL)
            if not identity.wait(_KILLED_WITHIN_S):
                raise LabError(f"{self.name} can't be killed: {Survivor.of(identity.pid)}")
        self.forget()

    def forget(self) -> None:
        """Drop the record, and collect what this program started. The process was ended before."""
        self._reap(patience_s=1.0)
        self._record.unlink(missing_ok=True)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        if (identity := self.identity) is not None:
            identity.wake_parent()

    def signal(self, number: signal.Signals) -> None:
        identity = self.identity
        if identity is None or not identity.send(number):
            raise LabError(f"{self.name} is not running")

    def _reap(self, patience_s: float = 0.0) -> None:
        """Collect ended children of this program, so that none stays a zombie."""
        deadline = time.monotonic() + patience_s
        while self._spawned:
            for pid in tuple(self._spawned):
                with suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        continue
                self._spawned.discard(pid)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.002)

    def log_tail(self) -> str:
        try:
            return self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except FileNotFoundError:
            return "(no log)"


def _inherited() -> list[int]:
    """Open files this program was itself given: a daemon would hold a caller's lock for ever."""
    return [
        number
        for number in (int(entry) for entry in os.listdir("/proc/self/fd"))  # noqa: PTH208
        if number > _STDERR and _is_inheritable(number)
    ]


def _is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the one that listed the folder
        return False
