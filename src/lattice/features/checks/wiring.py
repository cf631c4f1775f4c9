"""Wires the feature: its service, and the loop that collects results."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.job_text import JobTexts
from lattice.features.checks.operations import CHECK_NODES, LIST_NODE_CHECKS
from lattice.features.checks.service.book import CheckBook
from lattice.features.checks.service.checks import CheckService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: CheckService) -> tuple[AnyBinding, ...]:
    return (
        CHECK_NODES.to(service.check),
        LIST_NODE_CHECKS.to(lambda _, asked: service.checks(asked.name)),
    )


def open_book(foundation: Foundation) -> CheckBook:
    """The results of checks, for this feature and for the health of nodes."""
    return CheckBook(foundation.state)


def wire(foundation: Foundation, book: CheckBook, texts: JobTexts | None) -> Wiring:
    """Return the feature's part of the server; `texts` is None if it stores no output."""
    service = CheckService(
        foundation.scheduler,
        foundation.gate,
        book,
        texts,
        foundation.clock,
        foundation.journal,
        foundation.limits,
    )
    loop = Loop("node checks", service.run, OnFailure.RESTART)
    return Wiring(bindings=bindings(service), loops=(loop,))
