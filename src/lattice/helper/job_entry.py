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

import _thread
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

from lattice.helper.jobgroups import is_of_guests
from lattice.helper.privilege import Kernel, become
from lattice.helper.target import CHANGED, ProbeTarget

OOM_SCORE = 500
"""When the job's memory is full, the kernel kills the guest before the job's own work."""
_REPORT = 3
_NOT_RUN = 127
_FALLBACK_SHELL = "/bin/sh"
_PATH = b"/usr/local/bin:/usr/bin:/bin"
_SIGNALS = tuple(int(each) for each in signal.valid_signals())
_STALE = (b"LINES", b"COLUMNS")
_V2 = "0::"
"""Begins the line of the unified hierarchy in `/proc/PID/cgroup`."""


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


def enter(method: EntryMethod, wish: Wish, report: int) -> NoReturn:
    """Run in a new process. It writes its progress to `report`; `read_report` parses that."""
    reason = "it could not be started here"
    try:
        _enter(method, wish, report)
    except CanNotEnter as refusal:
        reason = str(refusal)
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the helper's own code
        reason += f" ({type(error).__name__})"
    for descriptor in (report, _REPORT):  # its first number, or the one it was moved to
        with suppress(OSError):
            os.write(descriptor, _line("!", reason))
            break
    os._exit(_NOT_RUN)


def _enter(method: EntryMethod, wish: Wish, report: int) -> None:
    os.setsid()
    _forget_signals()
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    _join_groups(method.guests)
    method.at("before the namespaces")
    method.target.join(method.kernel)
    tools = method.bring_tools() if method.bring_tools is not None else ""
    method.at("before the owner")
    if not method.target.unchanged():
        raise CanNotEnter(CHANGED)
    if method.target.cgroup_namespace >= 0:
        # Last: inside it this node's control group paths can't be read any more.
        method.kernel.join_namespace(method.target.cgroup_namespace)
    become(method.kernel, method.owner.account, method.owner.groups)
    method.kernel.hide_memory()
    method.kernel.new_keyring()
    _go(method, report)
    environment = _environment(method, wish, tools)
    _set_streams(wish.streams, report, highest)
    if wish.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _limit(method.target)
    os.umask(method.target.umask)
    _run(method.owner.account, wish, environment)


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
            _join(folder)
        except OSError as error:
            reason = (
                f"the job's control group can't be joined ({errno.errorcode[error.errno or 0]})"
            )
            raise CanNotEnter(reason) from None
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", str(OOM_SCORE).encode())


def _join(folder: str) -> None:
    """v1 can move the thread that writes, and this process has no other.

    Moving a whole process makes the kernel wait for every CPU (`Foresight`). v2 knows only that.
    """
    with suppress(FileNotFoundError):
        _write(f"{folder}/tasks", b"0")
        return
    if is_of_guests(folder):
        # Slurm has not needed it yet, or the guest before has just left (`leave_guests`).
        with suppress(FileExistsError):
            os.mkdir(folder, 0o755)  # noqa: PTH102
    _write(f"{folder}/cgroup.procs", b"0")


def _write(path: str, text: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def _go(method: EntryMethod, report: int) -> None:
    """Change to the target's directory, or to home, or to `/`, as the owner."""
    has_own = method.target.directory >= 0
    if has_own:
        with suppress(OSError):
            os.fchdir(method.target.directory)
            os.write(report, _line("d", str(Path.cwd())))
            return
    for directory in (method.owner.account.pw_dir, "/"):
        with suppress(OSError):
            os.chdir(directory)
            os.write(report, _line("d", directory))
            if has_own:
                warning = f"The job's working directory can't be entered: {directory}."
                os.write(report, _line("w", warning))
            return


def _environment(method: EntryMethod, wish: Wish, tools: str) -> dict[bytes, bytes]:
    account = method.owner.account
    own = {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or _FALLBACK_SHELL,
        "LATTICE_SESSION": wish.session,
    }
    environment = {
        name: value
        for name, value in method.target.environment.items()
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


def _set_streams(streams: Sequence[int], report: int, highest: int) -> None:
    """Set the three streams and `report`, which exec closes; close everything else."""
    base = max(highest, report, *streams) + 1
    for at, each in enumerate(streams):
        os.dup2(each, base + at)
    os.dup2(report, base + 3, inheritable=False)
    for target in range(3):
        os.dup2(base + target, target)
    os.dup2(base + 3, _REPORT, inheritable=False)
    os.closerange(_REPORT + 1, base + 4)


def _run(account: pwd.struct_passwd, wish: Wish, environment: dict[bytes, bytes]) -> None:
    if wish.argv:
        _run_command(wish.argv, environment)
    shell = account.pw_shell or _FALLBACK_SHELL
    for program in (shell, _FALLBACK_SHELL):
        name = "-" + program.rpartition("/")[2]
        with suppress(OSError):
            os.execve(program, [name], environment)  # noqa: S606 - the point of it
        os.write(_REPORT, _line("w", f"{program} can't be run inside this job."))
    raise CanNotEnter(f"neither {shell} nor {_FALLBACK_SHELL} can be run inside this job")


def _run_command(argv: tuple[str, ...], environment: dict[bytes, bytes]) -> NoReturn:
    program = os.fsencode(argv[0])
    folders = environment[b"PATH"].split(b":")
    candidates = [program] if b"/" in program else [each + b"/" + program for each in folders]
    fault = errno.ENOENT
    for path in candidates:
        try:
            os.execve(path, argv, environment)  # noqa: S606 - the point of it
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                fault = error.errno or fault
    raise CanNotEnter(f"{argv[0]} can't be run inside this job: {os.strerror(fault)}")


def _line(mark: str, text: str) -> bytes:
    return (mark + text.replace("\n", " ").replace("\0", " ")).encode(errors="replace") + b"\0"


@dataclass(frozen=True, slots=True)
class EntryReport:
    """What the process wrote to `report`."""

    fault: str
    """Why nothing runs; empty: it runs."""
    directory: str
    warnings: tuple[str, ...]


def read_report(raw: bytes) -> EntryReport:
    """Parse everything that the process wrote before its end."""
    lines = [each.decode(errors="replace") for each in raw.split(b"\0") if each]
    marked = [(each[:1], each[1:]) for each in lines]
    faults = [text for mark, text in marked if mark == "!"]
    directories = [text for mark, text in marked if mark == "d"]
    if not directories and not faults:
        faults = ["it was killed before it could start"]
    return EntryReport(
        fault=faults[0] if faults else "",
        directory=directories[0] if directories else "",
        warnings=tuple(text for mark, text in marked if mark == "w"),
    )


class Foresight:
    """Moves this process to the control group it is already in, while the helper does other work.

    The first move in a while makes the kernel wait for an RCU grace period on every CPU. That takes
    5 to 20 ms, most of the time of entering a job. Moves soon after do not wait. So the helper
    starts a move that changes nothing while it searches for the job's process. With v1 a move need
    not wait (`_join`), so this does nothing there.
    """

    def __init__(
        self, proc: Path = Path("/proc"), control_groups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        file = _own(proc, control_groups)
        self._file = file if file is not None and _names_me(file) else None

    def begin(self) -> None:
        """Return at once. A thread waits for the move and touches nothing else."""
        if self._file is not None:
            with suppress(RuntimeError):
                _thread.start_new_thread(_move_here, (self._file,))


def _own(proc: Path, control_groups: Path) -> str | None:
    """The file of its group in the only hierarchy; None if there are others, which are v1's."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    if len(lines) != 1 or not lines[0].startswith(_V2):
        return None
    return f"{control_groups}{lines[0].removeprefix(_V2)}/cgroup.procs"


def _names_me(file: str) -> bool:
    """Whether this process is in the group; in a namespace, `/proc` may show other paths."""
    try:
        return str(os.getpid()) in Path(file).read_text().split()
    except OSError:
        return False


def _move_here(file: str) -> None:
    with suppress(OSError):
        _write(file, b"0")
