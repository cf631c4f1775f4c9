"""Nodes that are claimed, or on which sensitive work runs."""

from __future__ import annotations

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.server.cluster.sensitive_nodes import SensitiveNodes
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))


@pytest.fixture
def scheduler() -> InMemoryScheduler:
    made = InMemoryScheduler(ManualClock())
    made.allocations = [
        allocation(1, "alice", "theory", vcluster="vault", nodes="n[1-2]"),
        allocation(2, "bob", "genomics", nodes="n[3-4]"),
        allocation(3, "alice", "theory", vcluster="vault", nodes=""),
        allocation(4, "alice", "theory", vcluster="vault", nodes="n[7-"),
    ]
    return made


@pytest.mark.spec("OPS-4")
def test_nodes_of_sensitive_jobs_have_it_until_they_end(scheduler: InMemoryScheduler) -> None:
    nodes = SensitiveNodes(scheduler, SensitiveWork(VAULT))
    assert [each for each in ("n1", "n2", "n3", "n4", "n7") if nodes.has(each)] == ["n1", "n2"]
    scheduler.allocations = scheduler.allocations[1:]
    assert not nodes.has("n1")


@pytest.mark.spec("OPS-4")
def test_claimed_nodes_have_it_without_a_job(scheduler: InMemoryScheduler) -> None:
    nodes = SensitiveNodes(scheduler, SensitiveWork(VAULT), {"n4"}.__contains__)
    assert nodes.has("n4")
    assert nodes.has("n1")
    assert not nodes.has("n3")


def test_what_is_not_known_counts_as_sensitive(scheduler: InMemoryScheduler) -> None:
    scheduler.down = True
    assert SensitiveNodes(scheduler, SensitiveWork(VAULT)).has("n9")
    # But a site without such work has none.
    assert not SensitiveNodes(scheduler, SensitiveWork()).has("n9")

    def no_claims(_node: str) -> bool:
        raise Unavailable("The agreed state does not answer.", hint="Try again.")

    scheduler.down = False
    assert SensitiveNodes(scheduler, SensitiveWork(VAULT), no_claims).has("n3")
