"""Health: a word on the server, one on its agreed state, and nothing secret."""

from __future__ import annotations

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import Unavailable
from lattice.domain.state import StateView
from lattice.features.health.model import Health
from lattice.features.health.service import HealthService
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock


def service(clock: ManualClock, state: StateView | None, note: str = "") -> HealthService:
    return HealthService(version="1", scheduler=InMemoryScheduler(clock), state=state, note=note)


async def test_a_server_without_state_is_well() -> None:
    health = await service(ManualClock(), None).health()
    assert health == Health(status="ok", version="1", state="none", note="")


@pytest.mark.spec("TRY-1", "OPS-1")
async def test_what_people_should_know_is_told_until_something_is_worse() -> None:
    clock = ManualClock()
    store = InMemoryStateStore(clock)
    view = WatchedStateView(store, "cluster", clock)
    health = service(clock, view, "No high availability.")
    assert (await health.health()).state == "away"  # nothing heard yet
    await view.refresh()
    assert await health.health() == Health(
        status="ok", version="1", state="ok", note="No high availability."
    )
    store.away = True
    with pytest.raises(Unavailable):
        await view.refresh()
    told = await health.health()
    assert (told.status, told.state) == ("degraded", "away")
    assert "does not answer" in told.note
