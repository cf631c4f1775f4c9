"""What a node tells servers of its jobs is in their time, and what it hears in its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lattice.agent.fresh_start import FreshStart
from lattice.agent.logs import LinkedIntake
from lattice.base.errors import Unavailable
from lattice.features.link.node.servertime import ServerTime
from lattice.wire.v1 import logs_pb2 as pb
from tests.fakes.manual_clock import ManualClock

_OVERWRITES = FreshStart(is_overwriting=lambda: True)


class Servers:
    """Takes the place of a link and its channels: what was asked, and a plain answer."""

    address = "r1"

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.seal = pb.JobSeal()

    @asynccontextmanager
    async def calls(self) -> AsyncIterator[Servers]:
        yield self

    @asynccontextmanager
    async def lane(self, _address: str, _lane: int) -> AsyncIterator[Servers]:
        yield self

    def give_up(self, _address: str, _lane: int) -> None: ...

    def unary_unary(self, path: str, **_: Any) -> Any:
        async def call(request: Any, **_: Any) -> Any:
            self.asked.append(request)
            if path.endswith("ListNodeJobs"):
                job = pb.EndedJob(job_id=7, started=5000.25, ended=5010.0)
                return pb.NodeJobList(jobs=[job], incomplete=True)
            if isinstance(request, pb.GetJobSealRequest):
                return self.seal
            return pb.AdmittedOutput(grant="g", noted_since_ms=1, noted_until_ms=2, seal=self.seal)

        return call

    def stream_unary(self, _path: str, **_: Any) -> Any:
        async def call(parts: AsyncIterator[Any], **_: Any) -> Any:
            self.asked += [each async for each in parts]
            return pb.StoredChunk(number=1)

        return call


def _intake(
    servers: Servers,
    time: ServerTime,
    fresh: FreshStart,
    on_sensitive_work: Callable[[], None] = lambda: None,
) -> LinkedIntake:
    link: Any = servers
    return LinkedIntake(link, lambda: link, time, fresh, on_sensitive_work)


@pytest.mark.spec("LOG-7")
async def test_every_moment_is_corrected_both_ways() -> None:
    servers, ahead = Servers(), [300.0]
    time = ServerTime(ManualClock(), lambda: ahead[0])
    intake = _intake(servers, time, _OVERWRITES)
    await intake.admit(7, 1300.5, (1,))
    await intake.admit_noted(7, 1300.5, until=1400.0)
    await intake.admit_noted(7, 1300.5)

    async def parts() -> AsyncIterator[pb.ChunkPart]:
        yield pb.ChunkPart(head=pb.ChunkHead(job_id=7, started=1300.5))
        yield pb.ChunkPart(body=b"x")

    await intake.store(parts())
    await intake.seal_of(7, 1300.5)
    await intake.seal_at(7, 1000.5)
    ahead[0] = 310.0
    found = await intake.past_jobs(9000.0)
    (past,) = found.jobs
    assert not found.complete
    await intake.admit(7, past.started, ())
    by_running, noted, whole, head, body, seal, seal_at, since, by_past = servers.asked
    assert seal.started == seal_at.started == 1000.5
    assert by_running.started == noted.started == whole.started == head.head.started == 1000.5
    assert (noted.noted.until, whole.noted.until) == (1100.0, 0.0)
    assert body.body == b"x"
    assert since.since == 8690.0
    assert (past.started, past.ended) == (5310.25, 5320.0)
    assert by_past.started == 5000.25, "it goes back as it came"


@pytest.mark.spec("LOG-8")
@pytest.mark.threat("sensitive")
async def test_a_key_is_taken_only_by_a_process_that_overwrites_its_memory() -> None:
    servers, time = Servers(), ServerTime(ManualClock(), lambda: 0.0)
    servers.seal = pb.JobSeal(key_id=b"k" * 16, secret=b"s" * 32, cluster="c", allocation="7@1")
    stops: list[str] = []
    fresh = FreshStart(is_overwriting=lambda: False, why_never=lambda: "")
    fresh.on_wanted(lambda: stops.append("stop"))
    noted: list[str] = []
    intake = _intake(servers, time, fresh, lambda: noted.append("sensitive"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="starts anew"):
            await intake.admit(7, 1300.5, (1,))
        with pytest.raises(Unavailable, match="starts anew"):
            await intake.seal_of(7, 1300.5)
    assert stops == ["stop"]
    assert set(noted) == {"sensitive"}
    intake = _intake(servers, time, _OVERWRITES)
    taken = (await intake.admit(7, 1300.5, (1,))).seal
    assert taken is not None
    assert taken.allocation == "7@1"
    assert await intake.seal_of(7, 1300.5) == taken
