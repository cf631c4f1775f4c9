"""What a claim covers, and what its record may hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.claim import (
    BadClaimRecord,
    ClaimSet,
    ClaimStep,
    NodeClaim,
    read_claim,
    written_claim,
)
from tests.fakes.claimed_nodes import node_claim
from tests.fakes.cluster import allocation

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def claim(user: str = "alice", *nodes: str, **more: Any) -> NodeClaim:
    facts = {"since": (NOW - 2 * HOUR).timestamp(), "stepped": (NOW - 2 * HOUR).timestamp()} | more
    return node_claim(user, *(nodes or ("n1", "n2")), **facts)


def job(**more: Any) -> Allocation:
    return allocation(42, "alice", "research", **{"submitted": NOW - HOUR, "nodes": "n1"} | more)


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("nodes", ["n1", "n2", "n[1-2]"])
def test_a_job_on_nodes_that_its_owner_claimed_is_served(nodes: str) -> None:
    assert ClaimSet((claim(),)).fault_of(job(nodes=nodes)) == ""


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize(
    ("held", "more"),
    [
        ((), {}),
        ((claim("bob"),), {}),
        ((claim("alice", "n2"),), {}),
        ((claim(),), {"nodes": "n[1-3]"}),
        ((claim(),), {"nodes": ""}),
        ((claim(),), {"nodes": "n1["}),
        ((claim(step=ClaimStep.CLAIMING),), {}),
        ((claim(undone="busy"),), {}),
        ((claim(step=ClaimStep.RELEASING),), {}),
        ((claim(since=NOW.timestamp()),), {}),
    ],
    ids=[
        "no claim",
        "another's claim",
        "another node",
        "one node too many",
        "no nodes",
        "bad nodes",
        "not made yet",
        "undone",
        "being released",
        "claimed after its start",
    ],
)
def test_a_job_elsewhere_is_not_served(held: tuple[NodeClaim, ...], more: dict[str, Any]) -> None:
    assert "that alice had not claimed" in ClaimSet(held).fault_of(job(**more))


def test_two_claims_of_one_person_do_not_make_one() -> None:
    """Their reservations are two, so no job runs on both."""
    held = (claim("alice", "n1"), claim("alice", "n2", claim_id="c0ffee000002"))
    assert ClaimSet(held).fault_of(job(nodes="n[1-2]")) != ""


@pytest.mark.spec("AUDIT-1")
def test_a_job_that_ended_while_its_nodes_were_claimed_is_served_after_the_release() -> None:
    past = claim(step=ClaimStep.RELEASING, until=NOW.timestamp(), stepped=NOW.timestamp())
    done = job(state=State.COMPLETED, ended=NOW - timedelta(minutes=1))
    assert ClaimSet((), (past,)).fault_of(done) == ""
    late = replace(done, ended=NOW + timedelta(minutes=1))
    assert "it ran on n1" in ClaimSet((), (past,)).fault_of(late)
    later = replace(done, started=NOW + HOUR, ended=NOW + 2 * HOUR)
    assert ClaimSet((), (past,)).fault_of(later) != ""
    running = replace(done, state=State.RUNNING, ended=None)
    assert "it runs on n1" in ClaimSet((), (past,)).fault_of(running)


def test_what_ran_before_the_claim_is_not_served() -> None:
    made = claim(since=NOW.timestamp())
    before = timedelta(seconds=10)
    short = job(state=State.COMPLETED, started=NOW - before, ended=NOW - before / 2)
    assert ClaimSet((made,)).fault_of(short) != ""


def test_every_run_counts() -> None:
    first = Attempt(
        number=1,
        state=State.NODE_FAIL,
        submitted=NOW - HOUR,
        started=NOW - HOUR,
        ended=NOW - HOUR / 2,
        nodes="n3",
    )
    second = replace(first, number=2, state=State.RUNNING, nodes="n1", ended=None)
    both = job(attempts=(first, second))
    assert "it ran on n3" in ClaimSet((claim(),)).fault_of(both)
    covered = replace(both, attempts=(replace(first, nodes="n2"), second))
    assert ClaimSet((claim(),)).fault_of(covered) == ""


def test_a_job_that_waits_ran_nowhere() -> None:
    waits = job(state=State.PENDING, started=None, nodes="")
    assert ClaimSet().fault_of(waits) == ""


def test_only_claims_with_a_reservation_run_jobs() -> None:
    older = claim("alice", "n1", since=1.0)
    newer = claim("alice", "n2", claim_id="c0ffee000002", since=2.0)
    begun = claim("alice", "n3", claim_id="c0ffee000003", step=ClaimStep.CLAIMING)
    bobs = claim("bob", "n4", claim_id="c0ffee000004")
    assert ClaimSet((newer, begun, bobs, older)).of_user("alice") == (older, newer)


def test_a_record_is_read_as_it_was_written() -> None:
    made = claim(reason="trial 7", tenant="physics")
    assert read_claim(made.id, written_claim(made)) == made


@pytest.mark.parametrize(
    ("claim_id", "value"),
    [
        ("c0ffee000001", b""),
        ("c0ffee000001", b"[]"),
        ("c0ffee000001", b"{}"),
        ("c0ffee000002", written_claim(claim())),
        ("c0ffee000001", written_claim(claim(""))),
        ("c0ffee000001", written_claim(replace(claim(), nodes=()))),
        ("c0ffee000001", written_claim(replace(claim(), nodes=("n 1",)))),
    ],
    ids=["empty", "list", "no fields", "another id", "no user", "no nodes", "no node name"],
)
def test_a_bad_record_is_none(claim_id: str, value: bytes) -> None:
    with pytest.raises(BadClaimRecord):
        read_claim(claim_id, value)
