"""The server's part of sharing, put together: the shares in sight, and where reads are noted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.state import StateStore
from lattice.features.sharing.model import ShareTerms
from lattice.features.sharing.service.reads import WrittenReads
from lattice.features.sharing.service.shares import SHARES, SharedAllocations
from lattice.server.journal import LoggedJournal
from lattice.server.sharesection import SharingSection


@dataclass(frozen=True, slots=True)
class SharingParts:
    """What the features that look up or read allocations are given."""

    shares: SharedAllocations
    notes: WrittenReads
    terms: ShareTerms


@asynccontextmanager
async def open_sharing(
    store: StateStore,
    section: SharingSection,
    clock: Clock,
    journal: LoggedJournal,
    supervisor: Supervisor,
) -> AsyncIterator[SharingParts]:
    """Keeps the shares in sight until the context ends."""
    view = WatchedStateView(store, SHARES, clock)
    async with supervisor.running(Loop("state shares", view.run, OnFailure.RESTART)):
        yield SharingParts(
            SharedAllocations(store, view, clock),
            WrittenReads(store, clock, journal),
            ShareTerms(timedelta(days=section.usual_days), timedelta(days=section.longest_days)),
        )
