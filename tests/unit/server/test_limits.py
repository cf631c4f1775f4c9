"""Questions paced over replicas: one bucket a caller, on one owner, whoever is asked."""

from __future__ import annotations

from collections.abc import Collection

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.limits import DEFAULTS, LimitTable, LimitVerdict, Questions, Sessions, owner_of
from lattice.base.errors import RateLimited, Unavailable
from lattice.server.cluster.limits import Limits, NoOtherReplica, Rates, limit_table
from lattice.server.config.sections import RateLimitsSection, UserLimits
from lattice.wire.status import grpc_status, http_error
from tests.fakes.manual_clock import ManualClock

ASK = Questions.QUERY_METRICS
TABLE = LimitTable(dict(DEFAULTS) | {ASK: 6})


class Ring:
    """Replicas in memory that can ask each other, unless the way is cut."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.up: set[str] = set(names)
        self.cut = False
        self.waits: list[int] = []
        self.rates = {
            name: Rates(TABLE, self.clock, replica=name, replicas=self.live, others=self)
            for name in names
        }

    def live(self) -> Collection[str]:
        return frozenset(self.up)

    async def take(self, replica: str, sub: str, kind: Questions) -> LimitVerdict:
        if self.cut or replica not in self.up:
            raise Unavailable("no way")
        return self.rates[replica].answer(sub, kind)

    async def granted(self, asked: str, sub: str = "u", times: int = 1) -> int:
        count = 0
        for _ in range(times):
            try:
                await self.rates[asked].ask(sub, ASK)
                count += 1
            except RateLimited as refused:
                self.waits.append(refused.retry_after_s or 0)
        return count


@pytest.mark.spec("LIMIT-2")
async def test_two_replicas_are_one_bucket() -> None:
    """Attack 23."""
    ring = Ring("server-1", "server-2")
    total = 0
    for asked in ("server-1", "server-2") * 10:
        total += await ring.granted(asked)
    assert total == 6
    assert sum(rates.stood_in_total for rates in ring.rates.values()) == 0


@pytest.mark.spec("LIMIT-2")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["server-1", "server-2", "server-3"]), st.floats(0, 8, allow_nan=False)
        ),
        max_size=80,
    )
)
async def test_never_more_than_one_bucket_grants(asks: list[tuple[str, float]]) -> None:
    ring = Ring("server-1", "server-2", "server-3")
    begun, total = ring.clock.monotonic(), 0
    for asked, pause_s in asks:
        ring.clock.advance(pause_s)
        total += await ring.granted(asked)
    assert total <= 6 + 6 / 60 * (ring.clock.monotonic() - begun) + 1e-6
    assert all(1 <= wait_s <= 10 for wait_s in ring.waits)


@pytest.mark.spec("LIMIT-2")
async def test_a_change_of_replicas_grants_one_fresh_bucket_and_no_more() -> None:
    ring = Ring("server-1", "server-2")
    owner = owner_of("u", ASK, ring.up)
    assert owner is not None
    other = next(name for name in ring.up if name != owner)
    assert await ring.granted(other, times=20) == 6
    ring.up.discard(owner)
    assert await ring.granted(other, times=20) == 6
    ring.up.add(owner)
    assert await ring.granted(other, times=20) == 0


async def test_an_owner_that_does_not_answer_is_stood_in_for_and_counted() -> None:
    ring = Ring("server-1", "server-2")
    owner = owner_of("u", ASK, ring.up)
    asked = next(name for name in ring.up if name != owner)
    ring.cut = True
    assert await ring.granted(asked, times=20) == 6
    assert ring.rates[asked].stood_in_total == 20


async def test_one_server_alone() -> None:
    clock = ManualClock()
    rates = Rates(TABLE, clock, replica="s", replicas=lambda: (), others=NoOtherReplica())
    for _ in range(6):
        await rates.ask("u", ASK)
    with pytest.raises(RateLimited) as refused:
        await rates.ask("u", ASK)
    assert refused.value.retry_after_s == 10
    clock.advance(10)
    await rates.ask("u", ASK)
    assert rates.stood_in_total == 0


@pytest.mark.spec("LIMIT-2")
async def test_a_refusal_on_both_wires_and_in_the_figures() -> None:
    refusals: list[str] = []
    rates = Rates(
        LimitTable(dict(DEFAULTS) | {ASK: 1}),
        ManualClock(),
        replica="s",
        replicas=lambda: ("s",),
        others=NoOtherReplica(),
    )
    limits = Limits(None, rates, refusals.append)  # type: ignore[arg-type]
    await limits.ask("u", ASK)
    with pytest.raises(RateLimited) as refused:
        await limits.ask("u", ASK)
    assert refusals == ["query_metrics"]
    status, _, headers = http_error(refused.value, "r")
    assert (status, headers["Retry-After"]) == (429, "60")
    code, _, trailers = grpc_status(refused.value)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ("retry-after", "60") in trailers


@pytest.mark.spec("LIMIT-1", "LIMIT-3")
def test_the_configurations_numbers() -> None:
    table = limit_table(
        RateLimitsSection(
            compare_per_minute=3,
            users={"u-1": UserLimits(attach_max_concurrent=50), "U-1": UserLimits()},
        )
    )
    assert table.of("anyone", Questions.COMPARE) == 3
    assert table.of("u-1", Sessions.ATTACH) == 50
    assert table.of("U-1", Sessions.ATTACH) == 5
    assert {kind: table.of("x", kind) for kind in DEFAULTS} == dict(DEFAULTS) | {
        Questions.COMPARE: 3
    }
