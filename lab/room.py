"""Where a process of the lab runs: which namespaces, which control group, which environment.

A room turns a plain command into the command line that enters it. Namespaces are entered with
`nsenter`, never `ip netns exec`: that one remounts /sys and hides the control groups.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.cgroup import ControlGroup
from lab.command import LabError, run

# The shell joins the control groups before anything else is started, so nothing escapes them.
_JOIN = 'for group in $1; do echo $$ >"$group" || exit 125; done; shift; exec "$@"'

SERVICE_USERS = frozenset({"lattice", "lattice-agent"})
"""Accounts whose processes never need a capability, not even one to be gained."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Room:
    """The surroundings of a process; `run` and `popen` are for commands, `Process` for daemons."""

    group: ControlGroup
    environment: Mapping[str, str]
    enter: Callable[[], Sequence[str]] = field(default=tuple)
    """The words that enter the namespaces; asked each time, for they name a live process."""
    forks: bool = False
    """Entering a pid namespace forks: the process meant is then the child of the one started."""

    def argv(
        self, argv: Sequence[str], *, user: str | None = None, cwd: str | None = None
    ) -> list[str]:
        groups = " ".join(str(file) for file in self.group.procs_files)
        return [
            *("/bin/sh", "-c", _JOIN, "lab-room", groups),
            *self.enter(),
            *become(user),
            *(("env", "-C", cwd) if cwd else ()),
            *argv,
        ]

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        return run(
            self.argv(argv, user=user, cwd=cwd),
            env={**self.environment, **(env or {})},
            input=input,
            timeout_s=timeout_s,
            check=check,
            shown=argv,
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(argv, user=user, cwd=cwd),
            env={**self.environment, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
        )


def become(user: str | None) -> tuple[str, ...]:
    """The words that drop root for an account of this machine, groups included."""
    if user is None:
        return ()
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise LabError(f"there is no account {user}") from None
    words = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups")
    # As the units of a site do for what faces the network.
    bare = ("--bounding-set=-all", "--no-new-privs") if user in SERVICE_USERS else ()
    return (*words, *bare, "--")
