"""Attack 12: whatever names an account, a tenant or a node has, keys stay where they belong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import attempts_of
from lattice.domain.logs import LogKind
from lattice.domain.objects import BadKeyPart, check_key, key_of, unescaped
from lattice.features.logs.service.log_keys import AttemptName
from tests.fakes.cluster import allocation

SUBMITTED = datetime(2026, 11, 15, 13, 0, tzinfo=UTC)
HOSTILE = ["../", "..", "%2e%2e%2f", "//", "a\0b", "x" * 1100, "\u0430dmin", "end.", "a\nb", "-"]
NAMES = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=20)


def name_of(tenant: str, account: str, job_id: int = 7) -> AttemptName:
    made = allocation(job_id, "alice", "research", submitted=SUBMITTED, tenant=tenant)
    job = replace(made, account=account)
    return AttemptName(job, attempts_of(job)[0])


@pytest.mark.spec("LOG-1")
@given(NAMES, NAMES, NAMES, st.integers(1, 999_999))
def test_a_key_says_what_it_was_made_of_and_stays_in_its_tenant(
    tenant: str, account: str, node: str, number: int
) -> None:
    try:
        key = name_of(tenant, account).chunk_key(LogKind.STDERR, node, number)
    except BadKeyPart:
        return
    check_key(key)
    assert key.startswith(key_of(tenant) + "/")
    parts = [unescaped(part) for part in key.split("/")]
    stamp = f"{int(SUBMITTED.timestamp())}-1"
    chunk = f"chunk_{number:06d}.log.zst"
    assert parts == [tenant, account, "7", "logs", stamp, "stderr", node, chunk]


@pytest.mark.spec("LOG-1")
@given(NAMES, NAMES)
def test_two_tenants_never_meet(one: str, other: str) -> None:
    try:
        first, second = name_of(one, "research").prefix, name_of(other, "research").prefix
    except BadKeyPart:
        return
    meet = first.startswith(second + "/") or second.startswith(first + "/") or first == second
    assert meet == (one == other)
