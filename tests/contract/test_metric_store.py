"""What every metric store behind the port promises: fake, VictoriaMetrics, Prometheus."""

from __future__ import annotations

import struct
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.onlywrite import OnlyWrite
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.domain.measured import Shown
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent
from lattice.features.top.service.composer import Climbs
from lattice.observe.metric_query import OwnerFilter
from lattice.wire.remotewrite import WriteEncoder
from tests.contract.metric_stores import KINDS, Place, engine, place_of

pytestmark = pytest.mark.timeout(120)

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


@pytest.mark.spec("TOP-2", "TOP-4")
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


@pytest.mark.spec("TOP-4")
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


@pytest.mark.spec("TOP-2")
async def test_rows_that_were_encoded_before_come_back_as_points(place: Place) -> None:
    at = now()
    prepared = WriteEncoder().prepare(
        [{"__name__": "lattice_rows", "alloc": "1", "node": each} for each in ("n1", "n2")]
    )
    at_ms = round(at * 1000)
    rows = [
        (struct.pack("<2d", 1.25, 2.5), (at_ms - 1000, at_ms - 900)),
        (struct.pack("<2d", 1.5, 3.5), (at_ms, at_ms + 40)),
    ]
    other = WriteEncoder().encode([series("lattice_rows", 7.0, at, alloc="2")])
    await place.store.write_encoded(prepared.encode(rows) + other)
    await place.store.write_encoded(b"")
    await place.settle()
    found = await place.store.query("lattice_rows", at=at + 1)
    assert sorted(each.points[0][1] for each in found) == [1.5, 3.5, 7.0]
    (first,) = await place.store.query_range(
        'lattice_rows{node="n1"}', start=at - 1, end=at, step_s=1
    )
    assert first.points == ((at - 1, 1.25), (at, 1.5))


async def test_nothing_written_is_nothing_asked(place: Place) -> None:
    place.hang()
    await place.store.write([])
    place.go_on()


async def _ask_a_store_that_hangs(place: Place) -> float:
    at = now()
    await place.store.write([series("lattice_e", 1.0, at)])
    await place.settle()
    place.hang()
    began = time.monotonic()
    with pytest.raises(StoreSilent):
        await place.store.write([series("lattice_e", 2.0, at + 1)])
    with pytest.raises(StoreSilent):
        await place.store.query("lattice_e", at=at + 1, within_s=0.5)
    took_s = time.monotonic() - began
    place.go_on()
    (found,) = await place.store.query("lattice_e", at=at + 1, within_s=60)
    assert found.points[0][1] in {1.0, 2.0}
    return took_s


async def test_a_store_that_hangs_is_silent_and_answers_again(place: Place) -> None:
    await _ask_a_store_that_hangs(place)


@pytest.mark.timing
async def test_a_store_that_hangs_is_given_up_within_five_seconds(place: Place) -> None:
    assert await _ask_a_store_that_hangs(place) < 5


class TestTheMeanOfACounter:
    """What was counted between its first sample and its last, with nothing guessed at the edges."""

    OWNER = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))
    LASTED_S, EVERY_S = 470, 30

    async def mean(
        self, place: Place, points: dict[int, float], clock: dict[int, float] | None = None
    ) -> list[float]:
        """Of a counter that had these values so many seconds after the job began.

        `clock`: the counter by which the moments of a node's samples are known.
        """
        began = now() - self.LASTED_S
        shared = {**dict(self.OWNER.labels), "node": "n1"}
        await place.store.write(
            [
                SeriesPoints(
                    {"__name__": f"lattice_{name}", **shared},
                    tuple((began + after, value) for after, value in told.items()),
                )
                for name, told in (
                    ("network_tx_bytes_total", points),
                    ("cpu_seconds_total", points if clock is None else clock),
                )
            ]
        )
        await place.settle()
        climbs = Climbs(self.OWNER, (Shown.NETWORK_TX_BYTES,))
        at = began + self.LASTED_S
        query = climbs.query(at, self.LASTED_S, self.EVERY_S)
        found = await place.store.query(str(query), at=at)
        return list(climbs.means(found).values())

    @pytest.mark.spec("TOP-4")
    @pytest.mark.parametrize(
        ("first", "last"),
        [(28, 448), (5, 465), (150, 448), (28, 200), (1, 91), (-25, 455), (19, 469)],
    )
    async def test_whenever_it_was_first_and_last_seen(
        self, place: Place, first: int, last: int
    ) -> None:
        moments = range(first, last + 1, self.EVERY_S)
        found = await self.mean(place, {each: 1.5 * (each - first) for each in moments})
        assert found == [pytest.approx(1.5, rel=0.02)]

    @pytest.mark.spec("TOP-4")
    async def test_however_unevenly_it_grew(self, place: Place) -> None:
        moments = range(28, 449, self.EVERY_S)
        found = await self.mean(place, {each: 7000.0 + 840.0 * (each > 100) for each in moments})
        assert found == [pytest.approx(2.0, rel=0.02)]

    @pytest.mark.spec("TOP-4")
    async def test_begun_anew_it_is_no_loss(self, place: Place) -> None:
        moments = range(28, 449, self.EVERY_S)
        found = await self.mean(place, {each: 1.5 * (each % 240) for each in moments})
        assert found == [pytest.approx(1.5, rel=0.1)]

    @pytest.mark.spec("TOP-4")
    async def test_with_fewer_samples_than_its_node_it_is_a_rate(self, place: Place) -> None:
        moments = list(range(28, 449, self.EVERY_S))
        counted = {each: 1.5 * each for each in moments[4:]}
        found = await self.mean(place, counted, dict.fromkeys(moments, 0.0))
        assert len(found) == 1
        assert 1.0 < found[0] < 1.6, "each store in its own way"

    @pytest.mark.spec("SRC-2")
    async def test_of_one_sample_there_is_none(self, place: Place) -> None:
        assert await self.mean(place, {200: 7.0}) == []


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("kind", ["victoriametrics", "prometheus"])
async def test_what_a_node_writes_by_itself_is_found_as_what_servers_write(
    kind: str, tmp_path: Path
) -> None:
    at = now()
    mine = [series("lattice_straight", 1.25, at, alloc="1", user="alice", vcluster="")]
    async with engine(kind, tmp_path) as (_, endpoint):
        await OnlyWrite(endpoint).write(mine)
        store = HttpMetricStore(HttpAddress(url=endpoint))
        try:
            await store.write([series("lattice_over", 1.25, at, alloc="1", user="alice")])
            if kind == "victoriametrics":
                with urllib.request.urlopen(f"{endpoint}/internal/force_flush", timeout=60):
                    pass
            found = await store.query('{__name__=~"lattice_(straight|over)"}', at=at + 1)
        finally:
            await store.aclose()
    assert len(found) == 2
    first, second = ({**each.labels, "__name__": ""} for each in found)
    assert first == second == {"__name__": "", "alloc": "1", "user": "alice"}
    assert found[0].points == found[1].points == ((at + 1, 1.25),)
