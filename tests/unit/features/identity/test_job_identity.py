"""A job's own token: for its own run, on its own node, as long as it runs."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from lattice.access.grants import GrantSigner
from lattice.access.job_tokens import JobTokens
from lattice.access.tokens import TokenRefused
from lattice.adapters.own_tokens import OwnTokens
from lattice.base.errors import (
    JobEnded,
    LatticeError,
    LoginRequired,
    NotFound,
    PermissionRefused,
    Unavailable,
)
from lattice.base.signatures import KeyRing, SigningKey
from lattice.domain.allocation import Allocation, State
from lattice.domain.grant import Act
from lattice.domain.job_token import LONGEST_LIFETIME_S, BadJobToken
from lattice.domain.lock import Lock, LockKind
from lattice.features.identity.model import JobSelf
from lattice.features.identity.service.job_identity import JobIdentityService
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.wire.convert import message_of, value_of
from lattice.wire.v1.identity_pb2 import JobSelf as JobSelfMessage
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import RECORDED, ManualClock

KEY = SigningKey.generate()
BEGAN = RECORDED - timedelta(minutes=10)


@dataclass
class SomeLocks:
    """As the port; the first that fits."""

    held: list[Lock] = field(default_factory=list)
    current: bool = True

    def of_user(self, *names: str) -> Lock | None:
        fits = (each for each in self.held if each.kind is LockKind.ALL or each.target in names)
        return next((each for each in fits if each.kind is not LockKind.NODE), None)

    def of_node(self, node: str) -> Lock | None:
        fits = (each for each in self.held if each.kind is LockKind.NODE)
        return next((each for each in fits if each.target == node), None)

    def of_session(self, session: str) -> Lock | None:
        del session
        return None


@dataclass
class Refusals:
    told: list[tuple[str, str, str]] = field(default_factory=list)

    def refused(self, rpc: str, sub: str, reason: str) -> None:
        self.told.append((rpc, sub, reason))


class Site:
    """One server and two nodes; job 7 of alice is on n1, job 8 on n2, job 9 on both."""

    def __init__(self, key: SigningKey = KEY, *, cluster: str = "lab") -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock, cluster_name=cluster)
        self.scheduler.accounts = ACCOUNTS
        self.scheduler.allocations = [job(7, "n1"), job(8, "n2", "bob"), job(9, "n[1-2]")]
        self.locks, self.journal = SomeLocks(), Refusals()
        self.signer = GrantSigner(key, self.clock)
        self.tokens = JobTokens(self.signer, self.clock, lambda: self.scheduler.cluster_name)
        finder = AttemptFinder(self.scheduler, self.clock)
        self.service = JobIdentityService(
            self.tokens, finder.of, self.scheduler, self.locks, self.journal
        )

    async def token(self, node: str = "n1", job_id: int = 7) -> str:
        return (await self.service.issue(node, job_id, BEGAN.timestamp() + 1)).token

    def change(self, job_id: int, **facts: object) -> None:
        self.scheduler.allocations = [
            replace(each, **facts) if each.job_id == job_id else each  # type: ignore[arg-type]
            for each in self.scheduler.allocations
        ]


def job(job_id: int, nodes: str, user: str = "alice") -> Allocation:
    submitted = BEGAN - timedelta(minutes=30)
    facts = {"submitted": submitted, "started": BEGAN, "nodes": nodes, "time_limit_s": 3600}
    return allocation(job_id, user, "research", **facts)


async def refused(asking: Awaitable[object], kind: type[LatticeError]) -> LatticeError:
    with pytest.raises(kind) as error:
        await asking
    return error.value


async def test_a_job_learns_who_it_is() -> None:
    site = Site()
    found = await site.service.describe("n1", await site.token())
    assert isinstance(found, JobSelf)
    assert (found.id, found.attempt, found.user, found.tenant) == ("7", 1, "alice", "physics")
    assert found.allocation == site.scheduler.allocations[0].ref
    assert (found.state, found.nodes, found.time_limit_s) == (State.RUNNING, "n1", 3600)


@pytest.mark.threat("job-socket")
async def test_it_is_worthless_on_another_node() -> None:
    """Also on another node of the same job: that one has a token of its own."""
    site = Site()
    for job_id in (7, 9):
        await refused(site.service.describe("n2", await site.token("n1", job_id)), LoginRequired)
    assert site.journal.told == [("DescribeJob", "n2", "it is for n1, not n2")] * 2


async def test_a_node_gets_none_for_a_job_that_it_does_not_have() -> None:
    site = Site()
    await refused(site.token("n1", 8), NotFound)
    await refused(site.token("n3", 7), NotFound)


@pytest.mark.threat("job-socket")
async def test_it_tells_of_no_other_job() -> None:
    site = Site()
    mine, other = await site.token("n1", 7), await site.token("n1", 9)
    assert (await site.service.describe("n1", mine)).job_id == 7
    assert (await site.service.describe("n1", other)).job_id == 9
    head, _, signature = mine.rpartition(".")
    swapped = f"{other.rpartition('.')[0]}.{signature}"
    for bad in (swapped, f"{head}.", "", "x", mine + "A", mine.upper()):
        await refused(site.service.describe("n1", bad), LoginRequired)


@pytest.mark.parametrize(
    "state", [State.COMPLETING, State.COMPLETED, State.CANCELLED, State.REQUEUED, State.PENDING]
)
@pytest.mark.threat("job-socket")
async def test_it_ends_with_the_job(state: State) -> None:
    site = Site()
    token = await site.token()
    site.change(7, state=state)
    error = await refused(site.service.describe("n1", token), JobEnded)
    assert error.message == "Job 7 does not run on n1 any more."
    site.scheduler.allocations = []
    await refused(site.service.describe("n1", token), JobEnded)


async def test_it_ends_with_the_attempt_and_with_the_use_of_the_number() -> None:
    site = Site()
    token = await site.token()
    site.change(7, attempt=2)
    await refused(site.service.describe("n1", token), JobEnded)
    site.change(7, attempt=1, first_submitted=RECORDED)
    await refused(site.service.describe("n1", token), JobEnded)
    site.change(7, first_submitted=BEGAN - timedelta(minutes=30), nodes="n2")
    await refused(site.service.describe("n1", token), JobEnded)


async def test_it_is_short_lived() -> None:
    site = Site()
    token = await site.token()
    site.clock.advance(LONGEST_LIFETIME_S - 1)
    assert await site.service.describe("n1", token)
    site.clock.advance(1)
    await refused(site.service.describe("n1", token), LoginRequired)


@pytest.mark.parametrize(
    ("kind", "target"), [(LockKind.USER, "alice"), (LockKind.NODE, "n1"), (LockKind.ALL, "")]
)
@pytest.mark.threat("job-socket")
async def test_a_lock_ends_it_at_once(kind: LockKind, target: str) -> None:
    site = Site()
    token = await site.token()
    lock = Lock(kind=kind, target=target, reason="stolen", by="root", since=RECORDED)
    site.locks.held.append(lock)
    error = await refused(site.service.describe("n1", token), PermissionRefused)
    assert "stolen" in error.message
    await refused(site.token(), PermissionRefused)
    site.locks.held.clear()
    assert await site.service.describe("n1", token)


async def test_while_slurm_does_not_answer_nothing_is_told() -> None:
    site = Site()
    token = await site.token()
    site.scheduler.down = True
    site.clock.advance(60)
    await refused(site.service.describe("n1", token), Unavailable)


async def test_another_cluster_or_another_key_makes_none_for_this_one() -> None:
    site = Site()
    for other in (Site(cluster="other"), Site(SigningKey.generate())):
        await refused(site.service.describe("n1", await other.token()), LoginRequired)


async def test_it_is_no_token_of_a_person_and_no_grant_and_none_of_these_is_one() -> None:
    site = Site()
    people = OwnTokens(
        KEY,
        KeyRing((KEY.public,)),
        site.clock,
        audience="lab",
        lifetime=timedelta(hours=1),
        user_claim="preferred_username",
    )
    token = await site.token()
    assert not people.is_own(token)
    with pytest.raises(TokenRefused):
        people.verify(token)
    grant = site.signer.issue(Act.ATTACH, "n1", subject="alice", user="alice", job_id=7)
    sign_in, _ = people.issue("alice", "munge")
    for bad in (grant, sign_in):
        with pytest.raises(BadJobToken):
            site.tokens.check(bad, "n1")


async def test_both_keys_are_taken_while_one_follows_the_other() -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    before, after = Site(old), Site(new)
    signer = GrantSigner(new, after.clock, (old.public,))
    tokens = JobTokens(signer, after.clock, lambda: "lab")
    assert tokens.check(await before.token(), "n1").job_id == 7
    assert tokens.check(await after.token(), "n1").job_id == 7


@pytest.mark.parametrize(("started", "limit"), [(BEGAN, 3600), (None, None)])
async def test_the_wire_carries_all_of_it(started: datetime | None, limit: int | None) -> None:
    site = Site()
    found = await site.service.describe("n1", await site.token())
    found = replace(found, started=started, time_limit_s=limit)
    assert value_of(message_of(found, JobSelfMessage), JobSelf) == found
