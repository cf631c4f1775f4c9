"""Health and readiness: a word on the server and each engine, and nothing secret."""

from __future__ import annotations

import httpx2
import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import Unavailable
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.state import StateView
from lattice.features.health.model import EngineHealth
from lattice.features.health.service.engines import EngineWatch
from lattice.features.health.service.health import HealthService
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.server import composed

OK, NONE = EngineHealth(state="ok"), EngineHealth(state="none", reason="not configured")


def service(
    clock: ManualClock,
    state: StateView | None,
    note: str = "",
    *,
    scheduler: InMemoryScheduler | None = None,
    accounting: str = "",
) -> HealthService:
    return HealthService(
        version="1",
        scheduler=scheduler or InMemoryScheduler(clock),
        engines=EngineWatch(None, None, clock),
        state=state,
        note=note,
        accounting=lambda: accounting,
    )


async def test_a_server_without_state_is_well() -> None:
    health = await service(ManualClock(), None).health()
    assert (health.status, health.version, health.state, health.note) == ("ok", "1", "none", "")
    assert (health.engines.slurm, health.engines.accounting) == (OK, OK)
    assert (health.engines.objects, health.engines.metrics) == (NONE, NONE)


@pytest.mark.spec("TRY-1", "OPS-1")
async def test_what_people_should_know_is_told_until_something_is_worse() -> None:
    clock = ManualClock()
    store = InMemoryStateStore(clock)
    view = WatchedStateView(store, "cluster", clock)
    health = service(clock, view, "No high availability.")
    assert (await health.health()).state == "away"  # nothing heard yet
    assert not (await health.readiness()).ready
    await view.refresh()
    found = await health.health()
    assert (found.status, found.state, found.note) == ("ok", "ok", "No high availability.")
    assert (await health.readiness()).ready
    store.away = True
    with pytest.raises(Unavailable):
        await view.refresh()
    told = await health.health()
    assert (told.status, told.state) == ("degraded", "away")
    assert "does not answer" in told.note
    readiness = await health.readiness()
    assert readiness.ready, "it serves what it knows"
    assert readiness.engines.state == EngineHealth(state="away", reason="does not answer")


@pytest.mark.spec("ALLOC-7")
async def test_a_server_that_never_read_slurm_is_not_ready_and_names_it_without_an_address() -> (
    None
):
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock)
    scheduler.down = True
    found = await service(clock, None, scheduler=scheduler).readiness()
    assert not found.ready
    assert found.engines.slurm == EngineHealth(state="away", reason="Slurm has not answered yet")
    scheduler.down = False
    assert (await service(clock, None, scheduler=scheduler).readiness()).ready
    scheduler.down = True
    clock.advance(60)
    later = service(clock, None, scheduler=scheduler, accounting="refused at dbd.example.com:6819")
    readiness, health = await later.readiness(), await later.health()
    assert readiness.ready
    assert readiness.engines.slurm.reason == "slurmctld does not answer"
    assert readiness.engines.accounting.reason == "slurmdbd does not answer"
    assert health.status == "degraded"
    assert "example.com" not in repr((readiness, health))


class Answering(InMemoryMetricStore):
    async def query(
        self,
        promql: str,  # noqa: ARG002
        *,
        at: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        self._answer()
        return (SeriesPoints({}, ((at, 1.0),)),)


async def test_stores_are_asked_in_the_background_and_their_texts_stay_here() -> None:
    clock = ManualClock()
    metrics, objects = Answering(), InMemoryObjectStore(clock)
    watch = EngineWatch(metrics, objects, clock)
    assert (
        watch.metrics == watch.objects == EngineHealth(state="away", reason="has not answered yet")
    )
    await watch.ask()
    assert (watch.metrics, watch.objects) == (OK, OK)
    metrics.away = objects.away = True
    await watch.ask()
    silent = EngineHealth(state="away", reason="does not answer")
    assert (watch.metrics, watch.objects) == (silent, silent)


async def test_readiness_is_a_status_for_load_balancers() -> None:
    scheduler = InMemoryScheduler(ManualClock())
    scheduler.down = True
    transport = httpx2.ASGITransport(app=composed(scheduler).rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as rest:
        answer = await rest.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["engines"]["slurm"]["state"] == "away"
        assert not answer.json()["ready"]
        scheduler.down = False
        answer = await rest.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        assert (await rest.get("/healthz")).json()["engines"]["slurm"]["state"] == "ok"


def values(made: HealthService) -> dict[tuple[str, ...], float]:
    return {(each.series, *each.labels): each.value for each in made.values()}


@pytest.mark.spec("OPS-8")
async def test_engines_are_shown_with_the_age_of_their_newest_answer() -> None:
    clock = ManualClock()
    objects, counted = InMemoryObjectStore(clock), [(3, 0)]

    async def members() -> tuple[int, int]:
        return counted[0]

    engines = EngineWatch(None, objects, clock, members=members)
    made = HealthService(
        version="1",
        scheduler=InMemoryScheduler(clock),
        engines=engines,
        accounting=lambda: "slurmdbd gave no answer",
        accounting_age_s=lambda: 90.0,
    )
    before = values(made)
    assert before["lattice_engine_up", "object_store"] == 0
    assert ("lattice_engine_answer_age_seconds", "object_store") not in before
    assert ("lattice_etcd_members", "ok") not in before
    await engines.ask()
    clock.advance(7)
    found = values(made)
    assert found["lattice_engine_up", "slurmctld"] == 1
    assert found["lattice_engine_up", "slurmdbd"] == 0
    assert found["lattice_engine_answer_age_seconds", "slurmdbd"] == 90
    assert found["lattice_engine_up", "object_store"] == 1
    assert found["lattice_engine_answer_age_seconds", "object_store"] == 7
    assert (found["lattice_etcd_members", "ok"], found["lattice_etcd_members", "away"]) == (3, 0)
    assert not [each for each in found if each[1:] in {("metric_store",), ("state",)}]
    counted[0] = (2, 1)
    objects.away = True
    await engines.ask()
    clock.advance(7)
    found = values(made)
    assert found["lattice_engine_up", "object_store"] == 0
    assert found["lattice_engine_answer_age_seconds", "object_store"] == 14
    assert found["lattice_etcd_members", "away"] == 1
