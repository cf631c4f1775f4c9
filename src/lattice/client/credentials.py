"""Tokens on disk: for each cluster one file that is read and one that is moved.

    NAME.json            access token, its expiry, its issuer: read by all, replaced whole
    OTHER.json           for another replica of the same cluster: where the sign-in is (`same_as`)
    NAME.refresh         the refresh token, while no process is using it
    NAME.refresh.CLAIM   the same file, moved aside by the one process that is renewing

A refresh token may be used once. Providers that rotate them take a second use for theft and end the
whole sign-in. The home may be mounted on many hosts. There `flock` is local, and `lockf` needs a
lock daemon that sites turn off. Two processes that both find a lock file stale could break it
twice. So there is no lock: a process that uses the token first *moves its file to a name of its
own*.

A rename is atomic on every file system that a home is on, NFS included. Only one of many processes
can move a given name. A claim of a dead process is taken over by moving it again, which again only
one can do.

All files are 0600 in a folder of 0700, checked at each read.
"""

# Pathlib costs a short command more than all of this:
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH116, PTH123, PTH208

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import quote

from lattice.base.errors import ConfigurationError
from lattice.client.credential import SAME_AS, Credential, replica_of_signin

_STALE_S = 60.0


class RefreshClaim:
    """The refresh token, held by this process alone until it is finished or given back."""

    def __init__(self, folder: CredentialFolder, path: str, token: str) -> None:
        self._folder = folder
        self._path = path
        self.token = token

    def held(self) -> bool:
        """True while no process has taken it over and no new sign-in made it void."""
        return os.path.exists(self._path)

    def give_back(self) -> None:
        """Return the unused token, so that another process may try."""
        with suppress(FileNotFoundError):
            os.rename(self._path, self._folder.refresh_path)

    def finish(self, credential: Credential, refresh: str | None) -> None:
        """Store the new tokens, unless a new sign-in came in between."""
        if not self.held():
            return
        self._folder.write(self._folder.path, credential.document())
        if refresh is None or refresh == self.token:
            self.give_back()
            return
        self._folder.write(self._folder.refresh_path, {"refresh_token": refresh})
        self.drop()

    def drop(self) -> None:
        """Remove the token, which is worthless now."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)


class CredentialFolder:
    """The tokens of one cluster, for any of its replicas, in any order."""

    def __init__(self, folder: str, *servers: str) -> None:
        self._folder = folder
        self._servers = servers
        self._home = servers[0]

    @property
    def path(self) -> str:
        """The file of the access token."""
        return self._path(self._home)

    @property
    def refresh_path(self) -> str:
        """The file of the refresh token, while no process is using it."""
        return self.path.removesuffix(".json") + ".refresh"

    def _path(self, server: str) -> str:
        # The whole address, so that no two servers share a name; https is the default.
        return f"{self._folder}/{quote(server.removeprefix('https://'), safe='')}.json"

    def _locate(self) -> dict[str, object] | None:
        """Find the replica with the sign-in, and return the content of its file."""
        found: dict[str, dict[str, object] | None] = {}

        def document_of(server: str) -> dict[str, object] | None:
            document = found[server] = self._read(self._path(server))
            # An unreadable file counts as present, and `read` reports that it is damaged.
            return {"": ""} if document == {} else document

        self._home = replica_of_signin(self._servers, document_of)
        document = found[self._home]
        return None if document is None or SAME_AS in document else document

    def read(self) -> Credential | None:
        """The access token, if there is one. Raises `ConfigurationError`."""
        document = self._locate()
        if document is None:
            return None
        credential = Credential.of(document)
        if credential is None:
            raise ConfigurationError(
                f"{self.path} is damaged", hint="Run `lattice login` to write it anew."
            )
        return credential

    def save(self, credential: Credential, refresh: str | None) -> None:
        """Store a new sign-in in place of the old one; renewals of the old one become void."""
        self.delete()
        self.write(self.path, credential.document())
        if refresh is not None:
            self.write(self.refresh_path, {"refresh_token": refresh})
        for server in self._servers:
            if server != self._home:
                self.write(self._path(server), {SAME_AS: self._home})

    def delete(self) -> None:
        """Remove everything."""
        with suppress(ConfigurationError):
            self._locate()
        home = self._home
        for server in dict.fromkeys((*self._servers, home)):
            self._home = server
            for path in (self.refresh_path, *self._claims(), self.path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self._home = home

    def renewable(self) -> bool:
        """True if there is a refresh token, in use or not."""
        self._locate()
        return os.path.exists(self.refresh_path) or any(self._claims())

    def claim(self) -> RefreshClaim | None:
        """Take the refresh token; None if there is none or another process is using it."""
        self._locate()
        for path in (self.refresh_path, *self._claims()):
            if path != self.refresh_path and not self._abandoned(path):
                continue
            mine = f"{self.refresh_path}.{_pid_namespace_id()}~{os.getpid()}~{os.urandom(4).hex()}"
            try:
                # Touched before it is moved: a new claim must never look old.
                os.utime(path)
                os.rename(path, mine)
            except OSError:
                # Another process moved it first; or we did, if NFS lost the reply and retried.
                if not os.path.exists(mine):
                    continue
            document = self._read(mine)
            token = document.get("refresh_token") if document else None
            if isinstance(token, str):
                return RefreshClaim(self, mine, token)
            os.unlink(mine)
        return None

    def _claims(self) -> Iterator[str]:
        prefix = self.refresh_path.rpartition("/")[2] + "."
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        yield from (f"{self._folder}/{name}" for name in names if name.startswith(prefix))

    def _abandoned(self, path: str) -> bool:
        parts = path[len(self.refresh_path) + 1 :].split("~")
        if len(parts) == 3 and parts[0] == _pid_namespace_id() and parts[1].isdigit():
            try:
                os.kill(int(parts[1]), 0)
            except ProcessLookupError:
                return True
            except OSError:
                pass
        try:
            return self._file_server_time() - os.stat(path).st_mtime > _STALE_S
        except OSError:
            return False

    def _file_server_time(self) -> float:
        # By the clock that stamped the claim: hosts and their file server may differ by minutes.
        probe = f"{self._folder}/.clock.{os.urandom(4).hex()}"
        try:
            handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:
            return time.time()
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
            with suppress(OSError):
                os.unlink(probe)

    def _read(self, path: str) -> dict[str, object] | None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"Can't read {path}: {error.strerror}") from None
        with open(handle, "rb") as file:
            _refuse_exposed(path, os.fstat(handle), stat.S_ISREG, 0o600)
            _refuse_exposed(self._folder, os.stat(self._folder), stat.S_ISDIR, 0o700)
            content = file.read(1 << 20)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def write(self, path: str, document: dict[str, object]) -> None:
        """Replace a file atomically: it is never half written, nor empty after a crash."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        _refuse_exposed(self._folder, os.stat(self._folder), stat.S_ISDIR, 0o700)
        temporary = f"{self._folder}/.new.{os.getpid()}.{os.urandom(4).hex()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _pid_namespace_id() -> str:
    """An id of the boot of this machine and this pid namespace, within which a pid is unique.

    A host name is not enough: two containers may share it, and the home, but not their pids.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read(8)
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return f"{os.urandom(4).hex()}-unknown"
    return f"{quote(os.uname().nodename, safe='')}-{boot}-{space}"


def _refuse_exposed(
    path: str, facts: os.stat_result, is_kind: Callable[[int], bool], mode: int
) -> None:
    problem = ""
    if not is_kind(facts.st_mode):
        problem = "is not what it should be"
    elif facts.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif stat.S_IMODE(facts.st_mode) & 0o077:
        problem = "can be opened by others"
    if problem:
        raise ConfigurationError(
            f"{path} {problem} and is not used",
            hint=f"Make it yours alone: chmod {mode:o} {path}. If others may have read it, run "
            "`lattice logout` and `lattice login` after.",
        )
