"""The keys of agents in the state store. Values are JSON; unknown fields are ignored.

Keys::

    enrolments/SHA256       a token that was not used yet
    trust/revoked/NODE      certificates up to this moment are refused
    trust/quarantine/NODE   all are refused until an administrator restores the node
    trust/certificate/NODE  the newest certificate, and which generation was used last
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

ENROLMENTS = "enrolments/"
TRUST = "trust/"
REVOKED = "trust/revoked/"
QUARANTINE = "trust/quarantine/"
CERTIFICATE = "trust/certificate/"


class BadTrustRecord(Exception):
    """The value of a key can't be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentToken:
    """A token that was not used yet. Times are Unix seconds."""

    node: str
    expires: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    at: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    at: float
    why: str
    spent: bool = False
    """True if a spent certificate requested a renewal. Then the node must enrol again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The newest certificate. `generation` is the highest so far."""

    serial: str
    issued: float
    expires: float
    generation: int = 0
    used: int = 0
    """The newest generation that was used; earlier ones are spent."""
    used_serial: str = ""


R = TypeVar("R", EnrolmentToken, Revocation, Quarantine, Certificate)


def written(record: EnrolmentToken | Revocation | Quarantine | Certificate) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def read(value: bytes, kind: type[R]) -> R:
    """Parse the value of a key; raises `BadTrustRecord`."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadTrustRecord(str(error)) from None


def token_key(token: str) -> str:
    """The key of a token. It has the digest, so the store never holds the token."""
    return ENROLMENTS + hashlib.sha256(token.encode()).hexdigest()


def at(seconds: float) -> datetime:
    """Unix seconds as a UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)
