"""What features are wired on, in memory."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import structlog

from lattice.access.limits import OpenSlot, Questions, Sessions
from lattice.base.clock import Clock, SystemClock
from lattice.domain.lock import NoLocks
from lattice.domain.vcluster import Vclusters
from lattice.foundation.foundation import Foundation, LoggedJournal
from lattice.foundation.own_metrics import OwnMetrics
from tests.fakes.in_memory_administration import InMemoryAdministration
from tests.fakes.in_memory_gate import InMemoryGate
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_tenants import InMemoryTenantAccounts
from tests.fakes.presences import NoPresences
from tests.fakes.sharing import sharing_parts
from tests.fakes.supervised import SupervisedLoops

_Silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
SILENT_LOG = structlog.wrap_logger(None, wrapper_class=_Silent)


class FreeSlot:
    """A place that is never taken away."""

    async def wait_gone(self) -> None:
        await asyncio.Event().wait()

    async def client_lost(self) -> None: ...

    async def client_back(self) -> None: ...

    async def release(self) -> None: ...


class NoLimits:
    """The port `CallerLimits`: everything is granted."""

    async def open(self, sub: str, kind: Sessions, session: str) -> OpenSlot:  # noqa: ARG002
        return FreeSlot()

    async def ask(self, sub: str, kind: Questions) -> None: ...


def in_memory_foundation(clock: Clock | None = None, **parts: Any) -> Foundation:
    """A foundation of fakes; `parts` are used instead of the fakes of these names."""
    clock = clock or SystemClock()
    state = parts.pop("state", None) or InMemoryStateStore(clock)
    scheduler = parts.pop("scheduler", None) or InMemoryScheduler(clock)
    sharing = parts.pop("sharing", None) or sharing_parts(state)
    own_metrics = parts.pop("own_metrics", None) or OwnMetrics()
    nothing: Any = None
    made: dict[str, Any] = {
        "log": SILENT_LOG,
        "own_metrics": own_metrics,
        "supervisor": SupervisedLoops(clock),
        "journal": LoggedJournal(SILENT_LOG, own_metrics),
        "replica": "r1",
        "replicas": lambda: ("r1",),
        "operator": InMemoryNodeOperator(scheduler) if isinstance(scheduler, InMemoryScheduler)
        else nothing,
        "tenants": InMemoryTenantAccounts(scheduler) if isinstance(scheduler, InMemoryScheduler)
        else nothing,
        "administration": InMemoryAdministration(),
        "accounting": None,
        "job_files": nothing,
        "views": Vclusters(),
        "signed_state": state,
        "shares": sharing.shares,
        "reads": sharing.notes,
        "locks": NoLocks(),
        "limits": NoLimits(),
        "presences": NoPresences(),
        "gate": InMemoryGate(scheduler) if isinstance(scheduler, InMemoryScheduler) else None,
    } | parts  # fmt: skip
    return Foundation(clock=clock, scheduler=scheduler, state=state, **made)
