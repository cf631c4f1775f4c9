"""The calls of the API: what reaches the store, and what comes back in which form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, Questions
from lattice.base.clock import SystemClock
from lattice.base.errors import PermissionRefused, RateLimited, Unavailable, UsageError
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent
from lattice.features.prometheus.model import PrometheusQuestion
from lattice.features.prometheus.service.queries import WEIGHT, PrometheusService
from tests.fakes.cluster import populated
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.server import bearer, composed

ALICE = Actor(sub="sub-alice", user="alice")
SCOPE = '__name__=~"lattice_.+",user="alice"'


class ToldStore:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: tuple[SeriesPoints, ...] = ()
        self.problem: Exception | None = None

    async def query(self, promql: str, **_: float) -> tuple[SeriesPoints, ...]:
        self.asked.append(promql)
        if self.problem:
            raise self.problem
        return self.told

    query_range = query

    async def series(self, match: str, **_: float) -> tuple[Mapping[str, str], ...]:
        await self.query(match)
        return tuple(each.labels for each in self.told)

    async def write(self, series: Any) -> None:  # noqa: ARG002
        raise AssertionError("nobody writes")


@pytest.fixture
def store() -> ToldStore:
    return ToldStore()


@pytest.fixture
def service(store: ToldStore) -> PrometheusService:
    return PrometheusService(store, ManualClock())


def asking(**words: Any) -> PrometheusQuestion:
    return PrometheusQuestion(**words)


@pytest.mark.spec("TOP-6")
async def test_one_account_gets_no_point_of_anothers_series() -> None:
    store = InMemoryMetricStore()
    clock = ManualClock()
    now = clock.now().timestamp()
    await store.write(
        [
            SeriesPoints({"__name__": name, "user": user, "alloc": alloc}, ((now - 1, value),))
            for name, user, alloc, value in (
                ("lattice_processes", "alice", "1", 1.0),
                ("lattice_processes", "bob", "2", 2.0),
                ("slurm_secret", "alice", "1", 3.0),
                ("lattice_processes", "", "3", 4.0),
            )
        ]
    )
    service = PrometheusService(store, clock)
    for query in (
        "lattice_processes",
        "{}",
        '{user=~".*"}',
        '{__name__=~".+"}',
        'lattice_processes{user=~"alice|bob"}',
        '{alloc!="x"}',
    ):
        answer = await service.query(ALICE, asking(query=query))
        values = [each["value"][1] for each in answer["data"]["result"]]
        assert values == ["1"], query
    for query in ('lattice_processes{user="bob"}', 'x{user=""}', "slurm_secret", '{alloc="3"}'):
        answer = await service.query(ALICE, asking(query=query))
        assert answer["data"]["result"] == [], query
    for call in (service.series, service.labels, service.label_values):
        told = await call(ALICE, asking(match=("{}",), name="user"))
        assert "bob" not in str(told)
        assert "slurm_secret" not in str(told)


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize(
    "query", ['1"} or up{a="', "5m]) or vector(1)", "info(x)", "x{a='b' or c='d'}", ""]
)
async def test_what_is_not_understood_reaches_no_store(
    service: PrometheusService, store: ToldStore, query: str
) -> None:
    with pytest.raises(UsageError):
        await service.query(ALICE, asking(query=query))
    with pytest.raises(UsageError):
        await service.query_range(ALICE, asking(query=query, start="1", end="2", step="1"))
    with pytest.raises(UsageError):
        await service.labels(ALICE, asking(match=(query,)))
    assert store.asked == []


@pytest.mark.spec("TOP-6")
async def test_whoever_has_no_unix_user_owns_no_series(service: PrometheusService) -> None:
    with pytest.raises(PermissionRefused):
        await service.query(Actor(sub="robot", user=""), asking(query="1"))


async def test_a_silent_store_is_said_to_be_and_its_refusals_are_passed_on(
    service: PrometheusService, store: ToldStore
) -> None:
    store.problem = StoreSilent("connection refused")
    with pytest.raises(Unavailable, match="connection refused"):
        await service.query(ALICE, asking(query="x"))
    store.problem = BadQuery("too many points")
    with pytest.raises(UsageError, match="too many points"):
        await service.query(ALICE, asking(query="x"))


@pytest.mark.spec("LIMIT-1")
async def test_some_questions_count_as_one(store: ToldStore) -> None:
    taken = []

    class Limits(CallerLimits):
        async def ask(self, sub: str, kind: Questions) -> None:
            taken.append((sub, kind))
            if len(taken) > 2:
                raise RateLimited("too many", retry_after_s=1)

    service = PrometheusService(store, ManualClock(), Limits())  # type: ignore[abstract]
    for _ in range(2 * WEIGHT):
        await service.query(ALICE, asking(query="x"))
    assert taken == [(ALICE.sub, Questions.QUERY_METRICS)] * 2
    for _ in range(2):
        with pytest.raises(RateLimited):
            await service.query(ALICE, asking(query="x"))


@pytest.mark.spec("TOP-6")
async def test_each_type_has_its_form(service: PrometheusService, store: ToldStore) -> None:
    store.told = (SeriesPoints({"node": "n1"}, ((5.0, 1.5), (6.0, float("nan")))),)
    vector = await service.query(ALICE, asking(query="x", time="6"))
    assert vector == {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [{"metric": {"node": "n1"}, "value": [6.0, "NaN"]}],
        },
    }
    matrix = await service.query(ALICE, asking(query="x[5m]"))
    assert matrix["data"]["result"][0]["values"] == [[5.0, "1.5"], [6.0, "NaN"]]
    store.told = (SeriesPoints({}, ((7.0, 2.0),)),)
    scalar = await service.query(ALICE, asking(query="1+1", time="7"))
    assert scalar["data"] == {"resultType": "scalar", "result": [7.0, "2"]}
    assert store.asked[-1] == "vector(1 + 1)"
    text = await service.query(ALICE, asking(query="'a'", time="7"))
    assert text["data"] == {"resultType": "string", "result": [7.0, "a"]}
    ranged = await service.query_range(
        ALICE, asking(query="x", start="1", end="1970-01-01T00:01:00Z", step="1m")
    )
    assert ranged["data"]["resultType"] == "matrix"


@pytest.mark.parametrize(
    "words",
    [
        {"start": "", "end": "2", "step": "1"},
        {"start": "3", "end": "2", "step": "1"},
        {"start": "0", "end": "20000", "step": "1"},
        {"start": "0", "end": "2", "step": "0"},
        {"start": "0", "end": "2", "step": "-1"},
        {"start": "0", "end": "2", "step": "1m]) or vector(1)"},
        {"start": "0", "end": "nan", "step": "1"},
        {"start": "0", "end": "1e99", "step": "1"},
        {"start": "0", "end": "2", "step": "1", "query": "x[5m]"},
    ],
)
async def test_a_range_has_bounds(
    service: PrometheusService, store: ToldStore, words: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        await service.query_range(ALICE, asking(**{"query": "x"} | words))
    assert store.asked == []


@pytest.mark.spec("TOP-6")
async def test_labels_are_those_of_the_callers_series(
    service: PrometheusService, store: ToldStore
) -> None:
    store.told = (SeriesPoints({"__name__": "lattice_processes", "node": "n1"}, ()),)
    assert (await service.labels(ALICE, asking()))["data"] == ["__name__", "node"]
    assert store.asked == [f"{{{SCOPE}}}"]
    assert (await service.label_values(ALICE, asking(name="node")))["data"] == ["n1"]
    with pytest.raises(UsageError):
        await service.label_values(ALICE, asking(name='a"b'))
    with pytest.raises(UsageError):
        await service.series(ALICE, asking())


@pytest.fixture
async def rest() -> AsyncIterator[httpx2.AsyncClient]:
    faces = composed(populated(SystemClock()))
    transport = httpx2.ASGITransport(app=faces.rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


PREFIX = "/prometheus/api/v1"


def alice() -> dict[str, str]:
    """Drawn when it is needed: a gate lasts longer than a token."""
    return bearer("sub-alice", preferred_username="alice")


@pytest.mark.spec("TOP-6")
async def test_both_methods_of_each_call(rest: httpx2.AsyncClient) -> None:
    for call, words in (
        ("query", {"query": "lattice_processes"}),
        ("query_range", {"query": "lattice_processes", "start": "1", "end": "2", "step": "1"}),
        ("series", {"match[]": "lattice_processes"}),
        ("labels", {}),
    ):
        got = await rest.get(f"{PREFIX}/{call}", params=words, headers=alice())
        posted = await rest.post(f"{PREFIX}/{call}", data=words, headers=alice())
        if not words:
            form = {**alice(), "content-type": "application/x-www-form-urlencoded"}
            posted = await rest.post(f"{PREFIX}/{call}", content="", headers=form)
        assert (got.status_code, posted.status_code) == (200, 200), (call, got.text, posted.text)
        assert got.json()["status"] == posted.json()["status"] == "success"
    values = await rest.get(f"{PREFIX}/label/node/values", headers=alice())
    assert values.json() == {"status": "success", "data": []}


@pytest.mark.spec("TOP-6")
async def test_nobody_asks_without_a_token(rest: httpx2.AsyncClient) -> None:
    for call in ("query", "query_range", "series", "labels", "label/node/values"):
        assert (await rest.get(f"{PREFIX}/{call}")).status_code == 401
        if "label/" not in call:
            assert (await rest.post(f"{PREFIX}/{call}")).status_code == 401


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize(
    "words",
    [
        {"query": "x", "extra_label": "user=bob"},
        {"query": "x", "extra_filters[]": '{user="bob"}'},
        {"query": '1"} or up{a="'},
        {"query": ["x", "y"]},
        {"query": "x", "time": "soon"},
    ],
)
async def test_refusals_have_the_form_that_clients_show(
    rest: httpx2.AsyncClient, words: dict[str, Any]
) -> None:
    for answer in (
        await rest.get(f"{PREFIX}/query", params=words, headers=alice()),
        await rest.post(f"{PREFIX}/query", data=words, headers=alice()),
    ):
        assert answer.status_code == 400
        told = answer.json()
        assert (told["status"], told["errorType"]) == ("error", "bad_data")
        assert told["error"]


async def test_a_body_has_bounds(rest: httpx2.AsyncClient) -> None:
    large = await rest.post(f"{PREFIX}/query", data={"query": "x" * 50_000}, headers=alice())
    assert large.status_code == 400
    wrong = await rest.post(f"{PREFIX}/query", json={"query": "x"}, headers=alice())
    assert wrong.status_code == 400
