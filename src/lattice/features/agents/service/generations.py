"""Which of a node's certificates is in use, and which are spent. Pure.

A renewal has the generation after that of the certificate that requested it. A generation is spent
as soon as a later one was used. It is not spent before: the answer may get lost, or the node may
crash before it uses the answer. So one certificate can have several successors of one generation.
Only the first of them in use can have successors, so two lines can't continue side by side.

A spent certificate that requests a renewal means that two parties hold certificates of one node.

The invariant: **`used` never falls, and one generation has one certificate that was used.** Every
commit that changes the record expects its revision.
"""

from __future__ import annotations

from dataclasses import replace

from lattice.domain.peer import Issued, PeerIdentity
from lattice.features.agents.service.records import Certificate


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
