"""What servers say of a node's jobs, and what stands while they say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.node.job_settings import JobSettings
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.eventually import eventually_async

T0 = 1_794_702_390.0
DEBUG = pb.JobsTold(
    usual="prod",
    modes=[pb.JobMode(job_id=7, mode="debug", until=T0 + 60)],
    gpus=[pb.JobGpus(job_id=7, indices=[1, 3])],
)


class Server:
    """Each stream that is opened gives one list, then ends or fails."""

    def __init__(self, *streams: list[pb.JobsTold | LatticeError]) -> None:
        self.streams = list(streams)
        self.opened = 0

    async def follow(self) -> AsyncIterator[pb.JobsTold]:
        self.opened += 1
        if not self.streams:
            await asyncio.Event().wait()
        for each in self.streams.pop(0):
            if isinstance(each, LatticeError):
                raise each
            yield each


class Following:
    def __init__(self, server: Server) -> None:
        self.now = T0
        self.naps: list[float] = []
        self.changes = 0
        self.told = JobSettings(server.follow, lambda: self.now, share=0.5, sleep=self._nap)
        self.told.on_change = self._changed
        self._server = server

    def _changed(self) -> None:
        self.changes += 1

    async def _nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        await asyncio.sleep(0)

    async def through(self) -> JobSettings:
        running = asyncio.create_task(self.told.run())
        await eventually_async(lambda: not self._server.streams)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return self.told


@pytest.mark.spec("WATCH-3")
async def test_before_anyone_has_spoken_jobs_are_measured_as_usual() -> None:
    told = JobSettings(Server().follow, lambda: T0)
    assert told.mode_of(7) is Mode.PROD
    assert told.gpus_of(7) is None


@pytest.mark.spec("WATCH-3")
async def test_a_mode_is_told_and_reverts_by_itself_while_servers_are_away() -> None:
    following = Following(Server([DEBUG, Unavailable("gone")]))
    told = await following.through()
    assert (told.mode_of(7), told.interval_s(7)) == (Mode.DEBUG, 1.0)
    assert (told.mode_of(8), told.interval_s(8)) == (Mode.PROD, 30.0)
    following.now = T0 + 59.9
    assert told.mode_of(7) is Mode.DEBUG
    following.now = T0 + 60
    assert told.mode_of(7) is Mode.PROD
    assert told.gpus_of(7) == (1, 3)
    assert told.gpus_of(8) == ()


@pytest.mark.spec("WATCH-3")
async def test_it_asks_again_with_pauses_and_hears_what_has_changed() -> None:
    server = Server(
        [Unavailable("no")], [Unavailable("no")], [DEBUG], [DEBUG, pb.JobsTold(usual="audit")]
    )
    following = Following(server)
    told = await following.through()
    assert told.mode_of(7) is Mode.AUDIT
    assert told.gpus_of(7) == ()
    assert following.changes == 2, "the same again is no news"
    assert following.naps[:3] == [0.2, 0.5, 0.2]
    assert server.opened >= 4
