"""The agent's managed SSH path to the guest of a slice: one fixed command, one answer.

The guest belongs to the job's owner. So the agent verifies the guest's host key, offers one key,
forwards nothing, runs nothing locally, and reads a bounded answer within a strict time. The guest's
`authorized_keys` forces the command (`lattice.base.portable.guest_program`). The agent's own words
only say whether it asks for the facts of a start.

Each call is one process of OpenSSH in its own process group. It is killed on every way out. Under
`timeout` it also ends if the agent itself was killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.base.text import inert

STARTED = b"lattice-slice "
"""The first line of the program in the guest."""
_MOST_BYTES = 512 * 1024
_MOST_ERROR_BYTES = 8 * 1024
_LONGEST_TEXT = 200
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_HOST_KEY = re.compile(
    r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{40,2000}={0,3})(?: .*)?",
    re.ASCII,
)
_ALGORITHMS = {"ssh-rsa": "rsa-sha2-512,rsa-sha2-256"}
_SSH_PORT, _LAST_PORT = 22, 65_535
_CONNECTION_FAILED = 255

NO_PROGRAM = "OpenSSH's client is not installed on the node"
CHANGED = "the host key of the guest is not the one in the agent's configuration"
REFUSED_KEY = "the guest does not accept the agent's key"
KEY_UNREADABLE = "the agent can't read its key for the guest"
UNREACHABLE = "the guest can't be reached"
REFUSED = "the guest has no SSH server that answers"
SILENT = "the SSH server of the guest did not answer in {:g} s"
SLOW = "the guest took longer than {:g} s for its report"
BROKEN = "the guest's command failed"
TOO_LONG = "the guest's answer is too long"
_MESSAGES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", CHANGED),
    ("Host key verification failed", CHANGED),
    ("no matching host key type found", CHANGED),
    ("Permission denied", REFUSED_KEY),
    ("Too many authentication failures", REFUSED_KEY),
    ("Connection refused", REFUSED),
    ("Connection closed by", REFUSED),
    ("Connection reset by", REFUSED),
    ("kex_exchange_identification", REFUSED),
    ("Connection timed out", UNREACHABLE),
    ("No route to host", UNREACHABLE),
    ("Network is unreachable", UNREACHABLE),
    ("Could not resolve hostname", UNREACHABLE),
)
"""What OpenSSH prints, and what it means."""


class BadGuest(ValueError):
    """The address of a guest is not valid; the text is the reason."""


class GuestUnavailable(Exception):
    """The guest gave no report: the reason, and the text of what failed."""

    def __init__(self, reason: str, last_error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_error = last_error


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestAddress:
    """How to reach one guest. Raises `BadGuest`."""

    name: str
    host: str
    port: int
    user: str
    key_file: Path
    host_key: str
    timeout_s: float

    def __post_init__(self) -> None:
        for value, pattern, what in (
            (self.name, _NAME, "name"),
            (self.host, _HOST, "address"),
            (self.user, _USER, "user"),
            (self.host_key, _HOST_KEY, "host key (`ssh-ed25519 AAAA…`)"),
        ):
            if not pattern.fullmatch(value):
                raise BadGuest(f"{inert(value)[:80]!r} is no valid {what}")
        if not 0 < self.port <= _LAST_PORT:
            raise BadGuest(f"{self.port} is no valid port")


def host_and_port(address: str) -> tuple[str, int]:
    """`10.0.8.2`, `10.0.8.2:22`, `[fd00::2]:22`. Raises `BadGuest`."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", address)
    if found is None:
        raise BadGuest(f"{inert(address)[:80]!r} is no valid address")
    return found[1] or found[2], int(found[3] or _SSH_PORT)


class SshGuest:
    """One guest. `report` may be called again after it has returned."""

    def __init__(self, address: GuestAddress, folder: Path) -> None:
        """`folder`: where the file with the guest's host key is written."""
        self.address = address
        self._known_hosts = folder / f"{address.name}.known_hosts"

    async def report(self, *, start: bool = False) -> bytes:
        """What the program in the guest printed. Raises `GuestUnavailable`.

        `start` asks for the facts of the machine too.
        """
        within_s = self.address.timeout_s
        try:
            self._write_host_key()
            process = await asyncio.create_subprocess_exec(
                *self.arguments(start=start),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise GuestUnavailable(NO_PROGRAM) from None
        except OSError as error:
            raise GuestUnavailable(BROKEN, _short(error.strerror or str(error))) from None
        assert process.stdout is not None
        assert process.stderr is not None
        printed, complained = bytearray(), bytearray()
        try:
            async with asyncio.timeout(within_s):
                await asyncio.gather(
                    _collect(process.stdout, printed, _MOST_BYTES),
                    _collect(process.stderr, complained, _MOST_ERROR_BYTES),
                )
                code = await process.wait()
        except TimeoutError:
            text = SLOW if printed.startswith(STARTED) else SILENT
            raise GuestUnavailable(text.format(within_s), _last_line(complained)) from None
        finally:
            await _end(process)
        if len(printed) >= _MOST_BYTES:
            raise GuestUnavailable(TOO_LONG)
        if code:
            raise _failure(code, complained)
        first, _, report = bytes(printed).partition(b"\n")
        if not first.startswith(STARTED):
            raise GuestUnavailable("the guest's command is not Lattice's program", _short_of(first))
        return report

    def arguments(self, *, start: bool = False) -> tuple[str, ...]:
        """The command line of OpenSSH."""
        address = self.address
        kind = address.host_key.split()[0]
        seconds = max(1, round(address.timeout_s))
        options = (
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self._known_hosts}",
            "GlobalKnownHostsFile=/dev/null",
            "UpdateHostKeys=no",
            "CheckHostIP=no",
            f"HostKeyAlias={address.name}",
            f"HostKeyAlgorithms={_ALGORITHMS.get(kind, kind)}",
            f"IdentityFile={address.key_file}",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "PreferredAuthentications=publickey",
            "PubkeyAuthentication=yes",
            "ForwardAgent=no",
            "ForwardX11=no",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "ProxyCommand=none",
            "ControlMaster=no",
            "ControlPath=none",
            "RequestTTY=no",
            "EscapeChar=none",
            "LogLevel=ERROR",
            f"ConnectTimeout={seconds}",
            "ConnectionAttempts=1",
            f"ServerAliveInterval={seconds}",
            "ServerAliveCountMax=1",
        )
        bounded = shutil.which("timeout", path=os.defpath)
        ahead = (bounded, "--kill-after=1", str(seconds + 1)) if bounded else ()
        settings = (word for option in options for word in ("-o", option))
        asked = "lattice-slice start" if start else "lattice-slice"
        login = ("-l", address.user, "-p", str(address.port), "--", address.host, asked)
        return (*ahead, "ssh", "-F", "/dev/null", "-T", *settings, *login)

    def _write_host_key(self) -> None:
        """Written at every call: a file that somebody changed must not decide."""
        kind, key = self.address.host_key.split()[:2]
        self._known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._known_hosts.with_suffix(".partial")
        partial.write_text(f"{self.address.name} {kind} {key}\n", "ascii")
        partial.replace(self._known_hosts)


async def _collect(stream: asyncio.StreamReader, into: bytearray, most: int) -> None:
    """Read until the end; what is beyond the bound is dropped."""
    while piece := await stream.read(64 * 1024):
        into += piece[: most - len(into)]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and everything that it started, and reap it."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            process.kill()
    # Also while this call is cancelled: an unreaped process would stay.
    await asyncio.shield(process.wait())


def _failure(code: int, complained: bytearray) -> GuestUnavailable:
    text = complained.decode("utf-8", "replace")
    last_error = _last_line(complained)
    if "Load key" in text and "Permission denied (" in text:
        return GuestUnavailable(KEY_UNREADABLE, _short(text.splitlines()[0]))
    reason = next((reason for part, reason in _MESSAGES if part in text), "")
    if reason:
        return GuestUnavailable(reason, last_error)
    if code == _CONNECTION_FAILED:
        return GuestUnavailable(UNREACHABLE, last_error)
    return GuestUnavailable(BROKEN, last_error or f"it ended with {code}")


def _last_line(text: bytearray) -> str:
    lines = [each for each in text.decode("utf-8", "replace").splitlines() if each.strip()]
    return _short(lines[-1]) if lines else ""


def _short_of(text: bytes) -> str:
    return _short(text.decode("utf-8", "replace"))


def _short(text: str) -> str:
    return inert(text.strip())[:_LONGEST_TEXT]
