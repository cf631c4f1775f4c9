"""What is shared, over a state in memory, with shares always current."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.features.sharing.model import ShareTerms
from lattice.features.sharing.service.reads import WrittenReads
from lattice.features.sharing.service.sharing import SHARES, SharedAllocations
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView


@dataclass(frozen=True, slots=True)
class SharingParts:
    """What the features that find or read allocations are given."""

    shares: SharedAllocations
    notes: WrittenReads
    terms: ShareTerms


def sharing_parts(state: InMemoryStateStore) -> SharingParts:
    """As the server would make them."""
    view = InMemoryStateView(state, SHARES)
    return SharingParts(
        SharedAllocations(state, view, state.clock), WrittenReads(state, state.clock), ShareTerms()
    )
