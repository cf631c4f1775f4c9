"""The route: what reaches the service, and attack 11 by every parameter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx2
import pytest

from lattice.base.clock import SystemClock
from lattice.base.fast_start.decode import decode
from lattice.features.top.model import TopAnswer
from tests.fakes.cluster import populated
from tests.fakes.manual_clock import ManualClock
from tests.fakes.server import bearer, composed
from tests.unit.features.top.site import ToldStore


def alice() -> dict[str, str]:
    """Drawn when it is needed: a gate lasts longer than a token."""
    return bearer("sub-alice", preferred_username="alice")


@pytest.fixture
def store() -> ToldStore:
    return ToldStore(ManualClock())


@pytest.fixture
async def rest(store: ToldStore) -> AsyncIterator[httpx2.AsyncClient]:
    faces = composed(populated(SystemClock()), metrics=store)
    transport = httpx2.ASGITransport(app=faces.rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ('1"} or up{a="', {}),
        ("1", {"duration": "5m]) or vector(1)"}),
        ("1", {"duration": "-5m"}),
        ("1", {"duration": "0"}),
        ("1", {"mode": 'summary"} or up{a="'}),
        ("1", {"attempt": '1"} or up{a="'}),
        ("1", {"attempt": "-1"}),
    ],
)
async def test_what_is_no_parameter_is_refused_before_anything_is_asked(
    rest: httpx2.AsyncClient, store: ToldStore, name: str, params: dict[str, str]
) -> None:
    path = f"/v1/allocations/{quote(name, safe='')}/metrics"
    answer = await rest.get(path, params=params, headers=alice())
    assert answer.status_code == 400, answer.text
    assert store.asked == []


@pytest.mark.spec("TOP-4")
async def test_parameters_of_the_store_do_not_reach_it(
    rest: httpx2.AsyncClient, store: ToldStore
) -> None:
    params = {"extra_label": "user=bob", "extra_filters[]": '{user="bob"}', "query": "up"}
    await rest.get("/v1/allocations/1/metrics", params=params, headers=alice())
    assert store.asked
    assert all("bob" not in each and "up{" not in each for each in store.asked)


@pytest.mark.spec("TOP-3", "AUTH-12")
async def test_the_answer_reads_as_the_sdk_reads_it(rest: httpx2.AsyncClient) -> None:
    for mode in ("summary", "per_node", "per_gpu", "wide"):
        answer = await rest.get(
            "/v1/allocations/1/metrics", params={"mode": mode, "history": "true"}, headers=alice()
        )
        assert answer.status_code == 200, answer.text
        assert decode(answer.content, TopAnswer).mode.value == mode
    for other in ("2", "77777"):
        answer = await rest.get(f"/v1/allocations/{other}/metrics", headers=alice())
        assert answer.status_code == 404
