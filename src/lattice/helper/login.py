"""Runs one program as a user, in the environment of a login, and reads its output.

If the program needs the profile, the user's login shell reads it and then executes the program.
Otherwise nothing of the user's runs. The profile's input is empty, and its output is not part of
the answer. The program's three streams wait on other descriptors until it starts. So the profile's
output can't be mistaken for the program's, and a profile that reads can't consume the script.

Slurm passes the limits and the umask of this process on to the job. So the limits stay as they are,
and the umask is the login's.
"""

from __future__ import annotations

import os
import pwd
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lattice.helper.account import LoginDefaults, login_shell
from lattice.helper.privilege import Kernel, become

MOST_OUTPUT_BYTES = 16 * 1024
_NOISE_BYTES = 1024
_LAST_READS = 16
# dash supports descriptors of one digit only, and profiles may use the low ones.
_IN, _OUT, _ERR = 7, 8, 9
_BECOME = f'exec "$0" "$@" <&{_IN} >&{_OUT} 2>&{_ERR} {_IN}<&- {_OUT}>&- {_ERR}>&-'
_NO_DIRECTORY, _NOT_THE_USER, _NO_SHELL = b"d", b"u", b"s"


class DirectoryRefused(Exception):
    """The user can't enter the directory in which the program was to run."""


class NotTheUser(Exception):
    """The process could not become the user: nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and for which user. `argv[0]` is an absolute path that the helper chose."""

    account: pwd.struct_passwd
    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str = ""
    directory_required: bool = False
    stdin: int = -1
    """A descriptor, or -1 for none."""
    with_profile: bool = True
    """Whether the login shell reads the user's profile first."""
    most_output_bytes: int = MOST_OUTPUT_BYTES
    """The rest of what it writes is dropped."""


@dataclass(frozen=True, slots=True)
class LoginEnded:
    """The result. `code` is None if the program was killed for taking too long."""

    code: int | None
    out: str
    err: str
    noise: str
    """The end of the profile's output."""
    notes: tuple[str, ...]


def run(kernel: Kernel, defaults: LoginDefaults, program: Program, timeout_s: float) -> LoginEnded:
    """Run it to its end or until `timeout_s`; kills every process it leaves."""
    kernel.adopt_orphans()
    shell, word = login_shell(program.account) if program.with_profile else ("", "")
    out, err, noise, report = (os.pipe() for _ in range(4))
    pid = os.fork()
    if pid == 0:
        streams = (program.stdin, out[1], err[1], noise[1], report[1])
        _be_the_program(kernel, defaults, program, shell, streams)
    for pipe in (out, err, noise, report):
        os.close(pipe[1])
    try:
        code, read = _hear(pid, (out[0], err[0], noise[0]), timeout_s, program.most_output_bytes)
        marks = _marks(report[0])
    finally:
        for pipe in (out, err, noise, report):
            os.close(pipe[0])
        _end_all()
    if _NOT_THE_USER in marks or _NO_SHELL in marks:
        raise NotTheUser("the process could not become the user")
    if _NO_DIRECTORY in marks and program.directory_required:
        raise DirectoryRefused(program.directory)
    notes = [word] if word else []
    if _NO_DIRECTORY in marks:
        asked = program.directory or program.account.pw_dir
        notes.append(f"{asked} can't be entered on the submit host; submitted from elsewhere.")
    texts = [raw.decode(errors="replace") for raw in read]
    return LoginEnded(code, texts[0], texts[1], texts[2], tuple(notes))


def _be_the_program(
    kernel: Kernel,
    defaults: LoginDefaults,
    program: Program,
    shell: str,
    streams: tuple[int, int, int, int, int],
) -> NoReturn:
    report, parent = streams[4], os.getppid()
    mark = _NOT_THE_USER
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        become(kernel, program.account)
        kernel.die_with_parent()
        if os.getppid() != parent:
            os._exit(126)
        mark = _NO_SHELL
        _go(program, report)
        os.umask(defaults.umask)
        _set_streams(streams)
        environment = _environment(defaults, program)
        if not program.with_profile:
            _put_at_once()
            os.execve(program.argv[0], list(program.argv), environment)  # noqa: S606
        argv = [shell, "-l", "-c", _BECOME, *program.argv]
        os.execve(shell, argv, environment)  # noqa: S606 - the point of it
    except BaseException:  # noqa: BLE001 - nothing may unwind into the helper's own code
        with suppress(OSError):
            os.write(report, mark)
    os._exit(126)


def _go(program: Program, report: int) -> None:
    # As the user, never before: root can enter directories that the user can't.
    wished = [program.directory] if program.directory else []
    for directory in (*wished, program.account.pw_dir, "/"):
        try:
            os.chdir(directory)
        except OSError:
            os.write(report, _NO_DIRECTORY)
            if program.directory_required:
                os._exit(126)
        else:
            return


def _set_streams(streams: tuple[int, int, int, int, int]) -> None:
    nothing = os.open("/dev/null", os.O_RDWR)
    stdin, out, err, noise, report = streams
    # Through high numbers, so that no source is overwritten before it is copied.
    high = [os.dup2(each, 64 + at) for at, each in enumerate((nothing, noise, noise))]
    high += [os.dup2(nothing if stdin < 0 else stdin, 67), os.dup2(out, 68), os.dup2(err, 69)]
    os.dup2(report, 70, inheritable=False)
    for target, source in zip((0, 1, 2, _IN, _OUT, _ERR), high, strict=True):
        os.dup2(source, target)
    os.dup2(70, 10, inheritable=False)
    os.closerange(3, _IN)
    os.closerange(11, _largest_descriptor())


def _put_at_once() -> None:
    """What `_BECOME` does after a shell has read the profile."""
    for target, source in enumerate((_IN, _OUT, _ERR)):
        os.dup2(source, target)
        os.close(source)


def _largest_descriptor() -> int:
    return max((int(each.name) for each in Path("/proc/self/fd").iterdir()), default=1024) + 1


def _environment(defaults: LoginDefaults, program: Program) -> dict[str, str]:
    account = program.account
    return {
        "PATH": defaults.path,
        "LANG": "C.UTF-8",
        **program.environment,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
    }


def _hear(
    pid: int, pipes: tuple[int, int, int], timeout_s: float, most_bytes: int
) -> tuple[int | None, tuple[bytes, bytes, bytes]]:
    """The exit code, the limited beginnings of out and err, and the end of the noise."""
    deadline = time.monotonic() + timeout_s
    held = dict.fromkeys(pipes, b"")
    code: int | None = None
    with selectors.DefaultSelector() as selector:
        for number in pipes:
            os.set_blocking(number, False)
            selector.register(number, selectors.EVENT_READ)
        while code is None and time.monotonic() < deadline:
            # A pipe that a background process holds open must not delay the answer.
            for key, _ in selector.select(0.02):
                if not _take(key.fd, held, pipes[2], most_bytes):
                    selector.unregister(key.fd)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
        for number in pipes:
            # Limited: a background process may continue to write.
            for _ in range(_LAST_READS):
                if not _take(number, held, pipes[2], most_bytes):
                    break
    return code, (held[pipes[0]], held[pipes[1]], held[pipes[2]])


def _marks(report: int) -> bytes:
    os.set_blocking(report, False)
    try:
        return os.read(report, 16)
    except BlockingIOError:  # it hangs before exec, and the timeout ends it
        return b""


def _take(number: int, held: dict[int, bytes], noise: int, most_bytes: int) -> bool:
    """False at the end, or when no data is available."""
    try:
        piece = os.read(number, 65536)
    except BlockingIOError:
        return False
    if number == noise:
        held[number] = (held[number] + piece)[-_NOISE_BYTES:]
    else:
        held[number] = (held[number] + piece)[:most_bytes]
    return bool(piece)


def _end_all() -> None:
    """Kill what is left: the program itself, and background processes of a profile."""
    for _ in range(100):
        for child in _children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    me = os.getpid()
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/self/task/{me}/children").read_text().split()]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text(errors="replace")
                if int(stat.rpartition(")")[2].split()[1]) == me:
                    found.append(int(entry.name))
    return found
