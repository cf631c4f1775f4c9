"""Which accounts the helper acts for: people with a login shell, never a system account.

Root, SlurmUser and the server's own account are refused, whatever their ids are. A grant that names
one of them is a mistake or was stolen.
"""

from __future__ import annotations

import pwd
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeAlias

from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer, Outcome

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")
_UID_MIN = 1000
_UMASK = 0o022
_NOBODY = 65534
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NO_LOGIN = frozenset({"nologin", "false", "true", "sync", "halt", "shutdown", "git-shell"})
_RESTRICTED = frozenset({"rbash", "rksh", "rzsh", "rsh", "lshell", "scponly"})
_BOURNE = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "busybox"})
SHELL = "/bin/sh"


class AccountRefused(Exception):
    """The helper does not act for this account. The text may be shown."""


class VerbRefused(Exception):
    """Nothing was done; `answer` has the reason."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(outcome=outcome, message=message)


Passed: TypeAlias = tuple[Answer, Sequence[int]]
"""An answer, and the descriptors that are passed with it."""
_P = ParamSpec("_P")


def answers_refusals(verb: Callable[_P, Passed]) -> Callable[_P, Passed]:
    """Turn a `VerbRefused` into its answer."""

    @wraps(verb)
    def answered(*args: _P.args, **kwargs: _P.kwargs) -> Passed:
        try:
            return verb(*args, **kwargs)
        except VerbRefused as refusal:
            return refusal.answer, ()

    return answered


@dataclass(frozen=True, slots=True)
class LoginDefaults:
    """The settings of `/etc/login.defs` that are used here."""

    uid_min: int = _UID_MIN
    umask: int = _UMASK
    path: str = _PATH

    @classmethod
    def read(cls, file: Path = Path("/etc/login.defs")) -> LoginDefaults:
        """Missing or malformed settings get their defaults. `uid_min` is never below 1000."""
        settings = _settings(file, r"^\s*(\w+)\s+(.+?)\s*$")
        uid_min, umask = settings.get("UID_MIN", ""), settings.get("UMASK", "")
        path = settings.get("ENV_PATH", "").removeprefix("PATH=")
        return cls(
            max(int(uid_min), _UID_MIN) if uid_min.isdecimal() else _UID_MIN,
            int(umask, 8) & 0o777 if re.fullmatch(r"[0-7]{1,4}", umask) else _UMASK,
            path if path.startswith("/") else _PATH,
        )


def slurm_users(file: Path) -> frozenset[str]:
    """The users that Slurm's daemons run as, from slurm.conf; always includes root and `slurm`."""
    settings = _settings(file, r"^\s*(\w+)\s*=\s*(\S+)")
    named = {
        value for name, value in settings.items() if name.lower() in {"slurmuser", "slurmduser"}
    }
    return frozenset({"root", "slurm", *(each.partition("(")[0] for each in named)})


def _settings(file: Path, pattern: str) -> dict[str, str]:
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    lines = (re.match(pattern, line.partition("#")[0]) for line in text.splitlines())
    return {found[1]: found[2] for found in lines if found}


@dataclass(frozen=True, slots=True)
class Accounts:
    """Finds accounts and refuses those that are not a person's."""

    defaults: LoginDefaults
    refused: frozenset[str]
    """Refused by name, whatever their ids are."""
    refused_uids: frozenset[int] = frozenset()
    shells_file: Path = field(default=Path("/etc/shells"))

    def find(self, name: str) -> pwd.struct_passwd:
        """Return the account if it is a person's. Raises `AccountRefused`."""
        if not _USER.fullmatch(name):
            raise AccountRefused("The caller has no Unix user name.")
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            raise AccountRefused(f"There is no account {name} on the submit host.") from None
        if fault := self._fault(name, account):
            raise AccountRefused(f"Lattice does not act for {name}: {fault}.")
        return account

    def _fault(self, name: str, account: pwd.struct_passwd) -> str:
        if account.pw_name != name:
            return "the account has another name"
        uids = {0, *self.refused_uids}
        if account.pw_uid in uids or account.pw_gid == 0 or name in self.refused:
            return "it is root or belongs to Slurm or Lattice"
        if account.pw_uid < self.defaults.uid_min or account.pw_uid == _NOBODY:
            return "it is a system account"
        shell = Path(account.pw_shell).name
        if shell in _NO_LOGIN or shell in _RESTRICTED:
            return "it may not log in"
        if account.pw_shell and account.pw_shell not in self._shells():
            return "its login shell is not among the allowed ones (/etc/shells)"
        return ""

    def _shells(self) -> frozenset[str]:
        try:
            lines = self.shells_file.read_text(errors="replace").splitlines()
        except OSError:
            lines = ["/bin/sh", "/bin/bash"]
        return frozenset(line.strip() for line in lines if line.startswith("/"))


def job_owner(name: str) -> pwd.struct_passwd | None:
    """The account of a job's owner, with any shell; None for root and unknown names."""
    try:
        account = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    if account.pw_name != name or 0 in (account.pw_uid, account.pw_gid):
        return None
    return account


def granted_owner(
    grant: Grant, descriptors: Sequence[int], within_s: int, *, most_descriptors: int = 0
) -> pwd.struct_passwd:
    """The owner of the granted job. Sets an alarm that ends this process. Raises `VerbRefused`."""
    if len(descriptors) > most_descriptors or grant.job_id <= 0:
        allowed = "one descriptor at most" if most_descriptors else "no descriptors"
        raise VerbRefused(Outcome.BAD_QUESTION, f"a job, and {allowed}")
    account = job_owner(grant.user)
    if account is None:
        raise VerbRefused(Outcome.ACCOUNT_REFUSED, "not the user of a job")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(within_s)
    return account


def login_shell(account: pwd.struct_passwd) -> tuple[str, str]:
    """The shell that reads the profile, and a note if it is not the user's own shell."""
    own = account.pw_shell or SHELL
    if Path(own).name in _BOURNE:
        return own, ""
    return SHELL, f"Your login shell {own} is not one the gate can use: {SHELL} read the profile."


def uids_of(names: Iterable[str]) -> frozenset[int]:
    """The uids of those names that exist."""
    found = set()
    for name in names:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    return frozenset(found)
