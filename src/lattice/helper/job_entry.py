"""Turns a fork of the helper into a program of the job's owner, inside the job. It never returns.

The order of the steps makes it safe:

    1  Join the job's control groups, while paths are this node's.
    2  Join its namespaces by descriptors opened before; then check the target again.
    3  Become the owner: groups, ids, no capability, no new privileges.
    4  Resolve names (directory, program) as the owner, with the owner's rights.

Between 2 and 4 the user may have built the file system. Nothing is resolved there with root's
rights: no library is loaded, no name resolved, no module imported.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import resource
import signal
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lattice.helper.privilege import Kernel, become
from lattice.helper.target import CHANGED, ProbeTarget

OOM_SCORE = 500
"""When the job's memory is full, the kernel kills the guest before the job's own work."""
_TOLD = 3
_NOT_RUN = 127
_FALLBACK_SHELL = "/bin/sh"
_PATH = b"/usr/local/bin:/usr/bin:/bin"
_SIGNALS = tuple(int(each) for each in signal.valid_signals())
_STALE = (b"LINES", b"COLUMNS")


class CanNotEnter(Exception):
    """Nothing was run; the text may be shown to the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Read before anything else: later the node's own files can't be read."""

    account: pwd.struct_passwd
    groups: tuple[int, ...]

    @classmethod
    def of(cls, account: pwd.struct_passwd) -> Owner:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        return cls(account=account, groups=tuple(groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to run, and its three standard descriptors."""

    session: str
    argv: tuple[str, ...]
    terminal: str
    streams: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryMethod:
    """How to enter. `at` is called with the name of each step, for tests."""

    kernel: Kernel
    target: ProbeTarget
    owner: Owner
    guests: Sequence[str]
    """Folders of the control groups to join."""
    bring_tools: Callable[[], str] | None = None
    """Mounts the requested tools and returns their path."""
    at: Callable[[str], None] = lambda _: None


def enter(way: EntryMethod, wish: Wish, told: int) -> NoReturn:
    """Run in a new process. It writes its progress to `told`; `read_told` parses that."""
    words = "it could not be started here"
    try:
        _enter(way, wish, told)
    except CanNotEnter as refusal:
        words = str(refusal)
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the helper's own code
        words += f" ({type(error).__name__})"
    for place in (told, _TOLD):  # its first number, or the one it was moved to
        with suppress(OSError):
            os.write(place, _line("!", words))
            break
    os._exit(_NOT_RUN)


def _enter(way: EntryMethod, wish: Wish, told: int) -> None:
    os.setsid()
    _forget_signals()
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    _join_groups(way.guests)
    way.at("before the namespaces")
    _join_namespaces(way)
    tools = way.bring_tools() if way.bring_tools is not None else ""
    way.at("before the owner")
    if not way.target.unchanged():
        raise CanNotEnter(CHANGED)
    if way.target.cgroup_namespace >= 0:
        # Last: inside it this node's control group paths can't be read any more.
        way.kernel.join_namespace(way.target.cgroup_namespace)
    become(way.kernel, way.owner.account, way.owner.groups)
    way.kernel.hide_memory()
    way.kernel.new_keyring()
    _go(way, told)
    environment = _environment(way, wish, tools)
    _place(wish.streams, told, highest)
    if wish.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _limit(way.target)
    os.umask(way.target.umask)
    _run(way.owner.account, wish, environment)


def _forget_signals() -> None:
    # exec resets handlers; ignored signals stay ignored.
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(target: ProbeTarget) -> None:
    """Set the job's own limits, up to the helper's own hard limits."""
    for kind, soft, hard in target.limits:
        with suppress(OSError, ValueError):
            most = _least(hard, resource.getrlimit(kind)[1])
            resource.setrlimit(kind, (_least(soft, most), most))


def _least(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return other if one == resource.RLIM_INFINITY else one
    return min(one, other)


def _join_groups(folders: Sequence[str]) -> None:
    for folder in folders:
        try:
            _write(f"{folder}/cgroup.procs", b"0")
        except OSError as error:
            words = f"the job's control group can't be joined ({errno.errorcode[error.errno or 0]})"
            raise CanNotEnter(words) from None
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", str(OOM_SCORE).encode())


def _write(path: str, text: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def _join_namespaces(way: EntryMethod) -> None:
    for each in way.target.namespaces:
        way.kernel.join_namespace(each)
    ours, theirs = Path("/").stat(), os.fstat(way.target.root)
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
        os.fchdir(way.target.root)
        os.chroot(".")


def _go(way: EntryMethod, told: int) -> None:
    """Change to the target's directory, or to home, or to `/`, as the owner."""
    has_own = way.target.directory >= 0
    if has_own:
        with suppress(OSError):
            os.fchdir(way.target.directory)
            os.write(told, _line("d", str(Path.cwd())))
            return
    for place in (way.owner.account.pw_dir, "/"):
        with suppress(OSError):
            os.chdir(place)
            os.write(told, _line("d", place))
            if has_own:
                words = f"The job's working directory can't be entered: {place}."
                os.write(told, _line("w", words))
            return


def _environment(way: EntryMethod, wish: Wish, tools: str) -> dict[bytes, bytes]:
    account = way.owner.account
    own = {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or _FALLBACK_SHELL,
        "LATTICE_SESSION": wish.session,
    }
    environment = {
        name: value
        for name, value in way.target.environment.items()
        if not (wish.terminal and name in _STALE)
    }
    environment |= {name.encode(): os.fsencode(value) for name, value in own.items()}
    environment.setdefault(b"PATH", _PATH)
    if wish.terminal:
        environment[b"TERM"] = wish.terminal.encode()
    if tools:
        environment[b"LATTICE_TOOLS"] = tools.encode()
        environment[b"PATH"] = tools.encode() + b"/bin:" + environment[b"PATH"]
    return environment


def _place(streams: Sequence[int], told: int, highest: int) -> None:
    """Set the three streams and `told`, which exec closes; close everything else."""
    base = max(highest, told, *streams) + 1
    for at, each in enumerate(streams):
        os.dup2(each, base + at)
    os.dup2(told, base + 3, inheritable=False)
    for target in range(3):
        os.dup2(base + target, target)
    os.dup2(base + 3, _TOLD, inheritable=False)
    os.closerange(_TOLD + 1, base + 4)


def _run(account: pwd.struct_passwd, wish: Wish, environment: dict[bytes, bytes]) -> None:
    if wish.argv:
        _run_command(wish.argv, environment)
    shell = account.pw_shell or _FALLBACK_SHELL
    for program in (shell, _FALLBACK_SHELL):
        name = "-" + program.rpartition("/")[2]
        with suppress(OSError):
            os.execve(program, [name], environment)  # noqa: S606 - the point of it
        os.write(_TOLD, _line("w", f"{program} can't be run inside this job."))
    raise CanNotEnter(f"neither {shell} nor {_FALLBACK_SHELL} can be run inside this job")


def _run_command(argv: tuple[str, ...], environment: dict[bytes, bytes]) -> NoReturn:
    program = os.fsencode(argv[0])
    folders = environment[b"PATH"].split(b":")
    places = [program] if b"/" in program else [each + b"/" + program for each in folders]
    fault = errno.ENOENT
    for place in places:
        try:
            os.execve(place, argv, environment)  # noqa: S606 - the point of it
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                fault = error.errno or fault
    raise CanNotEnter(f"{argv[0]} can't be run inside this job: {os.strerror(fault)}")


def _line(mark: str, words: str) -> bytes:
    return (mark + words.replace("\n", " ").replace("\0", " ")).encode(errors="replace") + b"\0"


@dataclass(frozen=True, slots=True)
class EntryReport:
    """What the process wrote to `told`."""

    fault: str
    """Why nothing runs; empty: it runs."""
    directory: str
    warnings: tuple[str, ...]


def read_told(raw: bytes) -> EntryReport:
    """Parse everything that the process wrote before its end."""
    lines = [each.decode(errors="replace") for each in raw.split(b"\0") if each]
    marked = [(each[:1], each[1:]) for each in lines]
    faults = [words for mark, words in marked if mark == "!"]
    places = [words for mark, words in marked if mark == "d"]
    if not places and not faults:
        faults = ["it was killed before it could start"]
    return EntryReport(
        fault=faults[0] if faults else "",
        directory=places[0] if places else "",
        warnings=tuple(words for mark, words in marked if mark == "w"),
    )
