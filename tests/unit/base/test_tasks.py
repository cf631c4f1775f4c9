"""Tasks that end with what they run beside, however that ends."""

from __future__ import annotations

import asyncio

import pytest

from lattice.base.tasks import running


class Step:
    def __init__(self) -> None:
        self.name = ""
        self.began = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        task = asyncio.current_task()
        self.name = task.get_name() if task else ""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            # A step may have to tidy up: the context waits for that too.
            await asyncio.sleep(0)
            self.ended = True


async def broken() -> None:
    raise RuntimeError("a step that fails")


async def test_every_step_has_ended_when_the_context_has() -> None:
    first, second = Step(), Step()
    async with running(("one", first.run()), ("two", second.run())):
        await first.began.wait()
        await second.began.wait()
        assert (first.name, second.name) == ("one", "two")
        assert not first.ended
    assert first.ended
    assert second.ended


async def test_an_error_inside_comes_out_when_the_steps_have_ended() -> None:
    step = Step()

    async def fail() -> None:
        async with running(("step", step.run())):
            await step.began.wait()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await fail()
    assert step.ended


async def test_a_step_that_failed_keeps_no_other_from_ending() -> None:
    step = Step()
    async with running(("broken", broken()), ("step", step.run())):
        await step.began.wait()
    assert step.ended
