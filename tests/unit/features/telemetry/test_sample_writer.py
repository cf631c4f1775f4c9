"""Samples of many nodes in few writes: joined, bounded, and each answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.metricstore import SeriesPoints
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.wire.remotewrite import WriteEncoder
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops


def series(count: int, name: str = "lattice_a", node: str = "n1") -> list[SeriesPoints]:
    return [
        SeriesPoints({"__name__": name, "node": node, "x": str(each)}, ((1.79e9, 1.0),))
        for each in range(count)
    ]


def writing_to(store: InMemoryMetricStore, **limits: int) -> SampleWriting:
    return SampleWriting(store, ManualClock(), linger_s=0.0, **limits)


def bring(writing: SampleWriting, brought: Sequence[SeriesPoints]) -> Awaitable[StoredBatch]:
    samples = sum(len(each.points) for each in brought)
    return writing.write(WriteEncoder().encode(brought), samples)


class Held(InMemoryMetricStore):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        await self.go.wait()
        await super().write(series)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_many_bring_goes_in_one_write() -> None:
    store = InMemoryMetricStore()
    writing = writing_to(store)
    async with writing.running(SupervisedLoops()):
        told = await asyncio.gather(
            *(bring(writing, series(10, node=f"n{number}")) for number in range(50))
        )
    assert told == [StoredBatch(10)] * 50
    assert [len(write) for write in store.writes] == [500]
    assert (writing.waiting, writing.counts.writes_total) == (0, 1)


async def test_a_write_is_not_larger_than_it_may_be() -> None:
    store = InMemoryMetricStore()
    writing = writing_to(store, most_at_once=25)
    async with writing.running(SupervisedLoops()):
        sizes = (10, 10, 10, 10, 10, 60)
        await asyncio.gather(*(bring(writing, series(size)) for size in sizes))
    written = sorted(len(write) for write in store.writes)
    # One that is larger by itself goes by itself.
    assert written == [10, 20, 20, 60]


@pytest.mark.spec("TOP-2")
async def test_who_waits_is_told_when_the_store_is_silent() -> None:
    store = InMemoryMetricStore()
    store.away = True
    writing = writing_to(store)
    async with writing.running(SupervisedLoops()):
        ends = await asyncio.gather(
            *(bring(writing, series(1)) for _ in range(5)), return_exceptions=True
        )
        assert [type(each) for each in ends] == [Unavailable] * 5
        store.away = False
        assert await bring(writing, series(1)) == StoredBatch(1)
    assert writing.counts.write_failures_total == 1


async def test_more_than_can_wait_is_not_taken() -> None:
    store = Held()
    writing = writing_to(store, most_waiting=100, most_at_once=10)
    async with writing.running(SupervisedLoops()):
        brought = []
        for count in (4, 10):
            brought += [asyncio.ensure_future(bring(writing, series(10))) for _ in range(count)]
            await settled()
        # Four are being written, ten wait.
        assert writing.waiting == 100
        with pytest.raises(Unavailable, match="100 samples wait"):
            await bring(writing, series(1))
        store.go.set()
        assert await asyncio.gather(*brought) == [StoredBatch(10)] * 14
        # One that is larger than all that may wait is taken when nothing does.
        assert await bring(writing, series(300)) == StoredBatch(300)


@pytest.mark.spec("TOP-2")
async def test_one_bad_series_costs_itself_and_nobody_elses() -> None:
    store = InMemoryMetricStore()
    store.refuses = "lattice_bad"
    writing = writing_to(store)
    bad = [*series(20), *series(1, "lattice_bad"), *series(20, "lattice_b")]
    async with writing.running(SupervisedLoops()):
        told = await asyncio.gather(
            bring(writing, series(10)), bring(writing, bad), bring(writing, series(10, "lattice_c"))
        )
    assert told[0] == told[2] == StoredBatch(10)
    assert (told[1].stored, told[1].refused) == (40, 1)
    assert "not liked" in told[1].reason
    assert len(store.named("lattice_b")) == 20


async def test_a_write_that_is_bad_throughout_is_not_tried_for_ever() -> None:
    store = InMemoryMetricStore()
    store.refuses = "lattice_bad"
    writing = writing_to(store)
    async with writing.running(SupervisedLoops()):
        told = await bring(writing, series(5_000, "lattice_bad"))
    assert (told.stored, told.refused) == (0, 5_000)
    assert writing.counts.write_failures_total <= 70


async def test_a_store_that_falls_silent_while_a_write_is_taken_apart_is_told() -> None:
    class Falling(InMemoryMetricStore):
        async def write(self, series: Sequence[SeriesPoints]) -> None:
            self.away = bool(self.writes)
            await super().write(series)

    store = Falling()
    store.refuses = "lattice_bad"
    writing = writing_to(store)
    async with writing.running(SupervisedLoops()):
        with pytest.raises(Unavailable):
            await bring(writing, [*series(4), *series(1, "lattice_bad")])


async def test_who_waits_at_the_end_is_told_to_try_again() -> None:
    store = Held()
    writing = writing_to(store, most_at_once=1)
    async with writing.running(SupervisedLoops()):
        brought = [asyncio.ensure_future(bring(writing, series(1))) for _ in range(8)]
        await settled()
    ends = await asyncio.gather(*brought, return_exceptions=True)
    assert [type(each) for each in ends] == [Unavailable] * 8


async def test_a_caller_who_left_takes_nothing_from_the_others() -> None:
    store = Held()
    writing = writing_to(store)
    async with writing.running(SupervisedLoops()):
        left = asyncio.ensure_future(bring(writing, series(1)))
        stays = asyncio.ensure_future(bring(writing, series(2, "lattice_b")))
        await settled()
        left.cancel()
        await settled()
        store.go.set()
        assert await stays == StoredBatch(2)


async def test_what_nobody_waits_for_any_more_is_not_written() -> None:
    store = Held()
    writing = writing_to(store, most_at_once=1)
    async with writing.running(SupervisedLoops()):
        brought = [
            asyncio.ensure_future(bring(writing, series(1, f"lattice_{n}"))) for n in range(8)
        ]
        await settled()
        for each in brought[4:6]:
            each.cancel()
        await settled()
        store.go.set()
        assert await asyncio.gather(*brought[:4], *brought[6:]) == [StoredBatch(1)] * 6
    assert writing.waiting == 0
    assert [store.named(f"lattice_{n}") == {} for n in range(8)].count(True) == 2


async def test_a_defect_ends_one_write_and_not_the_writer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(InMemoryMetricStore):
        async def write(self, series: Sequence[SeriesPoints]) -> None:
            if series[0].labels["__name__"] == "lattice_bug":
                raise ZeroDivisionError
            await super().write(series)

    writing = writing_to(Broken())
    async with writing.running(SupervisedLoops()):
        for _ in range(6):
            with pytest.raises(Unavailable):
                await bring(writing, series(1, "lattice_bug"))
        assert await bring(writing, series(1)) == StoredBatch(1)
    assert "not foreseen" in caplog.text
