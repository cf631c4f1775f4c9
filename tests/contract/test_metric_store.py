"""What every metric store behind the port promises: fake, VictoriaMetrics, Prometheus."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.adapters.metricstore.onlywrite import OnlyWrite
from lattice.adapters.metricstore.store import HttpMetricStore, StorePlace
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent
from tests.contract.metric_stores import KINDS, Place, engine, place_of

pytestmark = [pytest.mark.spec("TOP-2", "TOP-4"), pytest.mark.timeout(120)]

HOSTILE = ['"} or up{a="', "a\\b", "a\nb", "ü—🙂", "{}", "' OR 1=1", "a,b", 'x"', "=~.*"]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_of(request.param, tmp_path) as place:
        yield place


def series(name: str, value: float, at: float, **labels: str) -> SeriesPoints:
    return SeriesPoints({"__name__": name, **labels}, ((at, value),))


def now() -> float:
    # Some seconds ago: VictoriaMetrics shows what is younger when it sees fit.
    return float(int(time.time())) - 30


async def test_a_point_comes_back_as_it_was_written(place: Place) -> None:
    at = now()
    await place.store.write([series("lattice_a", 1.25, at, alloc="1", node="n1")])
    await place.settle()
    (found,) = await place.store.query('lattice_a{alloc="1"}', at=at + 1)
    assert dict(found.labels) == {"__name__": "lattice_a", "alloc": "1", "node": "n1"}
    assert found.points == ((at + 1, 1.25),)


async def test_many_points_of_many_series_in_one_write(place: Place) -> None:
    begin = now() - 60
    await place.store.write(
        [
            SeriesPoints(
                {"__name__": "lattice_many", "node": f"n{number}"},
                tuple((begin + 30 * step, float(number + step)) for step in range(3)),
            )
            for number in range(3_000)
        ]
    )
    await place.settle()
    found = await place.store.query_range(
        'lattice_many{node=~"n7|n2999"}', start=begin, end=begin + 60, step_s=30
    )
    assert {each.labels["node"]: each.points for each in found} == {
        f"n{number}": tuple((begin + 30 * step, float(number + step)) for step in range(3))
        for number in (7, 2999)
    }
    everything = await place.store.query("lattice_many", at=begin + 60)
    assert len(everything) == 3_000


@pytest.mark.parametrize("value", [0.0, 1e-6, 0.001, 123456789.123, 2.0**52 - 1, 1e18])
async def test_values_are_true_to_the_last_digit(place: Place, value: float) -> None:
    at = now()
    await place.store.write([series("lattice_exact", value, at)])
    await place.settle()
    (found,) = await place.store.query("lattice_exact", at=at + 1)
    assert found.points[0][1] == value


async def test_hostile_labels_are_values_like_others(place: Place) -> None:
    at = now()
    await place.store.write(
        [series("lattice_h", float(index), at, alloc=text) for index, text in enumerate(HOSTILE)]
    )
    await place.settle()
    found = await place.store.query("lattice_h", at=at + 1)
    assert {each.labels["alloc"]: each.points[0][1] for each in found} == {
        text: float(index) for index, text in enumerate(HOSTILE)
    }


async def test_a_label_without_a_value_is_none(place: Place) -> None:
    at = now()
    await place.store.write([series("lattice_b", 1.0, at, tenant="", node="n1")])
    await place.settle()
    (found,) = await place.store.query('lattice_b{tenant=""}', at=at + 1)
    assert dict(found.labels) == {"__name__": "lattice_b", "node": "n1"}


async def test_the_same_point_again_is_one_point(place: Place) -> None:
    at = now()
    for _ in range(2):
        await place.store.write([series("lattice_c", 2.0, at)])
    await place.settle()
    (found,) = await place.store.query_range("lattice_c", start=at, end=at, step_s=1)
    assert found.points == ((at, 2.0),)


async def test_series_are_listed_by_a_selector(place: Place) -> None:
    at = now()
    await place.store.write(
        [series("lattice_d", 1.0, at, node="n1"), series("lattice_d", 1.0, at, node="n2")]
    )
    await place.settle()
    found = await place.store.series('lattice_d{node="n2"}', start=at - 60, end=at + 60)
    assert [dict(each) for each in found] == [{"__name__": "lattice_d", "node": "n2"}]


async def test_what_was_never_written_is_no_series(place: Place) -> None:
    assert await place.store.query("lattice_nothing", at=now()) == ()
    assert await place.store.series("lattice_nothing", start=now() - 60, end=now()) == ()


async def test_a_question_that_is_none_is_told_in_the_stores_words(place: Place) -> None:
    with pytest.raises(BadQuery) as told:
        await place.store.query('lattice_a{alloc="1"', at=now())
    assert str(told.value)
    with pytest.raises(BadQuery):
        await place.store.query_range("sum(", start=now() - 60, end=now(), step_s=30)


async def test_nothing_written_is_nothing_asked(place: Place) -> None:
    place.hang()
    await place.store.write([])
    place.go_on()


async def test_a_store_that_hangs_is_silent_in_time_and_answers_again(place: Place) -> None:
    at = now()
    await place.store.write([series("lattice_e", 1.0, at)])
    await place.settle()
    place.hang()
    began = time.monotonic()
    with pytest.raises(StoreSilent):
        await place.store.write([series("lattice_e", 2.0, at + 1)])
    with pytest.raises(StoreSilent):
        await place.store.query("lattice_e", at=at + 1, within_s=0.5)
    assert time.monotonic() - began < 5
    place.go_on()
    (found,) = await place.store.query("lattice_e", at=at + 1, within_s=5)
    assert found.points[0][1] in {1.0, 2.0}


@pytest.mark.parametrize("kind", ["victoriametrics", "prometheus"])
async def test_what_a_node_writes_by_itself_is_found_as_what_servers_write(
    kind: str, tmp_path: Path
) -> None:
    at = now()
    mine = [series("lattice_straight", 1.25, at, alloc="1", user="alice", vcluster="")]
    async with engine(kind, tmp_path) as (_, endpoint):
        await OnlyWrite(endpoint).write(mine)
        store = HttpMetricStore(StorePlace(endpoint=endpoint))
        try:
            await store.write([series("lattice_over", 1.25, at, alloc="1", user="alice")])
            if kind == "victoriametrics":
                with urllib.request.urlopen(f"{endpoint}/internal/force_flush", timeout=5):
                    pass
            found = await store.query('{__name__=~"lattice_(straight|over)"}', at=at + 1)
        finally:
            await store.aclose()
    assert len(found) == 2
    first, second = ({**each.labels, "__name__": ""} for each in found)
    assert first == second == {"__name__": "", "alloc": "1", "user": "alice"}
    assert found[0].points == found[1].points == ((at + 1, 1.25),)
