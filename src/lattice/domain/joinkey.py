"""A join key: one line with all that a node needs to enrol. Pure.

It names the servers, the authority that signed their certificate, and the token. It is as secret as
the token.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

import msgspec

_MARK = "lattice-join-1."
_LONGEST = 64 * 1024


class BadJoinKey(ValueError):
    """The text is no join key; its message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinKey:
    servers: tuple[str, ...]
    """The ports for services, `host:port`."""
    token: str = field(repr=False)
    ca: str = ""
    """Authorities in PEM; empty: those that the system trusts."""


def written(key: JoinKey) -> str:
    """The line for people to copy."""
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_join_key(text: str) -> JoinKey:
    """Parse the line. Raises `BadJoinKey`."""
    text = text.strip()
    if not text.startswith(_MARK) or len(text) > _LONGEST:
        raise BadJoinKey(f"is no join key: one begins with {_MARK}")
    body = text.removeprefix(_MARK)
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.json.decode(raw, type=JoinKey)
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        raise BadJoinKey("is cut short or changed: copy the whole line") from None
