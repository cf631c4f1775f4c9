from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.allocation import Allocation
from lattice.domain.scheduler import LiveCluster, Scope
from tests.unit.domain.test_allocation import JOB, NOON

PEOPLE = st.sampled_from(["alice", "bob", "carol", ""])
ACCOUNTS = st.sampled_from(["research", "lasers", "biology", ""])
ALLOCATIONS = st.lists(
    st.builds(
        lambda number, user, account: replace(
            JOB, id=str(number), job_id=number, user=user, account=account
        ),
        st.integers(1, 10**6),
        PEOPLE,
        ACCOUNTS,
    ),
    unique_by=lambda each: each.job_id,
    max_size=20,
)
SCOPES = st.builds(Scope, st.frozensets(PEOPLE), st.frozensets(ACCOUNTS), st.booleans())


@pytest.mark.spec("AUTH-7")
@given(ALLOCATIONS, SCOPES)
def test_visible_is_exactly_what_the_scope_covers_each_once(
    allocations: list[Allocation], scope: Scope
) -> None:
    cluster = LiveCluster(read_at=NOON, allocations=allocations)
    seen = [each.id for each in cluster.visible(scope)]
    assert sorted(seen) == sorted(each.id for each in allocations if scope.covers(each))


def test_an_allocation_without_owner_or_account_is_covered_by_no_name() -> None:
    nobody = replace(JOB, user="", account="")
    assert not Scope(frozenset({""}), frozenset({""})).covers(nobody)
    assert Scope(everything=True).covers(nobody)


def test_a_confirmed_cluster_is_the_same_at_a_later_time() -> None:
    cluster = LiveCluster(read_at=NOON, allocations=[JOB])
    later = cluster.confirmed(NOON + timedelta(seconds=2))
    assert later.read_at == NOON + timedelta(seconds=2)
    assert cluster.read_at == NOON
    assert later.allocations is cluster.allocations
    assert list(later.visible(Scope(frozenset({"alice"})))) == [JOB]
