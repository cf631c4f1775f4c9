"""Numbers, texts and buckets: what one caller may ask for, by the clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.limits import (
    DEFAULTS,
    Buckets,
    LimitTable,
    Questions,
    Sessions,
    caller_key,
    owner_of,
    too_many_questions,
    too_many_sessions,
)

ASK = Questions.QUERY_METRICS


@pytest.mark.spec("LIMIT-1")
def test_the_numbers_are_those_promised() -> None:
    assert {kind.value: number for kind, number in DEFAULTS.items()} == {
        "attach": 5,
        "stream_logs": 10,
        "stream_metrics": 5,
        "query_metrics": 60,
        "diagnostics": 30,
        "compare": 10,
        "submit": 120,
        "cancel": 300,
        "query_audit": 60,
        "review_audit": 6,
    }


@pytest.mark.spec("LIMIT-3")
def test_single_callers_stand_over_all() -> None:
    table = LimitTable(dict(DEFAULTS) | {ASK: 7}, {"u-1": {ASK: 100, Sessions.ATTACH: 0}})
    assert table.of("u-1", ASK) == 100
    assert table.of("u-1", Sessions.ATTACH) == 0
    assert table.of("u-1", Sessions.STREAM_LOGS) == 10
    assert table.of("U-1", ASK) == 7, "a sub is its letters, capital or small"


@pytest.mark.spec("LIMIT-2")
def test_the_words_of_a_refusal() -> None:
    error = too_many_sessions(5, 5)
    assert error.message == (
        "maximum concurrent sessions reached (5/5). Close an existing session to open a new one."
    )
    assert error.retry_after_s is None
    paced = too_many_questions(ASK, 60, 0.2)
    assert paced.retry_after_s == 1
    assert too_many_questions(ASK, 60, 6.01).retry_after_s == 7
    assert "60 a minute" in paced.message
    assert too_many_questions(ASK, 0, 60.0).retry_after_s is None


@pytest.mark.spec("LIMIT-2")
@given(
    per_minute=st.integers(1, 200),
    pauses=st.lists(st.floats(0, 20, allow_nan=False), max_size=400),
    start=st.floats(0, 1e6),
)
def test_never_more_than_burst_and_rate_allow(
    per_minute: int, pauses: list[float], start: float
) -> None:
    buckets, now = Buckets(), start
    granted: list[float] = []
    for pause_s in [0.0] * per_minute + pauses:
        now += pause_s
        verdict = buckets.take("u", ASK, per_minute, now)
        if verdict.granted:
            granted.append(now)
        else:
            assert 0 < verdict.wait_s <= 60.0
    for first, since in enumerate(granted):
        for last in range(first, len(granted)):
            allowed = per_minute + per_minute / 60.0 * (granted[last] - since)
            assert last - first + 1 <= allowed + 1e-3


@given(per_minute=st.integers(1, 1000))
def test_a_whole_burst_then_none_then_one_when_told(per_minute: int) -> None:
    buckets = Buckets()
    for _ in range(per_minute):
        assert buckets.take("u", ASK, per_minute, 100.0).granted
    refused = buckets.take("u", ASK, per_minute, 100.0)
    assert not refused.granted
    assert not buckets.take("u", ASK, per_minute, 100.0 + refused.wait_s * 0.9).granted
    assert buckets.take("u", ASK, per_minute, 100.0 + refused.wait_s).granted
    assert not buckets.take("u", ASK, per_minute, 100.0 + refused.wait_s).granted


def test_nothing_is_granted_where_it_is_switched_off() -> None:
    buckets = Buckets()
    assert not buckets.take("u", ASK, 0, 100.0).granted
    assert len(buckets) == 0


@pytest.mark.spec("LIMIT-1")
def test_callers_and_kinds_have_buckets_of_their_own() -> None:
    buckets = Buckets()
    assert buckets.take("u", ASK, 1, 0.0).granted
    assert buckets.take("U", ASK, 1, 0.0).granted
    assert buckets.take("u", Questions.COMPARE, 1, 0.0).granted
    assert not buckets.take("u", ASK, 1, 0.0).granted


@pytest.mark.spec("LIMIT-1")
def test_a_flood_of_callers_is_bounded_and_forgotten() -> None:
    """Attack 23."""
    buckets = Buckets(most=10_000)
    for number in range(30_000):
        buckets.take(f"u-{number}", ASK, 60, number / 1000)
    assert len(buckets) <= 10_001
    for _ in range(len(buckets)):
        buckets.take("someone", ASK, 60, 1000.0)
    assert len(buckets) == 1


def test_dropping_full_buckets_hands_out_nothing() -> None:
    buckets = Buckets(most=10)
    for _ in range(60):
        assert buckets.take("u", ASK, 60, 0.0).granted
    for number in range(9):
        buckets.take(f"other-{number}", ASK, 60, 0.5)
    assert buckets.early == 0
    assert not buckets.take("u", ASK, 60, 0.5).granted


@pytest.mark.spec("LIMIT-2")
@given(
    subs=st.lists(st.text(max_size=20), min_size=1, max_size=50),
    replicas=st.sets(st.sampled_from(["server-1", "server-2", "server-3", "server-4"]), min_size=2),
)
def test_only_the_buckets_of_a_lost_replica_move(subs: list[str], replicas: set[str]) -> None:
    gone = min(replicas)
    for sub in subs:
        before = owner_of(sub, ASK, replicas)
        assert before == owner_of(sub, ASK, sorted(replicas, reverse=True))
        if before != gone:
            assert owner_of(sub, ASK, replicas - {gone}) == before


def test_buckets_spread_over_the_replicas() -> None:
    replicas = ["server-1", "server-2", "server-3"]
    owners = [owner_of(f"u-{number}", ASK, replicas) for number in range(3000)]
    assert all(800 < owners.count(each) < 1200 for each in replicas)
    assert owner_of("u", ASK, []) is None


def test_a_caller_in_a_key_is_plain_and_exact() -> None:
    keys = {caller_key(sub) for sub in ("alice", "Alice", "alice ", "a/../b", "\udcff", "")}
    assert len(keys) == 6
    assert all(len(key) == 32 and key.isalnum() and key.isascii() for key in keys)
