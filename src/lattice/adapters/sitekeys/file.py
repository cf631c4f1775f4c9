"""The site's keys in a file that the server alone can read.

Each line has a name and 64 hex digits. The last key wraps; all unwrap. A rotation adds a line, and
needs no restart: the file is read for each question.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.sealed import BadSealed, DataKey, open_part, seal_part
from lattice.domain.site_keys import WrappedKey

_WITHIN_S = 5.0
_MOST_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_NO_ID = bytes(16)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class BadKeyFile(ValueError):
    """The file can't be used; the text says why."""


def read_key_file(path: Path) -> dict[str, bytes]:
    """The keys by name, in the order of the file. Raises `BadKeyFile` and `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadKeyFile("is no regular file")
        if found.st_uid not in {0, os.geteuid()}:
            raise BadKeyFile(f"belongs to uid {found.st_uid}")
        if found.st_mode & _OTHERS:
            raise BadKeyFile(f"can be read by others (mode {stat.S_IMODE(found.st_mode):04o})")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BadKeyFile("is too large")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        # No part of the line goes into the text of an error: it is a secret.
        name, _, digits = line.partition(" ")
        if not _NAME.fullmatch(name) or not _HEX.fullmatch(digits.strip()):
            raise BadKeyFile(f"has no name and 64 hex digits in line {number}")
        if name in keys:
            raise BadKeyFile(f"names {name} twice")
        keys[name] = bytes.fromhex(digits.strip())
    if not keys:
        raise BadKeyFile("has no key")
    return keys


class FileSiteKeys:
    """The port `SiteKeys`."""

    def __init__(self, path: Path, within_s: float = _WITHIN_S) -> None:
        self._path = path
        self._within_s = within_s

    async def newest(self) -> str:
        return list(await self._keys())[-1]

    async def wrap(self, secret: bytes, bound: bytes) -> WrappedKey:
        keys = await self._keys()
        name = list(keys)[-1]
        return WrappedKey(name, seal_part(DataKey(_NO_ID, keys[name]), bound, secret))

    async def unwrap(self, wrapped: WrappedKey, bound: bytes) -> bytes:
        key = (await self._keys()).get(wrapped.site_key)
        if key is None:
            raise Unavailable(
                f"The key file of the site has no key {wrapped.site_key[:64]!r}.",
                hint=f"An administrator puts it back into {self._path}.",
            )
        try:
            return open_part(DataKey(_NO_ID, key), bound, wrapped.secret)
        except BadSealed:
            raise changed_key() from None

    async def _keys(self) -> dict[str, bytes]:
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.to_thread(read_key_file, self._path)
        except TimeoutError:
            reason = f"does not answer within {self._within_s:g} s"
        except BadKeyFile as error:
            reason = str(error)
        except OSError as error:
            reason = f"can't be read: {error.strerror}"
        raise Unavailable(
            f"The key file of the site {reason}.",
            hint=f"An administrator checks {self._path} on the server; its mode is 0600.",
        )


def changed_key() -> DataUnavailable:
    """The error for a wrapped key that does not open."""
    return DataUnavailable(
        "A wrapped data key was changed, or belongs to something else.",
        hint="An administrator restores the agreed state from a backup.",
    )
