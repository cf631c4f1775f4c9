"""What is agreed about agents, by key. Values are JSON; fields of later versions are passed over.

enrolments/SHA256      a token that was not used yet
trust/revoked/NODE     certificates up to this moment are refused
trust/quarantine/NODE  all are refused until an administrator has looked
trust/certificate/NODE the newest one signed, and which generation was used last
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


class BadRecord(Exception):
    """A value under one of the keys that is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An enrolment that may still happen. Moments are Unix seconds."""

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
    """True if a spent certificate asked for another: none from before may come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The newest one signed. `generation` is the highest so far."""

    serial: str
    issued: float
    expires: float
    generation: int = 0
    used: int = 0
    """The newest generation that was used: those before it are spent."""
    used_serial: str = ""


R = TypeVar("R", Token, Revocation, Quarantine, Certificate)


def written(record: Token | Revocation | Quarantine | Certificate) -> bytes:
    """The value of a key."""
    return msgspec.json.encode(record)


def read(value: bytes, kind: type[R]) -> R:
    """The record under a key; raises `BadRecord`."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(str(error)) from None


def token_key(token: str) -> str:
    """Where a token is kept, which only its holder can tell."""
    return ENROLMENTS + hashlib.sha256(token.encode()).hexdigest()


def at(seconds: float) -> datetime:
    """Unix seconds as a moment."""
    return datetime.fromtimestamp(seconds, UTC)
