"""Who sees which runs, and what happens while MLflow is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.base.errors import NotFound
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.allocations.service import AllocationService
from lattice.features.runs.service import MOST_ALLOCATIONS, RunService
from lattice.foundation.foundation import Foundation
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.required_trail import RequiredTrail

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")
ADMIN = Actor(sub="sub-root", user="root", role=Role.SYSTEM_ADMIN)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))


class Site:
    """Jobs 42 of alice and 43 of bob, both with a run called `fit`."""

    def __init__(self, **parts: object) -> None:
        self.clock = ManualClock()
        self.began = self.clock.now() - timedelta(hours=1)
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.scheduler.allocations = [
            self.job(42, "alice", "research"),
            self.job(43, "bob", "genomics"),
        ]
        self.store = InMemoryRunStore()
        self.run("fit", 42)
        self.run("fit", 43, user="bob")
        self.run("test", 42)
        self.parts = parts

    def job(self, job_id: int, user: str, account: str, **more: object) -> object:
        return allocation(job_id, user, account, submitted=self.began, **more)

    def run(self, name: str, job_id: int, *, user: str = "alice", **more: str) -> None:
        started = self.began + timedelta(minutes=1 + len(self.store.runs))
        tags = {"slurm.job.id": str(job_id), "slurm.cluster.name": "lab"}
        checkpoints = {f"checkpoint.{each}.sha256": text for each, text in more.items()}
        self.store.add(name, tags | checkpoints, started, user=user)

    @property
    def foundation(self) -> Foundation:
        parts = {"run_store": self.store} | self.parts
        return in_memory_foundation(self.clock, scheduler=self.scheduler, **parts)

    @property
    def service(self) -> RunService:
        base = self.foundation
        return RunService(base.measurements, base.runs, base.limits)

    @property
    def cards(self) -> AllocationService:
        base = self.foundation
        return AllocationService(
            base.scheduler,
            base.clock,
            base.shares,
            base.reads,
            None,
            base.finder,
            base.runs,
            base.sensitive,
        )


async def test_an_allocation_has_its_runs_newest_first() -> None:
    answer = await Site().service.of_allocation(ALICE, "42")
    assert [each.name for each in answer.runs] == ["test", "fit"]
    assert answer.runs[0].link.startswith("https://mlflow.example/")
    assert [each.ok for each in answer.sources] == [True]
    assert answer.allocation is not None
    assert answer.allocation.job_id == 42


@pytest.mark.spec("AUTH-12")
async def test_anothers_runs_are_not_there_and_nothing_is_asked() -> None:
    site = Site()
    with pytest.raises(NotFound):
        await site.service.of_allocation(BOB, "42")
    assert site.store.asked == []


@pytest.mark.spec("AUTH-12")
async def test_a_name_finds_only_runs_whose_allocation_the_caller_may_see() -> None:
    site = Site()
    own = await site.service.named(ALICE, "fit")
    assert [each.allocation.partition("@")[0] for each in own.runs] == ["42"]
    every = await site.service.named(ADMIN, "fit")
    assert [each.allocation.partition("@")[0] for each in every.runs] == ["43", "42"]


def chained() -> Site:
    """alice's 42 wrote a, bob's 43 loaded it and wrote b, alice's 44 loaded b."""
    site = Site()
    site.scheduler.allocations.append(site.job(44, "alice", "research"))
    first, second = "a" * 64, "b" * 64
    site.run("one", 42, saved=first)
    site.run("two", 43, user="bob", loaded=first, saved=second)
    site.run("three", 44, loaded=second)
    return site


@pytest.mark.spec("RUN-2", "AUTH-12")
async def test_a_lineage_names_only_runs_whose_job_the_caller_may_see() -> None:
    own = (await chained().service.of_allocation(ALICE, "44", lineage=True)).lineage
    assert own is not None
    assert [each.name for each in own.runs] == ["three"]
    assert own.notes == ("No run that you may see wrote bbbbbbbbbbbb, which three loaded.",)
    none = Site()
    none.scheduler.allocations.append(none.job(44, "alice", "research"))
    none.run("three", 44, loaded="b" * 64)
    missing = (await none.service.of_allocation(ALICE, "44", lineage=True)).lineage
    assert missing is not None
    assert missing.notes == own.notes
    every = (await chained().service.of_allocation(ADMIN, "44", lineage=True)).lineage
    assert every is not None
    assert [each.name for each in every.runs] == ["one", "two", "three"]
    assert len(every.links) == 2


@pytest.mark.spec("AUTH-7")
async def test_every_owner_in_a_lineage_is_shown_who_asked() -> None:
    site = chained()
    base = site.foundation
    service = RunService(base.measurements, base.runs, base.limits)
    await service.of_allocation(ADMIN, "44", lineage=True)
    for job in site.scheduler.allocations:
        (record,) = await base.reads.of((job,))
        assert record.reader == "root"


async def test_a_store_that_falls_silent_ends_a_lineage_with_the_reason() -> None:
    site = chained()
    site.store.reason_of["checkpoint.saved.sha256"] = "it answered 503"
    found = (await site.service.of_allocation(ALICE, "44", lineage=True)).lineage
    assert found is not None
    assert found.notes == ("MLflow does not answer: it answered 503.",)
    assert [each.name for each in found.runs] == ["three"]


async def test_a_lineage_is_made_only_where_it_is_asked_for() -> None:
    site = chained()
    assert (await site.service.of_allocation(ALICE, "44")).lineage is None
    assert len(site.store.asked) == 1


async def test_a_checkpoint_that_many_jobs_claim_looks_up_ten() -> None:
    site = chained()
    for number in range(3 * MOST_ALLOCATIONS):
        site.run("claim", 200 + number, user="bob", saved="b" * 64)
    found = (await site.service.of_allocation(ALICE, "44", lineage=True)).lineage
    assert found is not None
    assert "Runs of more than 10 allocations have these checkpoints." in found.notes


@pytest.mark.spec("AUTH-7")
async def test_the_owner_is_shown_who_else_asked() -> None:
    site = Site()
    base = site.foundation
    await RunService(base.measurements, base.runs, base.limits).named(ADMIN, "fit")
    for job in site.scheduler.allocations:
        (record,) = await base.reads.of((job,))
        assert record.reader == "root"


async def test_own_runs_come_before_many_of_others() -> None:
    site = Site()
    for number in range(2 * MOST_ALLOCATIONS):
        site.run("fit", 100 + number, user="bob")
    answer = await site.service.named(ALICE, "fit")
    assert [each.allocation.partition("@")[0] for each in answer.runs] == ["42"]


async def test_a_run_of_an_earlier_use_of_the_id_is_of_that() -> None:
    site = Site()
    first = site.began - timedelta(days=9)
    site.scheduler.remembered = [
        allocation(42, "alice", "research", submitted=first, ended=first + timedelta(hours=2))
    ]
    tags = {"slurm.job.id": "42", "slurm.cluster.name": "lab"}
    site.store.add("old", tags, first + timedelta(hours=1), ended=first + timedelta(hours=2))
    (run,) = (await site.service.named(ALICE, "old")).runs
    assert run.allocation == f"42@{int(first.timestamp())}"
    assert "old" not in [each.name for each in (await site.service.of_allocation(ALICE, "42")).runs]


async def test_a_silent_store_is_a_source_with_the_reason() -> None:
    site = Site()
    site.store.reason = "it answered 503"
    for answer in (
        await site.service.of_allocation(ALICE, "42"),
        await site.service.named(ALICE, "fit"),
    ):
        assert answer.runs == ()
        assert [(each.name, each.ok, each.error) for each in answer.sources] == [
            ("mlflow", False, "it answered 503")
        ]


async def test_a_site_without_a_store_has_no_source() -> None:
    answer = await Site(run_store=None).service.of_allocation(ALICE, "42")
    assert (answer.runs, answer.sources) == ((), ())


@pytest.mark.spec("AUDIT-3")
async def test_runs_of_sensitive_work_are_read_only_where_that_is_recorded() -> None:
    trail = RequiredTrail()
    claims = FixedClaims((node_claim("alice", "n1"),))
    site = Site(views=VAULT, audit=trail, claims=claims)
    site.scheduler.allocations[0] = site.job(42, "alice", "research", vcluster="vault")
    for asked in (site.service.of_allocation(ALICE, "42"), site.service.named(ALICE, "fit")):
        await asked
        assert trail.events.pop().act is AuditAct.METRIC_READ
    trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await site.service.of_allocation(ALICE, "42")
    with pytest.raises(SensitiveAuditRequired):
        await site.service.named(ALICE, "fit")
    card = await site.cards.card(ALICE, "42", runs=True)
    assert card.runs == ()


async def test_a_card_has_runs_for_the_owner_alone_and_where_asked_for() -> None:
    site = Site()
    assert [each.name for each in (await site.cards.card(ALICE, "42", runs=True)).runs] == [
        "test",
        "fit",
    ]
    assert (await site.cards.card(ALICE, "42")).runs == ()
    assert (await site.cards.card(ADMIN, "42", runs=True)).runs == ()


async def test_a_card_is_shown_while_the_store_is_away() -> None:
    site = Site()
    site.store.reason = "down"
    card = await site.cards.card(ALICE, "42", runs=True)
    assert card.allocation.id == "42"
    assert [each.error for each in card.sources if each.name == "mlflow"] == ["down"]
