"""A server's time, signed for one challenge of one node: the trusted time of a helper. Pure.

A helper draws a random nonce and notes the time; a server signs it with its own time. The signature
is younger than the nonce, so its time is not older than the challenge. It has its own domain
prefix: a signature of a grant can't pass as one of a time, nor the other way round. Its form is
that of a grant: `KEY.PAYLOAD.SIGNATURE`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from lattice.base.strictjson import read_fields, read_json

_DOMAIN = b"lattice time 1\n"
_NONCE = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LARGEST_TIME = 2**53


class BadTime(Exception):
    """Not a signed time, or not the answer to this challenge. The text is for the log."""


def is_nonce(text: str) -> bool:
    """True if a helper could have drawn this nonce."""
    return _NONCE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTime:
    """The signed content."""

    place: str
    """The node that asked, by its certificate."""
    nonce: str
    """64 random hex digits, drawn by the helper."""
    time_ms: int
    """The server's time, in milliseconds since 1970."""

    def payload(self) -> bytes:
        """The signed bytes, without the domain prefix."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


def to_sign(payload: bytes) -> bytes:
    return _DOMAIN + payload


def read_payload(payload: bytes) -> SignedTime:
    """Parse a time; every field must be present, of its type, and no other. Raises `BadTime`."""
    try:
        signed = read_fields(read_json(payload), SignedTime)
    except ValueError as error:
        raise BadTime(f"not a time: {error}") from None
    if not is_nonce(signed.nonce) or not 0 < signed.time_ms < _LARGEST_TIME:
        raise BadTime("no question, or no time")
    return signed
