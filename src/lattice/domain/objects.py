"""The port of the object store: keys to bytes, written once, read in ranges. Pure.

Only the server makes keys, from escaped parts (`key_of`). Text from outside can't shape a key.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import quote, unquote

LONGEST_PART = 200
"""The limit of an escaped part: S3 ends keys at 1 024 bytes, file systems end names at 255."""

LONGEST_KEY = 900
"""S3's limit, less a site's prefix before every key."""

_BEGINNING = re.compile(r"([A-Za-z0-9_%-][A-Za-z0-9_%.-]*)?")


class NoObject(Exception):
    """No object has this key."""


class BadKeyPart(ValueError):
    """A text that can't be a part of a key."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectInfo:
    key: str
    size_bytes: int
    modified: datetime


class ObjectStore(Protocol):
    """S3, or a folder. Every method raises `Unavailable` when the store does not answer.

    Keys must come from `key_of`; others are refused with `BadKeyPart`. No key is the folder of
    another one, because a file system could not hold both.
    """

    async def put_new(self, key: str, body: bytes) -> bool:
        """Write if the key is new; False if it exists. Durable when it returns True."""

    async def put(self, key: str, body: bytes) -> None:
        """Write, and replace an existing object."""

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes from `begin` up to `end`, or to the object's end. Raises `NoObject`."""

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        """The last bytes of an object, and its whole size. Raises `NoObject`."""

    def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects with keys that begin with `prefix` and sort after `after`, in order."""

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """The prefixes one level below, in order: `a/b/` for `a/`.

        `prefix` is empty or ends with `/`. A folder without objects may be listed: SeaweedFS keeps
        the folders of deleted objects.
        """

    async def delete(self, key: str) -> None:
        """Remove it; a missing object is no error."""


def escaped(part: str) -> str:
    """One part of a key: letters, digits, `-`, `_` and inner dots stay, all else is percent-coded.

    `unescaped` is the inverse. Raises `BadKeyPart`.
    """
    try:
        text = quote(part, safe="").replace("~", "%7E")
    except UnicodeEncodeError as half:  # a lone surrogate
        raise BadKeyPart("a part of a key must be text") from half
    if text.startswith("."):
        text = "%2E" + text[1:]
    if text.endswith("."):
        text = text[:-1] + "%2E"
    if not text or len(text) > LONGEST_PART:
        raise BadKeyPart(f"{len(part)} characters can't be a part of a key")
    return text


def unescaped(part: str) -> str:
    """The inverse of `escaped`."""
    return unquote(part, errors="strict")


def key_of(*parts: str) -> str:
    """A key of these parts. Raises `BadKeyPart`."""
    key = "/".join(map(escaped, parts))
    if not key or len(key) > LONGEST_KEY:
        raise BadKeyPart(f"{len(parts)} parts of {len(key)} characters can't be a key")
    return key


def check_key(key: str) -> None:
    """Raise `BadKeyPart` for what `key_of` would not have made. Stores check every key."""
    if len(key) > LONGEST_KEY or not all(map(_is_escaped, key.split("/"))):
        raise BadKeyPart(f"{key[:60]!r} is no key")


def check_prefix(prefix: str) -> None:
    """The same for the beginning of a key, which may end within a part."""
    *whole, last = prefix.split("/")
    sound = all(map(_is_escaped, whole)) and _BEGINNING.fullmatch(last)
    if len(prefix) > LONGEST_KEY or not sound:
        raise BadKeyPart(f"{prefix[:60]!r} begins no key")


def _is_escaped(part: str) -> bool:
    try:
        return escaped(unescaped(part)) == part
    except ValueError:
        return False
