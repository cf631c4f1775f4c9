"""Summaries are kept: once, when there is something to keep, by whichever server is there."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.runsummary import BadSummary, decoded, summary_key
from lattice.features.report.service.summaries import (
    LATEST_S,
    SETTLE_S,
    SummaryLoop,
)
from lattice.foundation.ended_attempts import OTHERS_AFTER_S
from tests.fakes.manual_clock import RECORDED
from tests.unit.features.report.scripted import Site


class Ended(Site):
    """It ended a moment ago."""

    def __init__(self, **facts: Any) -> None:
        begun = RECORDED - timedelta(hours=2)
        super().__init__(**{"started": begun, "ended": RECORDED} | facts)
        if self.attempt.attempt.ended is not None:
            self.busy()
        self.store.coarse = {"memory_used_bytes": 7.0}

    def replica(self, name: str = "r1", *others: str) -> SummaryLoop:
        return SummaryLoop(
            self.scheduler, self.meter(), self.kept, self.clock, name, lambda: (name, *others)
        )

    @property
    def key(self) -> str:
        return summary_key(self.attempt)

    async def document(self) -> dict[str, Any] | None:
        if not await self.kept.is_there(self.attempt):
            return None
        found = json.loads(await self.objects.read(self.key))
        assert isinstance(found, dict)
        return found


@pytest.mark.spec("TOP-5")
async def test_a_silent_metric_store_is_waited_for() -> None:
    site = Ended()
    loop = site.replica()
    site.store.silent = True
    site.clock.advance(LATEST_S + 10)
    await loop.run_round()
    assert await site.document() is None
    assert (loop.waiting, loop.counts.silent_total) == (1, 1)
    site.store.silent = False
    await loop.run_round()
    assert loop.counts.written_total == 0, "it is not asked again at once"
    site.clock.advance(61)
    await loop.run_round()
    assert await site.document() is not None
    assert loop.waiting == 0


@pytest.mark.spec("TOP-5")
async def test_a_silent_object_store_is_waited_for() -> None:
    site = Ended()
    loop = site.replica()
    site.clock.advance(SETTLE_S + 1)
    site.objects.away = True
    with pytest.raises(Unavailable):
        await loop.run_round()
    site.objects.away = False
    site.clock.advance(61)
    await loop.run_round()
    assert await site.document() is not None


@pytest.mark.spec("TOP-5")
async def test_samples_that_are_late_are_waited_for_and_not_for_ever() -> None:
    site = Ended()
    site.store.measured = 1.0
    loop = site.replica()
    site.clock.advance(SETTLE_S + 1)
    await loop.run_round()
    assert await site.document() is None
    site.clock.advance(LATEST_S)
    await loop.run_round()
    found = await site.document()
    assert found is not None
    assert found["covered"] == 0.5


@pytest.mark.spec("TOP-5")
async def test_it_is_written_once_and_holds_the_series() -> None:
    site = Ended()
    loop = site.replica()
    await loop.run_round()
    assert await site.document() is None, "not before the last samples can be there"
    site.clock.advance(SETTLE_S + 1)
    await loop.run_round()
    found = await site.document()
    assert found is not None
    assert (found["format"], found["run"]["attempt"]) == (1, 1)
    (memory,) = found["series"]
    assert (memory["metric"], len(memory["mean"])) == ("memory_used", 120)
    puts, asked = site.objects.puts, len(site.store.questions)
    for _ in range(3):
        site.clock.advance(400)
        await loop.run_round()
    assert (site.objects.puts, len(site.store.questions)) == (puts, asked)


@pytest.mark.spec("TOP-5")
async def test_one_of_several_servers_writes_it_and_none_overwrites() -> None:
    site = Ended()
    servers = [site.replica(name, "r1", "r2", "r3") for name in ("r1", "r2", "r3")]
    for each in servers:
        await each.run_round()
    site.clock.advance(SETTLE_S + 1)
    for each in servers:
        await each.run_round()
    assert [each.counts.written_total for each in servers].count(1) == 1
    document = await site.objects.read(site.key)
    site.clock.advance(OTHERS_AFTER_S)
    site.store.coarse = {}
    for each in servers:
        await each.run_round()
    assert sum(each.counts.written_total for each in servers) == 1
    assert sum(each.counts.elsewhere_total for each in servers) == 2
    assert await site.objects.read(site.key) == document


@pytest.mark.spec("TOP-5")
async def test_the_others_write_it_where_the_first_is_gone() -> None:
    site = Ended()
    servers = {name: site.replica(name, "r1", "r2", "r3") for name in ("r1", "r2", "r3")}
    for each in servers.values():
        await each.run_round()
    site.clock.advance(SETTLE_S + 1)
    first = next(name for name, each in servers.items() if each.queue.is_mine(site.key))
    del servers[first]
    for each in servers.values():
        await each.run_round()
    assert await site.document() is None
    site.clock.advance(OTHERS_AFTER_S)
    for each in servers.values():
        await each.run_round()
    assert await site.document() is not None


@pytest.mark.spec("TOP-5")
async def test_what_ended_while_no_server_was_there_is_found_in_slurms_past() -> None:
    site = Ended()
    site.scheduler.remembered = list(site.scheduler.allocations)
    gone = site.attempt
    site.scheduler.allocations.clear()
    site.clock.advance(6 * 3600)
    await site.replica().run_round()
    assert await site.kept.is_there(gone)


@pytest.mark.spec("TOP-5")
async def test_what_still_runs_is_left_alone() -> None:
    site = Ended(state=State.RUNNING, ended=None)
    loop = site.replica()
    site.clock.advance(LATEST_S)
    await loop.run_round()
    assert (loop.waiting, site.store.questions) == (0, [])


async def test_each_attempt_is_kept_under_a_key_of_its_own() -> None:
    site = Ended()
    first = site.attempt
    again = replace(first, attempt=replace(first.attempt, number=2))
    assert summary_key(first) != summary_key(again)
    assert summary_key(first).startswith("physics/research/42/report/")


@pytest.mark.spec("TOP-5")
async def test_a_document_of_a_later_format_is_read_without_what_is_new() -> None:
    site = Ended()
    summary = await site.meter().whole(site.attempt)
    await site.kept.keep(site.attempt, summary)
    assert await site.kept.of(site.attempt) == summary
    told = await site.document()
    assert told is not None
    told["format"] = 7
    told["carbon"] = {"grams": 3}
    told["run"]["image"] = "x"
    told["used"][0]["confidence"] = 0.9
    later = decoded(json.dumps(told).encode())
    assert later.format == 7
    assert replace(later, format=1) == summary


async def test_bytes_that_are_no_summary_are_as_none() -> None:
    site = Ended()
    await site.objects.put(site.key, b'{"format": "what"}')
    assert await site.kept.of(site.attempt) is None


def test_a_document_that_nests_too_deeply_is_no_summary() -> None:
    with pytest.raises(BadSummary):
        decoded(b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}")


async def test_nothing_is_stored_of_sensitive_work() -> None:
    site = Ended()
    loop = SummaryLoop(
        site.scheduler, site.meter(), site.kept, site.clock, "r1", is_sensitive=lambda _: True
    )
    site.clock.advance(3600)
    await loop.run_round()
    assert (loop.waiting, await site.document()) == (0, None)
