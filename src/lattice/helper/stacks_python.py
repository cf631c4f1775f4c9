"""Reads Python stacks with py-spy, which runs as the owner of the process with no other rights.

It reads the process's memory and does not stop it (`--nonblocking`), so the job does not notice. It
runs in the node's own namespaces: its program and its libraries are the node's, not the user's.
Where the kernel (Yama) forbids one process of a user to read another, it fails with that reason. It
gets no capability, because the user controls the data that it parses.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lattice.base.text import inert
from lattice.domain.jobfacts import StackFrame
from lattice.domain.probed import LONGEST_TEXT, MOST_FRAMES
from lattice.helper.privilege import Kernel
from lattice.helper.probe_base import HeldSlot, abandon, take

EACH_S = 5.0
_AT_ONCE = 4
_TURN_S = 0.25
_LARGEST = 1024 * 1024
_LARGEST_LINE = 2**31
_CPU_S = 10
_NICENESS = 10
_MAIN = "MainThread"
_ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
NOT_INSTALLED = "py-spy is not installed on the node"
NO_TURN = "the time was over before its turn"
NO_ROOM = "earlier looks with py-spy still hang on this node"


class NoStack(Exception):
    """Why there is no stack; the text is for people."""


@dataclass(slots=True)
class _Run:
    pid: int
    """The process that is inspected."""
    child: int
    until: float
    streams: dict[int, bytes]
    """The output so far, by descriptor."""
    stdout: int
    stderr: int
    open: set[int]
    status: int | None = None


class PySpy:
    """Runs the program behind a descriptor, for several processes at once.

    It does not use `subprocess`. A process that was root can't access its own `/proc/self/fd`, and
    the program may be in a folder that the owner can't enter.
    """

    def __init__(
        self, kernel: Kernel, program: int, slots: Sequence[int], *, each_s: float = EACH_S
    ) -> None:
        """`slots`: files of `ProbeSlots`, one for each parallel run."""
        self._kernel = kernel
        self._program = program
        self._slots = slots[:_AT_ONCE]
        self._each_s = each_s

    def stacks(
        self, pids: Sequence[int], within_s: float
    ) -> dict[int, tuple[StackFrame, ...] | str]:
        """By pid: the frames of its main thread, or why there are none."""
        until = time.monotonic() + within_s
        free = self._taken(until)
        if not free:
            return dict.fromkeys(pids, NO_ROOM)
        found: dict[int, tuple[StackFrame, ...] | str] = {}
        waiting, runs = list(pids), list[_Run]()
        while (waiting or runs) and time.monotonic() < until:
            while waiting and len(runs) < len(free):
                runs.append(self._begun(waiting.pop(0), free, until))
            _hear(runs, until)
            for run in [each for each in runs if _is_over(each)]:
                runs.remove(run)
                found[run.pid] = _result(run)
        for run in runs:
            found[run.pid] = _abandoned(run)
        return {**dict.fromkeys(pids, NO_TURN), **found}

    def _taken(self, until: float) -> list[int]:
        """Take the free slots; wait until at least one is free."""
        while True:
            free = [each for each in self._slots if isinstance(take(each), HeldSlot)]
            if free or time.monotonic() + _TURN_S >= until:
                return free
            time.sleep(_TURN_S)

    def _begun(self, pid: int, slots: Sequence[int], until: float) -> _Run:
        (stdout, stdout_end), (stderr, stderr_end) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            self._run(pid, slots, stdout_end, stderr_end)
        os.close(stdout_end)
        os.close(stderr_end)
        return _Run(
            pid=pid,
            child=child,
            until=min(until, time.monotonic() + self._each_s),
            streams={stdout: b"", stderr: b""},
            stdout=stdout,
            stderr=stderr,
            open={stdout, stderr},
        )

    def _run(self, pid: int, slots: Sequence[int], stdout: int, stderr: int) -> NoReturn:
        try:
            signal.alarm(0)
            self._kernel.die_with_parent()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            os.nice(_NICENESS)
            nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            for at, each in enumerate((nothing, stdout, stderr)):
                os.dup2(each, at)
            # The slots stay taken while this process hangs.
            for each in slots:
                os.set_inheritable(each, True)
            command = ["py-spy", "dump", "--json", "--nonblocking", "--pid", str(pid)]
            os.execve(self._program, command, _ENVIRONMENT)  # noqa: S606
        except OSError as error:
            os.write(2, f"it can't be run: {error.strerror}".encode())
        finally:
            os._exit(127)


def _hear(runs: Sequence[_Run], until: float) -> None:
    poll = select.poll()
    of = {stream: run for run in runs for stream in run.open}
    for stream in of:
        poll.register(stream, select.POLLIN)
    left_s = max(0.0, min(until - time.monotonic(), _TURN_S if of else _TURN_S / 10))
    for stream, _ in poll.poll(left_s * 1000):
        run = of[stream]
        part = os.read(stream, 65536)
        if not part:
            run.open.discard(stream)
            os.close(stream)
        elif len(run.streams[stream]) < _LARGEST:
            run.streams[stream] += part


def _is_over(run: _Run) -> bool:
    if not run.open:
        ended, status = os.waitpid(run.child, os.WNOHANG)
        run.status = status if ended else None
    return run.status is not None or time.monotonic() >= run.until


def _result(run: _Run) -> tuple[StackFrame, ...] | str:
    if run.status is None:
        return _abandoned(run)
    if run.status:
        return _why(run.streams[run.stderr].decode(errors="replace"))
    try:
        return read_dump(run.streams[run.stdout])
    except NoStack as fault:
        return str(fault)


def _abandoned(run: _Run) -> str:
    # The program's own file may be on a dead share.
    abandon(run.child, run.open)
    return "py-spy did not answer in time"


def read_dump(raw: bytes) -> tuple[StackFrame, ...]:
    """The main thread in the output of `py-spy dump --json`, innermost first. Raises `NoStack`."""
    try:
        threads = json.loads(raw)
    except (ValueError, RecursionError):
        raise NoStack("py-spy said what can't be read") from None
    known = [each for each in threads if isinstance(each, dict)] if type(threads) is list else []
    if not known:
        raise NoStack("py-spy saw no thread")
    chosen = next((each for each in known if _is_main(each)), known[-1])
    listed = chosen.get("frames")
    frames = [frame for each in (listed if type(listed) is list else []) if (frame := _frame(each))]
    if not frames:
        raise NoStack("py-spy saw no Python running")
    return tuple(frames[:MOST_FRAMES])


def _is_main(thread: dict[str, Any]) -> bool:
    pid = thread.get("pid")
    return thread.get("thread_name") == _MAIN or (
        type(pid) is int and thread.get("os_thread_id") == pid
    )


def _frame(entry: Any) -> StackFrame | None:
    if type(entry) is not dict or type(entry.get("name")) is not str:
        return None
    file, line = entry.get("filename"), entry.get("line")
    return StackFrame(
        function=inert(entry["name"])[:LONGEST_TEXT],
        file=inert(file)[-LONGEST_TEXT:] if type(file) is str else "",
        line=line if type(line) is int and 0 <= line < _LARGEST_LINE else 0,
    )


def _why(errors: str) -> str:
    denied = "ermission denied" in errors or "not permitted" in errors or "EPERM" in errors
    if denied and _yama() not in ("", "0"):
        return (
            "the node forbids one process of a user to read another "
            f"(kernel.yama.ptrace_scope is {_yama()})"
        )
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return inert(f"py-spy: {lines[0]}" if lines else "py-spy failed")[:LONGEST_TEXT]


def _yama() -> str:
    try:
        return _YAMA.read_text().strip()
    except OSError:
        return ""
