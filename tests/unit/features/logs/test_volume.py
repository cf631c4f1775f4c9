"""How much an attempt wrote over time: every byte once, at the time at which it was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.log_volume import MOST_STEPS
from lattice.domain.logchunk import ChunkIndex, Frame, gap_records, index_frame, pack_marks
from lattice.domain.logs import Gap, GapCause, LogKind, Position
from lattice.features.logs.service.log_keys import name_of
from lattice.features.logs.service.volume import MOST_CHUNKS, VolumeReader
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import ManualClock

BEGUN_S = 1_794_700_000


def attempt(length_s: int, *, running: bool = False) -> JobAttempt:
    job = allocation(
        7,
        "alice",
        "research",
        started=datetime.fromtimestamp(BEGUN_S, UTC),
        ended=None if running else datetime.fromtimestamp(BEGUN_S + length_s, UTC),
        nodes="n[1-2]",
    )
    return JobAttempt(job, attempts_of(job)[-1])


def frame(*marks: tuple[int, float], late: bool = False) -> Frame:
    """Bytes so far, and seconds after the start."""
    times = [(size, int((BEGUN_S + at_s) * 1000)) for size, at_s in marks]
    return Frame(marks[-1][0], marks[-1][0], 1, pack_marks(times), late)


class Site:
    def __init__(self, length_s: int = 200, *, running: bool = False) -> None:
        self.clock = ManualClock(datetime.fromtimestamp(BEGUN_S + length_s, UTC))
        self.objects = InMemoryObjectStore(self.clock)
        self.attempt = attempt(length_s, running=running)
        self.reader = VolumeReader(self.objects, self.clock)

    async def chunk(
        self,
        number: int,
        *frames: Frame,
        offset: int = 0,
        node: str = "n1",
        gaps: tuple[Gap, ...] = (),
        named: str = "",
    ) -> None:
        index = ChunkIndex(
            node=named or node,
            job_id=7,
            started=1.0,
            kind=LogKind.STDOUT,
            source="batch",
            offset=offset,
            line=offset,
            frames=frames,
            gap_records=gap_records(gaps),
            sha256="0" * 64,
        )
        stored = b"x" * sum(each.stored_bytes for each in frames)
        key = name_of(self.attempt).chunk_key(LogKind.STDOUT, node, number)
        await self.objects.put(key, stored + index_frame(index))
        self.clock.advance(1)

    async def steps(self) -> tuple[float, ...]:
        volume, _ = await self.reader.of(self.attempt)
        return volume.steps


async def test_bytes_of_all_streams_are_counted_at_their_times() -> None:
    site = Site()
    await site.chunk(1, frame((10, 0.5), (30, 2.5)), frame((5, 2.7)))
    await site.chunk(1, frame((100, 2.1)), node="n2")
    assert await site.steps() == (10.0, 0.0, 125.0)


async def test_a_byte_counts_once_where_chunks_overlap() -> None:
    site = Site()
    await site.chunk(1, frame((10, 0.5)))
    await site.chunk(2, frame((30, 1.5)))
    assert await site.steps() == (10.0, 20.0)


async def test_a_long_run_has_a_bounded_number_of_steps() -> None:
    site = Site(86_400)
    await site.chunk(1, frame((10, 1.0), (30, 86_399.0), (37, 90_000.0)))
    volume, _ = await site.reader.of(site.attempt)
    assert (len(volume.steps), volume.step_s, sum(volume.steps)) == (MOST_STEPS, 432.0, 37.0)
    assert volume.begin == BEGUN_S


async def test_the_newest_step_of_a_running_job_may_grow_and_is_left_out() -> None:
    site = Site(running=True)
    await site.chunk(1, frame((10, 0.5), (30, 2.5), (40, 3.5)))
    assert await site.steps() == (10.0, 0.0, 20.0)


@pytest.mark.parametrize(("after_s", "steps", "named"), [(3.0, 4, False), (100.0, 0, True)])
async def test_text_without_a_time_of_its_own_is_named(
    after_s: float, steps: int, named: bool
) -> None:
    site = Site()
    await site.chunk(1, frame((10, after_s), late=True))
    volume, _ = await site.reader.of(site.attempt)
    assert len(volume.steps) == steps
    assert ("10 bytes are older" in volume.missing) == named


async def test_gaps_are_found_once() -> None:
    site = Site()
    gap = Gap(Position(10, 10), GapCause.TRUNCATED, 4100, (BEGUN_S + 3) * 1000)
    await site.chunk(1, frame((10, 0.5)), gaps=(gap,))
    await site.chunk(2, frame((5, 4.5)), offset=10, gaps=(gap,))
    _, gaps = await site.reader.of(site.attempt)
    assert [(each.node, each.source, each.gap) for each in gaps] == [("n1", "batch", gap)]


async def test_a_chunk_under_another_nodes_key_does_not_count() -> None:
    site = Site()
    await site.chunk(1, frame((10, 0.5)), named="n2")
    assert await site.steps() == ()


async def test_very_many_chunks_are_not_read() -> None:
    site = Site()
    for number in range(MOST_CHUNKS + 1):
        key = name_of(site.attempt).chunk_key(LogKind.STDOUT, "n1", number)
        await site.objects.put(key, b"x")
    volume, _ = await site.reader.of(site.attempt)
    assert volume.steps == ()
    assert "513 stored parts are more than 512" in volume.missing
    assert site.objects.reads == 0


async def test_only_indexes_are_read_and_other_objects_are_nothing() -> None:
    site = Site()
    await site.chunk(1, frame((200_000, 0.5)))
    await site.objects.put(f"{name_of(site.attempt).prefix}/stdout/n1/other.log.zst", b"x" * 99)
    await site.objects.put(f"{name_of(site.attempt).prefix}/metadata.json", b"{}")
    assert await site.steps() == (200_000.0,)
    assert site.objects.read_bytes < 5000


async def test_a_job_that_waits_wrote_nothing_and_a_silent_store_is_an_error() -> None:
    site = Site()
    waiting = replace(site.attempt.attempt, started=None, ended=None)
    volume, _ = await site.reader.of(JobAttempt(site.attempt.allocation, waiting))
    assert volume.steps == ()
    site.objects.away = True
    with pytest.raises(Unavailable):
        await site.steps()
