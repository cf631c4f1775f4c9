"""The audit log over REST: who sees what, and a bundle that is verified without a server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.grants import GrantSigner
from lattice.access.limits import DEFAULTS, Buckets, Questions, too_many_questions
from lattice.access.permission import Permission
from lattice.access.policy import admits
from lattice.base.clock import SystemClock
from lattice.base.errors import PermissionRefused, RateLimited
from lattice.base.signatures import SigningKey
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.audit import AuditAct, AuditEvent, AuditOutcome
from lattice.domain.audit_bundle import NoBundle, verify_bundle
from lattice.domain.audit_chain import ChainBroken
from lattice.domain.sharing import ReadKind
from lattice.features.audit.model import AuditQuery
from lattice.features.audit.service.archive import Archiver, AuditArchive
from lattice.features.audit.service.audit_service import AuditService
from lattice.features.audit.service.reader import AuditReader
from lattice.foundation.audited_acts import AUDITED, audit_event
from tests.fakes.audit import attach, audit_log
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore

CLOCK = SystemClock()
KEY = SigningKey.generate()
ADMIN = Actor(sub="s-root", user="root1", role=Role.SYSTEM_ADMIN)
PHYSICIST = Actor(sub="s-pam", user="pam", tenant="physics", role=Role.TENANT_ADMIN)
REVIEWER = Actor(sub="s-rob", user="rob", tenant="chemistry", role=Role.COMPLIANCE_REVIEWER)
ALICE = Actor(sub="s-alice", user="alice")


class Log:
    """A log with entries of two tenants, half of it in the archive."""

    def __init__(self) -> None:
        self.state = InMemoryStateStore(CLOCK)
        self.archive = AuditArchive(InMemoryObjectStore(CLOCK))
        signer = GrantSigner(KEY, CLOCK)
        self.log = audit_log(self.state, CLOCK, signer)
        self.buckets = Buckets()
        scheduler = InMemoryScheduler(CLOCK)
        scheduler.accounts = AccountTree.of([Account("physics"), Account("chemistry")])
        self.service = AuditService(
            AuditReader(self.state, self.archive),
            self.log,
            scheduler,
            self,
            CLOCK,
            signer.sign_audit,
            frozenset({KEY.name}),
            lambda _: {},
        )

    async def open(self, sub: str, kind: object, session: str) -> NoReturn:
        """No session is opened."""
        raise AssertionError(sub, kind, session)

    async def ask(self, sub: str, kind: Questions) -> None:
        """The limits by default, in no time."""
        verdict = self.buckets.take(sub, kind, DEFAULTS[kind], 0.0)
        if not verdict.granted:
            raise too_many_questions(kind, DEFAULTS[kind], verdict.wait_s)

    async def fill(self) -> None:
        for n in range(20):
            await self.log.chain.append([attach(f"a{n}"), self.bobs(n)])
        chain = self.log.chain.another()
        archiver = Archiver(self.state, self.archive, chain, retained=10, segment=10)
        while await archiver.step():
            pass

    def bobs(self, n: int) -> AuditEvent:
        made = attach(f"b{n}", "bob", allocation="43@1772366400", of_tenant="chemistry")
        return replace(made, act=AuditAct.SHARE, outcome=AuditOutcome.FAILED)

    async def users(self, actor: Actor, **query: object) -> list[str]:
        page = await self.service.query(actor, AuditQuery(**query))  # type: ignore[arg-type]
        return [each.user for each in page.rows if each.user]

    async def bundle(self, actor: Actor) -> list[bytes]:
        text, cursor = "", ""
        while True:
            part = await self.service.export(actor, cursor)
            text, cursor = text + part.text, part.cursor
            if not cursor:
                return text.encode().splitlines(keepends=True)


@pytest.fixture
async def log() -> Log:
    made = Log()
    await made.fill()
    return made


@pytest.mark.spec("AUDIT-3", "AUTH-7")
async def test_everyone_sees_what_their_role_and_their_jobs_allow(log: Log) -> None:
    assert set(await log.users(ADMIN)) == {"alice", "bob"}
    assert set(await log.users(PHYSICIST)) == {"alice"}
    assert set(await log.users(REVIEWER)) == {"bob"}
    assert set(await log.users(ALICE)) == {"alice"}
    assert await log.users(Actor(sub="s-eve", user="eve")) == []
    assert await log.users(Actor(sub="s-x", role=Role.COMPLIANCE_REVIEWER, tenant="none")) == []


async def test_one_caller_can_not_keep_a_server_busy_with_the_log(log: Log) -> None:
    for _ in range(DEFAULTS[Questions.REVIEW_AUDIT] // 2):
        assert (await log.service.verify(REVIEWER)).ok
        assert (await log.service.export(REVIEWER, "")).text
    recorded = log.log.queued
    with pytest.raises(RateLimited, match="a minute are allowed"):
        await log.service.verify(REVIEWER)
    with pytest.raises(RateLimited):
        await log.service.export(REVIEWER, "")
    assert log.log.queued == recorded
    # A bundle that was begun can be finished, and nobody else is held up.
    assert (await log.service.export(REVIEWER, "1:2026-11-19T10:00:00Z")).text
    assert (await log.service.verify(ADMIN)).ok
    for _ in range(DEFAULTS[Questions.QUERY_AUDIT]):
        await log.service.query(ALICE, AuditQuery())
    with pytest.raises(RateLimited):
        await log.service.query(ALICE, AuditQuery())
    # Who may not review learns nothing more from the limit.
    for _ in range(DEFAULTS[Questions.REVIEW_AUDIT] + 1):
        with pytest.raises(PermissionRefused):
            await log.service.verify(ALICE)


async def test_an_owner_sees_what_others_did_with_their_job(log: Log) -> None:
    await log.log.chain.append([attach("x", "mallory", owner="alice")])
    assert (await log.users(ALICE))[0] == "mallory"


async def test_filters_and_cursor_go_through_the_archive(log: Log) -> None:
    assert len(await log.users(ADMIN, act=AuditAct.SHARE)) == 20
    assert len(await log.users(ADMIN, outcome=AuditOutcome.FAILED, user="bob")) == 20
    assert len(await log.users(ADMIN, allocation="42")) == 20
    assert await log.users(ADMIN, node="n2") == []
    found: list[int] = []
    cursor = ""
    while True:
        page = await log.service.query(ADMIN, AuditQuery(limit=7, cursor=cursor))
        found += [each.sequence for each in page.rows]
        cursor = page.cursor
        if not cursor:
            break
    assert found == list(range(41, 0, -1))
    newest = (await log.service.query(ADMIN, AuditQuery(limit=1))).rows[0]
    assert newest.sentence == "bob shared 43 on n1, failed"
    assert await log.users(ADMIN, until=newest.time, since=newest.time) == []


@pytest.mark.spec("AUDIT-3")
async def test_a_review_is_recorded_and_a_read_of_ones_own_is_not(log: Log) -> None:
    await log.users(ALICE)
    await log.users(PHYSICIST, user="alice")
    assert await log.log.flush()
    (last, *_) = (await log.service.query(ADMIN, AuditQuery(limit=1))).rows
    assert last.act is AuditAct.AUDIT_READ
    assert (last.user, last.detail) == ("pam", "user=alice")


@pytest.mark.spec("AUDIT-3")
async def test_a_review_with_a_cursor_that_was_made_up_is_recorded(log: Log) -> None:
    assert (await log.service.query(REVIEWER, AuditQuery(cursor="40"))).rows
    assert (await log.service.export(REVIEWER, "0:2026-11-19T10:00:00Z")).text
    assert (await log.service.export(REVIEWER, "11:2026-11-19T10:00:00Z")).text
    assert await log.log.flush()
    rows = (await log.service.query(ADMIN, AuditQuery(limit=3))).rows
    assert [each.detail for each in rows] == [
        "export after entry 11",
        "export",
        "all before entry 40",
    ]


@pytest.mark.spec("AUDIT-3")
async def test_a_whole_bundle_is_verified_offline(log: Log) -> None:
    lines = await log.bundle(ADMIN)
    verdict = verify_bundle(lines, {41: log.log.chain.batches[-1].end.link}, KEY.name)
    assert verdict.entries == 41
    assert verdict.signed_by == KEY.name
    with pytest.raises(ChainBroken, match="not by other"):
        verify_bundle(lines, {}, "other")
    with pytest.raises(ChainBroken, match="entry 42"):
        verify_bundle(lines, {50: b"x"})


@pytest.mark.spec("AUDIT-3")
async def test_a_bundle_of_a_tenant_hides_the_others_and_is_verified(log: Log) -> None:
    lines = await log.bundle(PHYSICIST)
    text = b"".join(lines)
    assert b"bob" not in text
    assert text.count(b"alice") == 40
    assert verify_bundle(lines).entries == 41
    with pytest.raises(PermissionRefused, match="no tenant"):
        await log.bundle(Actor(sub="s", role=Role.TENANT_ADMIN))


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_every_changed_or_missing_line_of_a_bundle_is_found(log: Log) -> None:
    lines = await log.bundle(PHYSICIST)
    for n in range(len(lines)):
        inner_seal = lines[n].startswith(b"=") and n < len(lines) - 2
        if not inner_seal:
            with pytest.raises((ChainBroken, NoBundle)):
                verify_bundle(lines[:n] + lines[n + 1 :])
        flipped = bytearray(lines[n])
        flipped[len(flipped) // 2] ^= 1
        with pytest.raises((ChainBroken, NoBundle)):
            verify_bundle([*lines[:n], bytes(flipped), *lines[n + 1 :]])
    for cut in range(len(lines)):
        with pytest.raises((ChainBroken, NoBundle)):
            verify_bundle(lines[:cut])


async def test_a_server_verifies_its_log(log: Log) -> None:
    verdict = await log.service.verify(ADMIN)
    assert verdict.ok, verdict.problem
    assert verdict.keys == (KEY.name,)
    both = await asyncio.gather(
        log.service.verify(ADMIN), log.service.verify(ADMIN), return_exceptions=True
    )
    assert sum(isinstance(each, Exception) for each in both) == 1


@pytest.mark.spec("AUTH-4")
def test_only_reviewers_may_verify_and_export() -> None:
    may = {each for each in Role if admits(Actor(sub="s", role=each), Permission.REVIEW_AUDIT)}
    assert may == {Role.SYSTEM_ADMIN, Role.TENANT_ADMIN, Role.COMPLIANCE_REVIEWER}


@pytest.mark.spec("AUDIT-3")
@pytest.mark.parametrize("act", AUDITED)
def test_an_act_of_the_journal_becomes_an_entry(act: str) -> None:
    event = audit_event(act, "x", "s-alice", "why", actor=ALICE, owner="alice")
    assert event is not None
    assert event.act is AUDITED[act]
    assert event.user == "alice"
    assert "x" in {event.allocation, event.node, event.of_tenant, event.target}


@pytest.mark.spec("AUDIT-3")
def test_reads_of_measurements_are_apart_from_reads_of_output() -> None:
    acts = {each: AUDITED[each.act] for each in ReadKind}
    measured = {each for each, act in acts.items() if act is AuditAct.METRIC_READ}
    assert measured == {ReadKind.MEASURE, ReadKind.OBSERVE}
    assert {act for each, act in acts.items() if each not in measured} == {AuditAct.LOG_READ}


def test_outcomes_and_other_callers_of_acts() -> None:
    failed = audit_event("drain failed", "n1", "s-bob", "", actor=ALICE)
    assert failed is not None
    assert (failed.outcome, failed.sub, failed.user) == (AuditOutcome.FAILED, "s-bob", "")
    assert audit_event("something else", "x", "s", "") is None
