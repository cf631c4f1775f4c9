"""Under which name a job's logs are kept, and when that is not known yet."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation
from lattice.features.logs.service.naming import attempts_of, named
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock

pytestmark = [pytest.mark.spec("LOG-1"), pytest.mark.spec("LOG-3")]

NOW = ManualClock().now()
KNOWN = AccountTree.of([Account("physics", "root"), Account("research", "physics")])


def job(account: str, tenant: str, age: timedelta = timedelta(minutes=1)) -> Allocation:
    return allocation(7, "alice", account, tenant=tenant, submitted=NOW - age)


def prefix(told: Allocation, accounts: AccountTree) -> str:
    return named(told, attempts_of(told)[0], accounts, NOW).prefix


def test_a_tenant_and_a_project() -> None:
    assert prefix(job("research", "physics"), KNOWN).startswith("physics/research/7/logs/")


def test_a_server_that_does_not_know_the_accounts_yet_stores_nothing_in_the_wrong_place() -> None:
    with pytest.raises(Unavailable, match="research"):
        prefix(job("research", "", timedelta(days=1)), AccountTree())


def test_an_account_that_is_newer_than_what_is_known() -> None:
    with pytest.raises(Unavailable):
        prefix(job("brandnew", ""), KNOWN)
    assert prefix(job("gone", "", timedelta(days=1)), KNOWN).startswith("-/gone/7/")


def test_a_cluster_without_accounts() -> None:
    assert prefix(job("", ""), AccountTree()).startswith("-/-/7/")
