"""Which of a node's certificates is in use, and which are spent. Pure.

A renewal has the generation after that of the certificate that asked for it. A generation is spent
once a later one was used, and not before: an answer may get lost, and a node may crash between the
answer and the first use. So one certificate can have several successors, of one generation. Only
the one that is used first has successors of its own: no two lines can go on side by side.

A spent certificate that asks for a renewal means that two hold certificates of one node.

The invariant: **`used` never falls, and one generation has one certificate that was used.** Whoever
changes the record commits with its revision as a fence.
"""

from __future__ import annotations

from dataclasses import replace

from lattice.domain.peer import Issued, PeerIdentity
from lattice.features.agents.service.records import Certificate


def is_spent(record: Certificate | None, peer: PeerIdentity) -> bool:
    """True if a later certificate of the node was used, or another one of its generation.

    One without a generation was made elsewhere, and ends by its own date alone.
    """
    if record is None or not peer.generation:
        return False
    if peer.generation == record.used:
        return record.used_serial != serial_of(peer)
    return peer.generation < record.used


def next_generation(record: Certificate | None, peer: PeerIdentity | None = None) -> int:
    """That of the next certificate to be signed, for `peer` or for an enrolment.

    An enrolment, and a certificate made elsewhere, begin above all that were signed before.
    """
    if peer is not None and peer.generation:
        return peer.generation + 1
    return record.generation + 1 if record else 1


def with_signed(
    record: Certificate | None, issued: Issued, generation: int, now_s: float
) -> Certificate:
    """The record once this certificate is signed."""
    return Certificate(
        serial=f"{issued.serial:x}",
        issued=now_s,
        expires=issued.not_after.timestamp(),
        generation=max(generation, record.generation if record else 0),
        used=record.used if record else 0,
        used_serial=record.used_serial if record else "",
    )


def with_used(record: Certificate | None, peer: PeerIdentity) -> Certificate | None:
    """The record once this certificate was used; None if that changes nothing."""
    used = record.used if record else 0
    if peer.generation <= used:
        return None
    serial = serial_of(peer)
    if record is None or peer.generation > record.generation:
        # Its signing was not noted: the store was away.
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
    """As records have it."""
    return f"{peer.serial:x}"
