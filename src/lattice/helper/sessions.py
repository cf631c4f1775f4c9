"""The folder for reconnecting to holders: a socket for each, which only root can reach.

    sessions/3001/0123456789abcdef0123456789abcdef    the uid, the session's name

Nothing else of a session is stored on disk. A killed holder leaves a socket that does not answer.
Such sockets are removed when the helper starts, and when there is no more room.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lattice.helper.privilege import make_private_folder

MOST = 64
"""On a node."""
MOST_A_USER = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANSWER_S = 3.0

_ALONE = "recorded"
"""A folder of locks, which no user's folder is called."""
_MOST_ALONE = 64
"""From so many files on those of jobs without such a terminal are removed."""
_ALONE_S = 5.0
_ALONE_PAUSE_S = 0.05


class NoRoom(Exception):
    """No further session is possible now; the text may be shown."""


class HelperSessions:
    """The folder of sessions. Several children of the helper may use it, each as root."""

    def __init__(self, folder: Path, *, most: int = MOST, most_a_user: int = MOST_A_USER) -> None:
        """Create the folder. Raises `OSError`, and `ValueError` if others could change it."""
        make_private_folder(folder)
        self._folder = folder
        self._most = most
        self._most_a_user = most_a_user

    def claim(self, uid: int, session: str) -> tuple[socket.socket, int]:
        """A listening socket for this session, and a descriptor of its folder. Raises `NoRoom`."""
        with suppress(FileExistsError):
            (self._folder / str(uid)).mkdir(mode=0o700)
        folder = os.open(self._folder / str(uid), _FOLDER)
        try:
            with self._locked():
                self._find_room(uid, session)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    listener.bind(_reached(folder, session))
                    os.chmod(session, 0o600, dir_fd=folder)
                    listener.listen(4)
                except OSError:
                    listener.close()
                    raise
        except BaseException:
            os.close(folder)
            raise
        listener.setblocking(False)
        return listener, folder

    def claim_alone(self, job_id: int) -> int:
        """A descriptor that holds the one recorded terminal of a job. Raises `NoRoom`."""
        folder = self._folder / _ALONE
        folder.mkdir(mode=0o700, exist_ok=True)
        if len(_names(folder)) >= _MOST_ALONE:
            _remove_unused(folder)
        until_s = time.monotonic() + _ALONE_S
        while True:
            if (lock := _locked_file(folder / str(job_id))) is not None:
                return lock
            if time.monotonic() > until_s:
                raise NoRoom("A recorded terminal of this job has not ended yet.")
            time.sleep(_ALONE_PAUSE_S)

    def connect(self, uid: int, session: str) -> socket.socket:
        """Connect to the holder of that session. Raises `OSError` if there is none."""
        folder = os.open(self._folder / str(uid), _FOLDER)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(_ANSWER_S)
            try:
                connection.connect(_reached(folder, session))
            except OSError:
                connection.close()
                raise
        finally:
            os.close(folder)
        return connection

    def sweep(self) -> None:
        """Remove sockets without a listener."""
        for user in self._users():
            with suppress(OSError):
                folder = os.open(user, _FOLDER)
                try:
                    for name in _names(user):
                        if not _answers(folder, name):
                            with suppress(OSError):
                                os.unlink(name, dir_fd=folder)
                finally:
                    os.close(folder)

    def _find_room(self, uid: int, session: str) -> None:
        if not self._fault(uid, session):
            return
        self.sweep()
        if fault := self._fault(uid, session):
            raise NoRoom(fault)

    def _fault(self, uid: int, session: str) -> str:
        counts = {user.name: _names(user) for user in self._users()}
        mine = counts.get(str(uid), [])
        if session in mine:
            return "This session exists already."
        if len(mine) >= self._most_a_user:
            return f"You have {len(mine)} terminals on this node; no more are kept at once."
        if sum(map(len, counts.values())) >= self._most:
            return f"{self._most} terminals are open on this node; no more are kept at once."
        return ""

    def _users(self) -> list[Path]:
        return [each for each in self._folder.iterdir() if each.name.isdecimal()]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self._folder, _FOLDER)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _locked_file(path: Path) -> int | None:
    """A descriptor with the lock of this file; None if another process has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if not os.fstat(lock).st_nlink:
        # Removed since it was opened: the next one opens another file.
        os.close(lock)
        return None
    return lock


def _remove_unused(folder: Path) -> None:
    for name in _names(folder):
        with suppress(OSError):
            if (lock := _locked_file(folder / name)) is not None:
                try:
                    (folder / name).unlink()
                finally:
                    os.close(lock)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [each.name for each in folder.iterdir()]
    return []


def _answers(folder: int, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        # Connects and closes at once: a holder ignores a client that sends nothing.
        client.setblocking(False)
        try:
            client.connect(_reached(folder, name))
        except BlockingIOError:  # its queue is full, so a holder listens
            return True
        except OSError:
            return False
    return True


def _reached(folder: int, name: str) -> str:
    # A socket's address has at most 108 bytes, fewer than a path may have.
    return f"/proc/self/fd/{folder}/{name}"
