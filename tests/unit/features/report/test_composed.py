"""The server's part, put together: what runs, what is counted, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from lattice.access.actor import Actor
from lattice.server.figures import Figures
from lattice.server.report import ReportNeeds, open_report
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.sharing import sharing_parts
from tests.fakes.supervised import SupervisedLoops
from tests.unit.features.report.scripted import Site

ALICE = Actor(sub="sub-alice", user="alice")
TASK = "summaries of runs"


def needs(site: Site, *, stores: bool = True) -> ReportNeeds:
    return ReportNeeds(
        scheduler=site.scheduler,
        store=site.store if stores else None,
        accounting=site.accounting,
        objects=site.objects if stores else None,
        sharing=sharing_parts(InMemoryStateStore(site.clock)),
        clock=site.clock,
        replica="r1",
    )


def running() -> list[str]:
    return [each.get_name() for each in asyncio.all_tasks() if each.get_name() == TASK]


@pytest.mark.spec("TOP-5")
async def test_summaries_are_kept_while_the_server_runs() -> None:
    site = Site()
    site.busy()
    figures = Figures()
    async with open_report(needs(site), figures, SupervisedLoops()) as service:
        assert running() == [TASK]
        while not await site.kept.is_there(site.attempt):
            await asyncio.sleep(0)
        assert "lattice_run_summaries_written_total 1.0" in figures.text()
        assert "lattice_run_summaries_waiting 0.0" in figures.text()
        assert (await service.report(ALICE, "42")).kept is not None
    assert running() == []


@pytest.mark.spec("TOP-5")
async def test_without_stores_reports_are_answered_and_nothing_runs() -> None:
    site = Site()
    async with open_report(needs(site, stores=False), Figures(), SupervisedLoops()) as service:
        assert running() == []
        report = await service.report(ALICE, "42")
    assert report.summary.origin.reason == "the server has no metric store"
