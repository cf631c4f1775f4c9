"""A server's time, signed for one question of one node: what a helper believes about time. Pure.

A helper draws a word at random and remembers when; a server signs it with its own time. The
signature was made after the word was drawn, so the time in it is not older than the question. It
carries a mark of its own: no signature of a grant can be one of a time, nor the other way round.

Written as a grant is: `KEY.PAYLOAD.SIGNATURE`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields

from lattice.base.strictjson import read_json

_DOMAIN = b"lattice time 1\n"
_NONCE = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LARGEST_TIME = 2**53


class BadTime(Exception):
    """Not a signed time, or not the answer to this question. The text is for the log."""


def is_nonce(text: str) -> bool:
    """Whether a helper could have drawn this."""
    return _NONCE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTime:
    """What a server says."""

    place: str
    """The node that asked, by its certificate."""
    nonce: str
    """64 hex digits at random, drawn by the helper."""
    time_ms: int
    """The server's time, in milliseconds since 1970."""

    def payload(self) -> bytes:
        """The bytes that are signed, without the mark that goes before them."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


def to_sign(payload: bytes) -> bytes:
    """What the signature covers."""
    return _DOMAIN + payload


def read_payload(payload: bytes) -> SignedTime:
    """The time inside, every field of the right type and none besides. Raises `BadTime`."""
    try:
        told = read_json(payload)
    except ValueError:
        raise BadTime("not a time") from None
    kinds = {each.name: str(each.type) for each in fields(SignedTime)}
    if not isinstance(told, dict) or told.keys() != kinds.keys():
        raise BadTime("not the fields of a time")
    for name, kind in kinds.items():
        if type(told[name]) is not (int if kind == "int" else str):
            raise BadTime(f"{name} is of the wrong type")
    if not is_nonce(told["nonce"]) or not 0 < told["time_ms"] < _LARGEST_TIME:
        raise BadTime("no question, or no time")
    return SignedTime(**told)
