"""The helper is told the servers' time: ahead of need, and when it refuses a grant for its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.clock import HelperClock
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.adapters.helper.terminals import HelperTerminals
from lattice.agent.clock import HelperTime
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.privileged import (
    Answer,
    Challenge,
    OpenOutputFile,
    Outcome,
    SetClock,
    read_request,
    write_request,
)
from lattice.features.link.node.servertime import ServerTime
from tests.fakes.helper_door import helper_at
from tests.fakes.manual_clock import ManualClock

NONCE = "0a" * 32
UNTIMELY = Answer(outcome=Outcome.UNTIMELY, message="no grant for this at 21:05:02 UTC")


class Helper:
    """One that wants to be told the time before it answers anything."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.asked: list[str] = []
        self.refusal: Answer | None = None
        self.stubborn = False

    def __call__(self, packet: bytes) -> tuple[Answer, Sequence[int]]:
        _, verb, question = read_request(packet)
        self.asked.append(verb.name)
        if isinstance(question, Challenge):
            return self.refusal or Answer(outcome=Outcome.DONE, output=NONCE), ()
        if isinstance(question, SetClock):
            self.told.append(question.signed)
            return Answer(outcome=Outcome.DONE), ()
        if not self.told or self.stubborn:
            return UNTIMELY, ()
        return Answer(outcome=Outcome.FAILED, message="reached"), ()


class Bench:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.ahead_s: float | None = 302.0
        self.helper = Helper()
        self.server: str | LatticeError = "signed"
        servers = ServerTime(self.clock, lambda: self.ahead_s)
        self.time = HelperTime(
            HelperClock(HelperChannel(path, timeout_s=60)),
            self._sign,
            servers,
            self.clock,
            sleep=self._sleep,
        )
        self.channel = HelperChannel(path, timeout_s=60, telling=self.time)
        self.looks = 0

    async def _sign(self, nonce: str) -> str:
        assert nonce == NONCE
        if isinstance(self.server, LatticeError):
            raise self.server
        return self.server

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.looks -= 1
        if self.looks <= 0:
            raise asyncio.CancelledError

    async def look(self, times: int = 1) -> None:
        self.looks = times
        with suppress(asyncio.CancelledError):
            await self.time.run()


@pytest.mark.spec("AUTH-9")
async def test_a_refusal_for_the_time_is_put_right_and_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "h")
    async with helper_at(tmp_path / "h", bench.helper):
        with pytest.raises(LatticeError, match="reached"):
            await HelperOutputs(bench.channel).open_output_file("g", "/x")
    assert bench.helper.asked == ["open_output_file", "challenge", "set_clock", "open_output_file"]
    assert bench.helper.told == ["signed"]


async def test_one_that_can_not_be_told_names_both_clocks(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "h")
    bench.server = Unavailable("no server answers.")
    request = write_request("g", OpenOutputFile("/x"))
    async with helper_at(tmp_path / "h", bench.helper):
        with pytest.raises(Unavailable) as refusal:
            async with HelperTerminals(bench.channel).open(request, resume=True):
                raise AssertionError("it was refused")
    here = f"{bench.clock.now():%H:%M:%S}"
    there = f"{bench.time._servers.now():%H:%M:%S}"
    assert refusal.value.message == (
        f"the node's clock is 302 s ahead of the servers' ({here} there, {there} here, UTC), and "
        "lattice-helper there can't be told the time: no server answers. An administrator sets "
        "the node's clock (chronyc makestep)"
    )


async def test_a_helper_that_goes_on_refusing_is_asked_no_third_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "h")
    bench.helper.stubborn = True
    bench.ahead_s = -0.1
    async with helper_at(tmp_path / "h", bench.helper):
        with pytest.raises(Unavailable, match="no grant for this at 21:05:02 UTC"):
            await HelperOutputs(bench.channel).open_output_file("g", "/x")
        assert bench.helper.asked.count("open_output_file") == 2
        bench.server = Unavailable("nobody.")
        with pytest.raises(Unavailable, match="another time than the servers, untold"):
            await HelperOutputs(bench.channel).open_output_file("g", "/x")


@pytest.mark.spec("AUTH-9")
async def test_without_anyone_to_tell_it_the_refusal_stands(tmp_path: Path) -> None:
    helper = Helper()
    async with helper_at(tmp_path / "h", helper):
        answer, _ = await HelperChannel(tmp_path / "h").ask("g", OpenOutputFile("/x"))
    assert answer == UNTIMELY
    assert helper.asked == ["open_output_file"]


@pytest.mark.spec("AUTH-9")
async def test_it_is_told_ahead_of_need_where_the_clock_is_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "h")
    async with helper_at(tmp_path / "h", bench.helper):
        for bench.ahead_s in (None, 0.0, 1.9, -1.9):
            await bench.look(3)
        assert bench.helper.asked == [], "nothing is known, or nothing is wrong"
        bench.ahead_s = -300.0
        await bench.look(100)
        assert len(bench.helper.told) == 1, "once is enough for minutes"
        bench.ahead_s = 0.0
        await bench.look(3)
        assert len(bench.helper.told) == 2, "the clock was set"
        bench.clock.advance(601)
        await bench.look(3)
        assert len(bench.helper.told) == 3, "and now and then"


async def test_who_refuses_is_not_asked_all_the_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "h")
    bench.helper.refusal = Answer(outcome=Outcome.NOT_OFFERED, message="no such verb")
    async with helper_at(tmp_path / "h", bench.helper):
        await bench.look(30)
        assert len(bench.helper.asked) == 2
        assert await bench.time.send_time() == "lattice-helper is older than the agent."


async def test_a_node_without_a_helper(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "none")
    assert "does not answer" in await bench.time.send_time()


@pytest.mark.parametrize("output", ["", "x", "0A" * 32])
async def test_a_helper_that_draws_nonsense(tmp_path: Path, output: str) -> None:
    bench = Bench(tmp_path / "h")
    bench.helper.refusal = Answer(outcome=Outcome.DONE, output=output)
    async with helper_at(tmp_path / "h", bench.helper):
        assert "what can't be" in await bench.time.send_time()
