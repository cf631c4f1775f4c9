"""The keys of agents in the state store, and which of a node's certificates are spent.

Values are JSON; unknown fields are ignored.

Keys::

    enrolments/SHA256       a token that was not used yet, or that is for several nodes
    enrolments/SHA256/NODE  a node that has used the latter
    trust/revoked/NODE      certificates up to this moment are refused
    trust/quarantine/NODE   all are refused until an administrator restores the node
    trust/certificate/NODE  the newest certificate, and which generation was used last

A renewal has the generation after that of the certificate that requested it. A generation is spent
as soon as a later one was used. It is not spent before: the answer may get lost, or the node may
crash before it uses the answer. So one certificate can have several successors of one generation.
Only the first of them in use can have successors, so two lines can't continue side by side.

A spent certificate that requests a renewal means that two parties hold certificates of one node.

The invariant: **`used` never falls, and one generation has one certificate that was used.** Every
commit that changes the record expects its revision.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from lattice.domain.peer import Issued, PeerIdentity

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
    """One node, or a set such as `n[1-500]`."""
    expires: float
    by: str
    again: bool = False
    """A node may use it more than once."""
    networks: tuple[str, ...] = ()
    """Where it may be used from; empty: from anywhere."""


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


def is_spent(record: Certificate | None, peer: PeerIdentity) -> bool:
    """True if a later certificate of the node, or another of its generation, was used.

    A certificate without a generation was made elsewhere. Only its own date ends it.
    """
    if record is None or not peer.generation:
        return False
    if peer.generation == record.used:
        return record.used_serial != serial_of(peer)
    return peer.generation < record.used


def next_generation(record: Certificate | None, peer: PeerIdentity | None = None) -> int:
    """The generation of the next certificate, for `peer` or for an enrolment.

    An enrolment, and a certificate made elsewhere, start above all generations signed before.
    """
    if peer is not None and peer.generation:
        return peer.generation + 1
    return record.generation + 1 if record else 1


def with_signed(
    record: Certificate | None, issued: Issued, generation: int, now_s: float
) -> Certificate:
    """The record after this certificate was signed."""
    return Certificate(
        serial=f"{issued.serial:x}",
        issued=now_s,
        expires=issued.not_after.timestamp(),
        generation=max(generation, record.generation if record else 0),
        used=record.used if record else 0,
        used_serial=record.used_serial if record else "",
    )


def with_used(record: Certificate | None, peer: PeerIdentity) -> Certificate | None:
    """The record after this certificate was used; None if that changes nothing."""
    used = record.used if record else 0
    if peer.generation <= used:
        return None
    serial = serial_of(peer)
    if record is None or peer.generation > record.generation:
        # The store was away when this certificate was signed, so it has no record of that.
        return Certificate(
            serial=serial,
            issued=peer.not_before.timestamp(),
            expires=peer.not_after.timestamp(),
            generation=peer.generation,
            used=peer.generation,
            used_serial=serial,
        )
    return replace(record, used=peer.generation, used_serial=serial)


def serial_of(peer: PeerIdentity) -> str:
    """The serial in hexadecimal, as in records."""
    return f"{peer.serial:x}"
