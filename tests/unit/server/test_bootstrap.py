"""A cluster's state is begun once, by whoever was told to, and recognised by every server."""

from __future__ import annotations

import asyncio
import json

import pytest

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.cluster_record import CLUSTER_KEY, FORMAT
from lattice.domain.state import Change, Expect
from lattice.server.cluster.state import bootstrap, find_cluster
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import RECORDED, ManualClock


@pytest.mark.spec("OPS-1")
async def test_what_is_begun_is_found() -> None:
    store = InMemoryStateStore(ManualClock())
    record = await bootstrap(store, ManualClock())
    assert await find_cluster(store) == record
    assert record.created == RECORDED
    assert record.format == FORMAT


@pytest.mark.spec("OPS-1")
async def test_the_second_time_is_refused_in_words() -> None:
    store = InMemoryStateStore(ManualClock())
    first = await bootstrap(store, ManualClock())
    with pytest.raises(ConfigurationError, match="bootstrapped already") as error:
        await bootstrap(store, ManualClock())
    assert first.id in error.value.message
    assert error.value.hint == "Start the server without --bootstrap."
    assert await find_cluster(store) == first


@pytest.mark.spec("OPS-1")
async def test_of_many_at_once_one_begins_it() -> None:
    store = InMemoryStateStore(ManualClock())
    tries = [bootstrap(store, ManualClock()) for _ in range(10)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    (begun,) = [each for each in done if not isinstance(each, BaseException)]
    assert await find_cluster(store) == begun


@pytest.mark.spec("OPS-1")
async def test_a_state_nobody_began_names_the_option() -> None:
    with pytest.raises(ConfigurationError) as error:
        await find_cluster(InMemoryStateStore(ManualClock()))
    assert "--bootstrap" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\xff", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"id": "x"}', "can't be read"),
        (json.dumps({"id": "x", "created": "2026-11-15", "format": 2}).encode(), "has format 2"),
    ],
)
async def test_a_record_that_is_not_ours_is_refused(value: bytes, said: str) -> None:
    store = InMemoryStateStore(ManualClock())
    await store.put(CLUSTER_KEY, value)
    with pytest.raises(ConfigurationError, match=said):
        await find_cluster(store)


class Unsure(InMemoryStateStore):
    """Says that it does not know, having done it or not."""

    def __init__(self, *, does: bool) -> None:
        super().__init__(ManualClock())
        self._does = does

    async def commit(self, expect: list[Expect], changes: list[Change]) -> int | None:
        if self._does:
            await super().commit(expect, changes)
        raise Unavailable("It may have happened or not.")


async def test_a_doubtful_answer_is_looked_after() -> None:
    store = Unsure(does=True)
    assert await bootstrap(store, ManualClock()) == await find_cluster(store)
    with pytest.raises(Unavailable):
        await bootstrap(Unsure(does=False), ManualClock())
