"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.features.locks.operations import CREATE_LOCK, DELETE_LOCK, LIST_LOCKS
from lattice.features.locks.service import LockBook, LockService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: LockService) -> tuple[AnyBinding, ...]:
    return (
        LIST_LOCKS.to(lambda actor, _: service.locks(actor)),
        CREATE_LOCK.to(service.lock),
        DELETE_LOCK.to(service.unlock),
    )


def wire(foundation: Foundation, book: LockBook) -> Wiring:
    service = LockService(book, foundation.scheduler, foundation.clock, foundation.journal)
    return Wiring(bindings=bindings(service))
