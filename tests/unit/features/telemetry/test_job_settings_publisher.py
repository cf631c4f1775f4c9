"""What nodes are told of their jobs: theirs only, once for a change, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.allocation import NodeGpus, State
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.job_settings import NodeJobSettings, StampedRun
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.features.telemetry.service import job_settings_publisher as telling_module
from lattice.features.telemetry.service.job_settings_publisher import (
    JobSettingsPublisher,
    current_run,
)
from lattice.features.telemetry.service.modes import MODES, AgreedModes, SwitchedMode
from tests.eventually import eventually_async
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.plain = allocation(1, "alice", "research", nodes="n[1-2]")
        self.gpus = allocation(
            2,
            "bob",
            "genomics",
            nodes="n[2-3]",
            gpu_indices=(NodeGpus("n2", (0, 3)), NodeGpus("n3", (1,))),
        )
        self.scheduler.allocations = [self.plain, self.gpus]
        self.state = InMemoryStateStore(self.clock)
        self.modes = AgreedModes(
            self.state,
            InMemoryStateView(self.state, MODES),
            self.clock,
            lambda: None,
            usual=Mode.PROD,
            debug_most=5,
        )
        self.telling = JobSettingsPublisher(self.scheduler, self.modes, self.clock)
        self.sensitive: set[str] = set()

    def stamping(self) -> JobSettingsPublisher:
        """Of a site that trusts its nodes."""
        self.scheduler.accounts = ACCOUNTS
        self.telling = JobSettingsPublisher(
            self.scheduler,
            self.modes,
            self.clock,
            current_run(lambda each: each.id in self.sensitive, self.clock),
        )
        return self.telling

    async def debug(self, lasts_s: float = 60) -> float:
        now = self.clock.now().timestamp()
        await self.modes.switch(
            SwitchedMode(
                allocation=self.plain.ref,
                mode=Mode.DEBUG,
                until=now + lasts_s,
                set_by="alice",
                since=now,
            )
        )
        return now + lasts_s


class Agent:
    """Listens as a node does."""

    def __init__(self, site: Site, node: str) -> None:
        self.told: list[NodeJobSettings] = []
        self._following = site.telling.follow(node)
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for each in self._following:
            self.told.append(each)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    yield Site()
    others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.spec("TOP-2")
async def test_a_node_is_told_its_own_jobs_gpus_and_no_others(site: Site) -> None:
    site.telling.check()
    assert site.telling.settings("n1") == NodeJobSettings()
    assert site.telling.settings("n2") == NodeJobSettings(gpus={2: (0, 3)})
    assert site.telling.settings("n3") == NodeJobSettings(gpus={2: (1,)})
    assert site.telling.settings("elsewhere") == NodeJobSettings()


@pytest.mark.spec("SRC-2")
async def test_gpus_that_slurm_has_not_named_are_not_none(site: Site) -> None:
    site.scheduler.allocations[1] = replace(site.gpus, gpus=3, gpu_indices=())
    site.telling.check()
    assert site.telling.settings("n2") == NodeJobSettings(gpus={2: ()})
    assert site.telling.settings("n1") == NodeJobSettings()


@pytest.mark.spec("WATCH-3")
async def test_a_switch_reaches_the_nodes_of_the_job_and_wakes_nobody_else(site: Site) -> None:
    site.telling.check()
    agents = [Agent(site, node) for node in ("n1", "n2", "n3")]
    await settled()
    assert [len(agent.told) for agent in agents] == [1, 1, 1]
    until = await site.debug()
    site.telling.check()
    await settled()
    assert [len(agent.told) for agent in agents] == [2, 2, 1]
    assert agents[0].told[-1] == NodeJobSettings(modes={1: (Mode.DEBUG, until)})
    assert agents[1].told[-1] == NodeJobSettings(modes={1: (Mode.DEBUG, until)}, gpus={2: (0, 3)})


@pytest.mark.spec("WATCH-3")
async def test_when_its_time_is_over_the_usual_mode_is_told(site: Site) -> None:
    await site.debug(lasts_s=60)
    site.telling.check()
    agent = Agent(site, "n1")
    await settled()
    site.clock.advance(61)
    site.telling.check()
    await settled()
    assert agent.told[-1] == NodeJobSettings()


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("state", [State.COMPLETED, State.PENDING])
async def test_a_job_that_left_its_nodes_is_not_told_any_more(site: Site, state: State) -> None:
    site.telling.check()
    agent = Agent(site, "n3")
    await settled()
    site.scheduler.allocations[1] = replace(site.gpus, state=state)
    site.telling.check()
    await settled()
    assert agent.told[-1] == NodeJobSettings()


@pytest.mark.spec("WATCH-3")
async def test_an_id_used_again_does_not_inherit_a_mode(site: Site) -> None:
    await site.debug()
    site.scheduler.allocations[0] = allocation(
        1, "carol", "genomics", nodes="n1", submitted=site.clock.now()
    )
    site.telling.check()
    assert site.telling.settings("n1") == NodeJobSettings()


async def test_while_slurm_has_not_answered_nothing_changes(site: Site) -> None:
    site.telling.check()
    site.scheduler.down = True
    site.scheduler._cluster = None
    site.telling.check()
    assert site.telling.settings("n3") == NodeJobSettings(gpus={2: (1,)})


async def test_what_failed_to_be_taken_in_is_taken_in_after_the_defect(site: Site) -> None:
    supervisor = SupervisedLoops(site.clock)
    read, defects = site.telling._with_settings, iter((RuntimeError("a job nobody foresaw"),))

    def broken(*given: Any) -> Any:
        for defect in defects:
            raise defect
        return read(*given)

    site.telling._with_settings = broken  # type: ignore[method-assign]
    loop = Loop("telemetry told", site.telling.run, OnFailure.RESTART)
    async with supervisor.running(loop):
        await eventually_async(lambda: site.telling.settings("n3").gpus == {2: (1,)})
    assert supervisor.failures == {"telemetry told": 1}


async def test_it_looks_by_itself_and_leaves_nothing_behind(site: Site) -> None:
    running = asyncio.create_task(site.telling.run())
    agent = Agent(site, "n2")
    await settled()
    assert agent.told[-1] == NodeJobSettings(gpus={2: (0, 3)})
    agent.task.cancel()
    running.cancel()
    await asyncio.gather(agent.task, running, return_exceptions=True)
    await agent._following.aclose()  # type: ignore[attr-defined]
    assert site.telling._listeners == {}


BOB = Stamps(
    alloc="2", attempt="1", project="genomics", tenant="biology", user="bob", vcluster="batch"
)


@pytest.mark.spec("TOP-2")
@pytest.mark.threat("metric-writer")
async def test_names_are_told_only_where_the_site_says_so_and_only_of_the_nodes_own(
    site: Site,
) -> None:
    site.telling.check()
    for node in ("n1", "n2", "n3"):
        assert not site.telling.settings(node).stamping
        assert not site.telling.settings(node).runs
    telling = site.stamping()
    telling.check()
    started = site.gpus.submitted.timestamp()
    assert telling.settings("n3") == NodeJobSettings(
        gpus={2: (1,)}, stamping=True, runs={2: StampedRun(started, BOB)}
    )
    assert telling.settings("n3").as_of == site.clock.now().timestamp()
    assert set(telling.settings("n2").runs) == {1, 2}
    assert set(telling.settings("n1").runs) == {1}
    assert telling.settings("elsewhere").runs == {}


@pytest.mark.spec("TOP-2")
async def test_of_what_is_sensitive_no_name_is_told(site: Site) -> None:
    site.sensitive.add("2")
    telling = site.stamping()
    telling.check()
    assert telling.settings("n3") == NodeJobSettings(gpus={2: (1,)}, stamping=True)
    assert set(telling.settings("n2").runs) == {1}


@pytest.mark.spec("TOP-2")
async def test_a_job_whose_tenant_is_not_known_yet_is_not_named(site: Site) -> None:
    telling = site.stamping()
    now = site.clock.now()
    site.scheduler.allocations = [
        replace(site.plain, tenant="", submitted=now),
        replace(site.gpus, started=None),
    ]
    telling.check()
    assert telling.settings("n2").runs == {}


async def test_the_same_is_told_again_with_the_time_of_slurms_word(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling_module, "CONFIRM_EVERY_S", 0.001)
    telling = site.stamping()
    telling.check()
    agent, idle = Agent(site, "n1"), Agent(site, "n9")
    async with asyncio.timeout(60):
        while not agent.told:
            await asyncio.sleep(0)
        site.clock.advance(30)
        telling.check()
        while len(agent.told) < 2:
            await asyncio.sleep(0.001)
    first, second = agent.told
    assert first == second
    assert second.as_of - first.as_of == 30
    assert len(idle.told) == 1, "who has no job to name is told nothing again"
