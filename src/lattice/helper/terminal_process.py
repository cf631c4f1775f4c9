"""The process of a holder: a child of the helper that starts the program and stays to its end.

It runs outside the job; otherwise it could not report the job's end. Once the program runs and the
request is answered, it drops every right except sending signals, and every descriptor that it does
not need.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import termios
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.privileged import Enter
from lattice.domain.terminal import EndCause, Started
from lattice.helper import tools
from lattice.helper.guests import GuestProcesses
from lattice.helper.holder import Holder, HolderTimes
from lattice.helper.job_entry import EntryMethod, EntryReport, Owner, Wish, enter, read_report
from lattice.helper.jobgroups import leave_guests
from lattice.helper.journal import HelperJournal
from lattice.helper.privilege import Capability, Kernel
from lattice.helper.process import is_readable
from lattice.helper.shell import LoginShell, Pipes, Streams, Terminal

START_S = 8.0
"""For the program to start; a file share that does not answer may delay it."""
RECORDED = HolderTimes(silence_s=10.0, hang_up_s=2.0, kill_s=1.0, linger_s=10.0)
_UNLOCK, _PEER = 0x40045431, 0x5441
_IUTF8 = 0x4000
_LARGEST_REPORT = 64 * 1024
_THREADS = Path("/proc/self/task")
_PAUSE_S = 0.0005
_LEAVING_S = 5.0
_LEAVING_PAUSE_S = 0.02


class NotStarted(Exception):
    """Nothing runs; the text is for the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldProgram:
    """What a holder gets: how to enter the job, the request, and its two sockets."""

    method: EntryMethod
    question: Enter
    node: str
    warnings: tuple[str, ...]
    connection: socket.socket
    listener: socket.socket
    folder: int
    """The folder of the listening socket."""
    belongs_to: Mapping[str, str]
    check_tools: tools.ImageCheck | None = None
    """None: any image of tools is mounted."""
    others: GuestProcesses | None = None
    """Of a recorded terminal. It ends soon after the connection to its recorder, and they do."""
    alone: int = -1
    """A descriptor that keeps other recorded terminals of the job away."""

    def end_others(self) -> bool:
        """End what was started in a recorded terminal; False if some of it can't be ended."""
        return self.others is None or self.others.end()

    def discard(self) -> None:
        """Remove the session's socket, and close what belongs to it."""
        self.unlink()
        self.connection.close()
        self.listener.close()
        if self.alone >= 0:
            os.close(self.alone)
        os.close(self.folder)

    def unlink(self) -> None:
        with suppress(OSError):
            os.unlink(self.question.session, dir_fd=self.folder)


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A program that runs, and what its process reported before."""

    held: HeldProgram
    shell: LoginShell
    entry: EntryReport


class TerminalProcess:
    """Created once in the helper; each child uses it for one program."""

    def __init__(
        self, kernel: Kernel, clock: Clock, journal: HelperJournal, times: HolderTimes
    ) -> None:
        self._kernel = kernel
        self._clock = clock
        self._journal = journal
        self._times = times

    def start(self, held: HeldProgram) -> StartedProgram:
        """Start the program. Raises `NotStarted`; then nothing of the session is left."""
        try:
            return self._started(held)
        except Exception as error:  # noqa: BLE001 - the journal has its type
            held.discard()
            refused = isinstance(error, NotStarted)
            self._note_end(held, EndCause.FAILED, "" if refused else type(error).__name__)
            raise NotStarted(str(error) if refused else "it could not be started") from None

    def hold(self, started: StartedProgram) -> None:
        """Hold the terminal until its end. The process must then end at once."""
        cause: EndCause | None = EndCause.FAILED
        reason = ""
        try:
            cause = self._hold(started)
        except BaseException as error:  # noqa: BLE001 - nothing may unwind into the helper's code
            reason = type(error).__name__
        finally:
            started.held.unlink()
            self._note_end(started.held, cause, reason)

    def _note_end(self, held: HeldProgram, cause: EndCause | None, reason: str) -> None:
        self._journal.note(
            "session ended",
            session=held.question.session,
            user=held.method.owner.account.pw_name,
            cause=cause.value if cause is not None else "",
            reason=reason,
        )

    def _started(self, held: HeldProgram) -> StartedProgram:
        streams, inner = _streams(self._kernel, held.method.owner, held.question)
        pid, progress = self._start(held, inner)
        for each in set(inner):
            os.close(each)
        try:
            entry = _hear(progress, START_S)
        finally:
            os.close(progress)
        if entry.fault:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise NotStarted(entry.fault)
        return StartedProgram(held, LoginShell(pid, streams), entry)

    def _hold(self, started: StartedProgram) -> EndCause | None:
        held, shell = started.held, started.shell
        self._give_up_rights()
        signal.alarm(0)
        streams, target = shell.streams, held.method.target
        needed = [each.descriptor for each in streams.sources] + [streams.input, shell.pidfd]
        needed += [held.connection.fileno(), held.listener.fileno(), held.folder]
        close_others({*needed, target.group, target.anchor, held.alone, self._journal.descriptor})
        holder = Holder(
            shell,
            held.connection,
            held.listener,
            belongs_to=held.belongs_to,
            job_is_over=target.job_is_over,
            clock=self._clock,
            times=self._times if held.others is None else RECORDED,
            end_others=held.end_others,
        )
        holder.begin(_message(started))
        holder.run()
        shell.reap()
        if not held.end_others():
            session, user = held.question.session, held.method.owner.account.pw_name
            self._journal.note("processes outlive a recorded terminal", session=session, user=user)
        _leave(held.method.guests)
        return holder.cause

    def _start(self, held: HeldProgram, streams: tuple[int, int, int]) -> tuple[int, int]:
        """The pid of the program, and the descriptor of its progress reports."""
        question, method = held.question, held.method
        progress, report = os.pipe()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if question.tools:
            bring = partial(tools.bring, self._kernel, method.owner, question.tools, theirs)
            method = replace(method, bring_tools=bring)
        if method.target.pid_namespace >= 0:
            # Only children of this process enter the namespace.
            self._kernel.join_namespace(method.target.pid_namespace)
        pid = os.fork()
        if pid == 0:
            wish = Wish(
                session=question.session,
                argv=question.argv,
                terminal=question.terminal,
                streams=streams,
            )
            enter(method, wish, report)
        os.close(report)
        theirs.close()
        if question.tools:
            tools.serve(self._kernel, mine, held.check_tools)
        mine.close()
        return pid, progress

    def _give_up_rights(self) -> None:
        # Each thread has its own rights. `Foresight` may have one, which ends by itself.
        while len(list(_THREADS.iterdir())) > 1:
            time.sleep(_PAUSE_S)
        self._kernel.set_capabilities((Capability.KILL,))
        self._kernel.forbid_new_privileges()
        self._kernel.hide_memory()


def forget_handlers() -> None:
    """Let signals end this process as usual; a terminal that closes must not end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _streams(kernel: Kernel, owner: Owner, question: Enter) -> tuple[Streams, tuple[int, int, int]]:
    """The holder's side, and the three descriptors of the program."""
    if not question.terminal:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        inner = (stdin[0], stdout[1], stderr[1])
        return Pipes.of(stdin[1], stdout[0], stderr[0]), inner
    # The owner owns the terminal from the start and may open it again by its name.
    kernel.set_file_user(owner.account.pw_uid)
    try:
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        kernel.set_file_user(0)
    fcntl.ioctl(master, _UNLOCK, b"\0\0\0\0")
    slave = fcntl.ioctl(master, _PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    settings = termios.tcgetattr(slave)
    settings[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    terminal = Terminal(master)
    terminal.resize(question.rows, question.columns)
    return terminal, (slave, slave, slave)


def _leave(guests: Sequence[str]) -> None:
    """Remove the guests' folder once the last process has left it, or give up for this one."""
    until = time.monotonic() + _LEAVING_S
    while not all(leave_guests(each) for each in guests) and time.monotonic() < until:
        time.sleep(_LEAVING_PAUSE_S)


def _hear(progress: int, patience_s: float) -> EntryReport:
    """Read until the other side is closed, which exec does."""
    raw, until = b"", time.monotonic() + patience_s
    while (left_s := until - time.monotonic()) > 0 and len(raw) < _LARGEST_REPORT:
        if is_readable(progress, left_s):
            part = os.read(progress, _LARGEST_REPORT)
            if not part:
                return read_report(raw)
            raw += part
    return EntryReport(f"it did not start within {patience_s:g} s: a file system may hang", "", ())


def _message(started: StartedProgram) -> Started:
    held, entry = started.held, started.entry
    return Started(
        node=held.node,
        user=held.method.owner.account.pw_name,
        step=held.method.target.step,
        pid=started.shell.pid,
        directory=entry.directory,
        accounted=bool(held.method.guests),
        warnings=(*held.warnings, *entry.warnings),
    )


def close_others(needed: Collection[int]) -> None:
    """Close all descriptors but these. Standard error stays; the other two become /dev/null."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1):
        os.dup2(nothing, target)
    for each in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if each > 2 and each not in needed:
            with suppress(OSError):
                os.close(each)
