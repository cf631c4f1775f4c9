"""The server's part, put together: what runs, what is counted, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from lattice.access.actor import Actor
from lattice.features.report.operations import ReportRequest
from lattice.features.report.wiring import wire
from lattice.foundation.foundation import Foundation
from tests.fakes.foundation import in_memory_foundation
from tests.unit.features.report.scripted import Site

ALICE = Actor(sub="sub-alice", user="alice")
TASK = "summaries of runs"


def foundation(site: Site, *, stores: bool = True) -> Foundation:
    return in_memory_foundation(
        site.clock,
        scheduler=site.scheduler,
        metrics=site.store if stores else None,
        accounting=site.accounting,
        objects=site.objects if stores else None,
    )


def running() -> list[str]:
    return [each.get_name() for each in asyncio.all_tasks() if each.get_name() == TASK]


@pytest.mark.spec("TOP-5")
async def test_summaries_are_kept_while_the_server_runs() -> None:
    site = Site()
    site.busy()
    base = foundation(site)
    wiring = wire(base)
    async with base.supervisor.running(*wiring.loops):
        assert running() == [TASK]
        while not await site.kept.is_there(site.attempt):
            await asyncio.sleep(0)
        assert "lattice_run_summaries_written_total 1.0" in base.own_metrics.text()
        assert "lattice_run_summaries_waiting 0.0" in base.own_metrics.text()
        (binding,) = wiring.bindings
        assert (await binding.handler(ALICE, ReportRequest(id="42"))).kept is not None
    assert running() == []


@pytest.mark.spec("TOP-5")
async def test_without_stores_reports_are_answered_and_nothing_runs() -> None:
    site = Site()
    wiring = wire(foundation(site, stores=False))
    assert wiring.loops == ()
    (binding,) = wiring.bindings
    report = await binding.handler(ALICE, ReportRequest(id="42"))
    assert report.summary.origin.reason == "the server has no metric store"
