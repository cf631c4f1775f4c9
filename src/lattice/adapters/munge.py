"""MUNGE, by its programs: `munge` for the caller, `unmunge` for the server. Imports little."""

from __future__ import annotations

import asyncio
import pwd
import re
import subprocess
from pathlib import Path

from lattice.base.errors import RateLimited, Unavailable

_TIMEOUT_S = 5.0
_TTL_S = 60
_LONGEST = 4096
_FIRST_OF_CREDENTIALS = 8
"""Statuses of `unmunge` from this one on mean the credential, lower ones munged itself."""
_UID = re.compile(r"^UID:\s+.*\((\d+)\)$", re.MULTILINE)
_FORM = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:", re.ASCII)
_AT_ONCE = 4
_MOST_WAITING = 100
_NOT_HERE = "Signing in by MUNGE needs the program munge and its service on this machine."


class BadCredential(ValueError):
    """The credential is not accepted; the text is the reason, for the log."""


def encoded(text: str, socket: str = "") -> str:
    """A credential of the caller for this text, good for a minute. Raises `Unavailable`."""
    try:
        done = _run("munge", socket, "--string", text, "--ttl", str(_TTL_S))
    except (OSError, subprocess.TimeoutExpired):
        raise Unavailable(_NOT_HERE, hint="Use a host of the cluster, or --flow device.") from None
    if done.returncode:
        reason = done.stderr.strip().removeprefix("munge: ")[:200]
        raise Unavailable(_NOT_HERE, hint=f"munge says: {reason}")
    return done.stdout.strip()


class MungeReader:
    """Decodes credentials by the local munged, which accepts each of them once."""

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = "" if socket is None else str(socket)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def read(self, credential: str) -> tuple[str, str]:
        """The Unix user who made it, and the text.

        Raises `BadCredential`, `RateLimited`, or `Unavailable` while munged does not answer.
        """
        if len(credential) > _LONGEST or not _FORM.fullmatch(credential):
            raise BadCredential("not the form of a MUNGE credential")
        if self._waiting >= _MOST_WAITING:
            raise RateLimited("Too many people sign in at once.", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(self._read, credential)
        finally:
            self._waiting -= 1

    def _read(self, credential: str) -> tuple[str, str]:
        # In a thread, the search for the name too: a directory service may be slow.
        done = self._decoded(credential)
        if done.returncode >= _FIRST_OF_CREDENTIALS:
            raise BadCredential(f"MUNGE credential with status {done.returncode}")
        head, _, text = done.stdout.partition("\n\n")
        uid = _UID.search(head)
        if done.returncode or uid is None:
            raise Unavailable(
                "munged does not answer the server.", hint="An administrator starts munge there."
            )
        try:
            return pwd.getpwuid(int(uid[1])).pw_name, text
        except KeyError:
            raise BadCredential(f"uid {uid[1]} has no name on the server") from None

    def _decoded(self, credential: str) -> subprocess.CompletedProcess[str]:
        try:
            return _run("unmunge", self._socket, text=credential)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = getattr(error, "strerror", None) or "no answer"
            raise Unavailable(
                f"unmunge: {reason}.", hint="An administrator starts munge beside the server."
            ) from None


def _run(
    program: str, socket: str, *options: str, text: str = ""
) -> subprocess.CompletedProcess[str]:
    named = [f"--socket={socket}"] if socket else []
    return subprocess.run(
        [program, *named, *options],
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )
