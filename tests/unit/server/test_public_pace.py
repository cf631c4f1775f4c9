"""A storm of strangers on public routes: held, refused, and nobody else's matter."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from lattice.access.permission import Permission
from lattice.base.errors import LatticeError, RateLimited
from lattice.features.health.wire import _encoded
from lattice.server.listeners.public_pace import HOLD_S, PER_MINUTE, PublicPace
from tests.fakes.manual_clock import ManualClock
from tests.fakes.server import bearer, composed

PUBLIC = {
    "/healthz",
    "/readyz",
    "/v1/openapi.json",
    "/v1/auth/discovery",
    "/v1/auth/munge",
    "/v1/auth/slurm",
    "/v1/agents/enrol",
}


class Site:
    def __init__(self, per_minute: int = 3) -> None:
        self.clock = ManualClock()
        self.served: list[str] = []
        self.held: list[float] = []
        self.refused: list[str] = []
        self.errors: list[LatticeError] = []
        self.pace = PublicPace(
            self._serve, PUBLIC, self.clock, self.refused.append, self._answer,
            per_minute=per_minute, sleep=self._sleep,
        )  # fmt: skip

    async def _serve(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.served.append(scope["path"])

    def _answer(self, _request: Request, error: LatticeError) -> Response:
        self.errors.append(error)
        return Response()

    async def _sleep(self, seconds: float) -> None:
        self.held.append(seconds)

    async def ask(self, path: str = "/v1/openapi.json", address: str = "10.0.0.1") -> None:
        scope = {"type": "http", "path": path, "client": (address, 1)}
        unused: Any = None
        await self.pace(scope, unused, _drop)


async def _drop(_message: Any) -> None:
    pass


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("public-storm")
async def test_beyond_the_rate_a_public_answer_is_held_and_refused() -> None:
    """Attack 34."""
    site = Site()
    for _ in range(3):
        await site.ask()
    await site.ask()
    (refusal,) = site.errors
    assert isinstance(refusal, RateLimited)
    assert refusal.retry_after_s == 20
    assert (len(site.served), site.held, site.refused) == (3, [HOLD_S], ["public"])
    site.clock.advance(20)
    await site.ask()
    assert len(site.served) == 4


@pytest.mark.spec("LIMIT-4")
async def test_a_storm_is_its_own_addresss_matter_and_no_matter_of_callers() -> None:
    site = Site()
    for _ in range(3):
        await site.ask()
    await site.ask(address="10.0.0.2")
    for _ in range(10):
        await site.ask("/v1/allocations")
    assert site.held == []
    assert len(site.served) == 14


@pytest.mark.spec("LIMIT-4")
async def test_health_is_held_and_never_refused() -> None:
    """Behind a proxy a storm and the load balancer's own question have one address."""
    site = Site()
    for _ in range(5):
        await site.ask("/healthz")
    assert (len(site.served), site.held, site.refused) == (5, [HOLD_S] * 2, [])


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("public-storm")
async def test_every_public_route_of_the_server_is_paced() -> None:
    assert composed().routes.paths_of(Permission.PUBLIC.value) == PUBLIC


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("public-storm")
@pytest.mark.parametrize("prefix", ["/v1", "/api/v1"])
async def test_the_whole_server_refuses_a_storm_and_serves_its_callers(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr("lattice.server.listeners.public_pace.HOLD_S", 0.0)
    transport = httpx2.ASGITransport(app=composed().rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as rest:
        for _ in range(PER_MINUTE):
            assert (await rest.get(f"{prefix}/auth/discovery")).status_code == 200
        # The bucket fills evenly, so a few more may pass meanwhile.
        answers = [await rest.get(f"{prefix}/auth/discovery") for _ in range(PER_MINUTE)]
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert refused[-1].headers["retry-after"] == "1"
        assert refused[-1].json()["error"]["code"] == "rate_limited"
        headers = bearer("alice-1", preferred_username="alice")
        assert (await rest.get("/v1/auth/whoami", headers=headers)).status_code == 200
        assert (await rest.get("/healthz")).status_code == 200


def test_the_description_is_encoded_once() -> None:
    text = '{"openapi": "3.1.0"}'
    assert _encoded(text) is _encoded(text)
