"""The server's part of sharing over a state in memory, with shares always in sight."""

from __future__ import annotations

from lattice.features.sharing.model import ShareTerms
from lattice.features.sharing.service.reads import WrittenReads
from lattice.features.sharing.service.shares import SHARES, SharedAllocations
from lattice.server.sharing import SharingParts
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView


def sharing_parts(state: InMemoryStateStore) -> SharingParts:
    """As the server would make them."""
    view = InMemoryStateView(state, SHARES)
    return SharingParts(
        SharedAllocations(state, view, state.clock), WrittenReads(state, state.clock), ShareTerms()
    )
