"""Submitting once, whatever happens between; cancelling one's own, and no word of another's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.limits import CallerLimits, Questions
from lattice.base.errors import (
    NotFound,
    PermissionRefused,
    RateLimited,
    Unavailable,
    UsageError,
)
from lattice.domain.allocation import Array, State
from lattice.domain.claim import ClaimStep, NodeClaim
from lattice.domain.submission import ProgramRefused, Unsure
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.submit.model import SubmitRequest
from lattice.features.submit.service.submissions import SubmitService, waits
from lattice.features.submit.service.uenv import UenvPlugin
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import allocation, populated
from tests.fakes.in_memory_gate import InMemoryGate
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

ALICE = Actor(sub="sub-alice", user="alice")
ASKED = SubmitRequest(script="#!/bin/sh\nsleep 5\n")
KEY = "night-7"


class Site:
    """A service, and what it stands on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = populated(self.clock)
        self.gate = InMemoryGate(self.scheduler)
        self.store = InMemoryStateStore(self.clock)
        self.service = self.another()

    def another(self, **parts: Any) -> SubmitService:
        given = {"gate": self.gate, "state": self.store} | parts
        return SubmitService(
            self.scheduler, given["gate"], given["state"], Vclusters(), self.clock, self.pause
        )

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    @property
    def count(self) -> int:
        return len(self.gate.submitted)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("ALLOC-3")
async def test_a_script_becomes_an_allocation(site: Site) -> None:
    asked = replace(ASKED, file="a.sh", environment={"B": "2", "A": "1"}, directory="/nowhere/x")
    answer = await site.service.submit(ALICE, asked)
    (who, question, script) = site.gate.submitted[0]
    assert (answer.id, answer.repeated) == (str(answer.job_id), False)
    assert "/nowhere/x" in answer.notes[0]
    assert (who.user, who.subject, script) == ("alice", "sub-alice", asked.script.encode())
    assert question.environment == (("A", "1"), ("B", "2"))


@pytest.mark.spec("LIMIT-1", "LIMIT-4")
async def test_submitting_and_cancelling_are_paced_by_caller(site: Site) -> None:
    asked: list[tuple[str, Questions]] = []

    class Limits:
        async def ask(self, sub: str, kind: Questions) -> None:
            asked.append((sub, kind))
            raise RateLimited("Too many.", retry_after_s=3)

    service = SubmitService(
        site.scheduler,
        site.gate,
        site.store,
        Vclusters(),
        site.clock,
        site.pause,
        cast("CallerLimits", Limits()),
    )
    for key in ("", KEY):
        with pytest.raises(RateLimited):
            await service.submit(ALICE, ASKED, key)
    with pytest.raises(RateLimited):
        await service.cancel(ALICE, "12")
    assert asked == [
        (ALICE.sub, Questions.SUBMIT),
        (ALICE.sub, Questions.SUBMIT),
        (ALICE.sub, Questions.CANCEL),
    ]
    assert site.count == 0
    # A key that was refused so is free: the same words work a moment later.
    assert not (await site.service.submit(ALICE, ASKED, KEY)).repeated


@pytest.mark.spec("ALLOC-3")
@pytest.mark.parametrize(
    ("actor", "asked", "kind"),
    [
        (Actor(sub="service"), ASKED, PermissionRefused),
        (Actor(sub="x", user="root"), ASKED, PermissionRefused),
        (ALICE, replace(ASKED, script=" \n"), UsageError),
        (ALICE, replace(ASKED, script="\ud800"), UsageError),
        (ALICE, replace(ASKED, script="x" * (4 * 1024 * 1024 + 1)), UsageError),
        (ALICE, replace(ASKED, environment={"LD_PRELOAD": "x"}), UsageError),
        (ALICE, replace(ASKED, directory="x"), UsageError),
        (ALICE, replace(ASKED, arguments=("\0",)), UsageError),
        (ALICE, replace(ASKED, options=("--partition=nowhere",)), ProgramRefused),
    ],
)
async def test_what_can_not_be_submitted(
    site: Site, actor: Actor, asked: SubmitRequest, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await site.service.submit(actor, asked)
    assert site.count == 0


@pytest.mark.spec("ALLOC-5")
async def test_images_go_to_the_sites_plugin_and_its_absence_is_explained(site: Site) -> None:
    plugin = UenvPlugin(image_option="--uenv", view_option="--view", tools_mount="/user-tools")
    service = SubmitService(
        site.scheduler, site.gate, None, Vclusters(), site.clock, site.pause, plugin=plugin
    )
    await service.submit(ALICE, replace(ASKED, uenv="gnu", view="default"))
    assert site.gate.submitted[0][1].options == ("--uenv=gnu", "--view=default")

    async def unknown() -> None:
        raise ProgramRefused("sbatch: unrecognized option '--uenv=gnu'", exit_code=255)

    site.gate.before_submit = unknown
    with pytest.raises(ProgramRefused, match="unrecognized option") as refused:
        await service.submit(ALICE, replace(ASKED, uenv="gnu"))
    assert "has no plugin that takes this option" in (refused.value.hint or "")
    assert refused.value.exit_code == 255


async def test_without_a_gate_or_a_store_it_is_said(site: Site) -> None:
    with pytest.raises(Unavailable, match="no submit gate"):
        await site.another(gate=None).submit(ALICE, ASKED)
    with pytest.raises(Unavailable, match="keeps no state"):
        await site.another(state=None).submit(ALICE, ASKED, KEY)
    await site.another(state=None).submit(ALICE, ASKED)


@pytest.mark.spec("ALLOC-3")
async def test_the_same_key_gives_the_same_allocation(site: Site) -> None:
    first = await site.service.submit(ALICE, ASKED, KEY)
    again = await site.another(state=site.store.another()).submit(ALICE, ASKED, KEY)
    assert (again.id, again.repeated, site.count) == (first.id, True, 1)
    with pytest.raises(UsageError, match="something else"):
        await site.service.submit(ALICE, replace(ASKED, nodes="2"), KEY)
    # Another's key of the same words is another key.
    assert (await site.service.submit(replace(ALICE, sub="x"), ASKED, KEY)).id != first.id


@pytest.mark.spec("ALLOC-3")
async def test_racing_calls_make_one_allocation(site: Site) -> None:
    async def slowly() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    site.gate.before_submit = slowly
    doors = [site.another(state=site.store.another()) for _ in range(5)]
    answers = await asyncio.gather(*(each.submit(ALICE, ASKED, KEY) for each in doors))
    assert len({each.id for each in answers}) == 1
    assert [each.repeated for each in answers].count(False) == 1
    assert site.count == 1


@pytest.mark.spec("ALLOC-3")
async def test_a_refusal_frees_the_key(site: Site) -> None:
    with pytest.raises(ProgramRefused):
        await site.service.submit(ALICE, replace(ASKED, options=("--partition=nowhere",)), KEY)
    assert (await site.service.submit(ALICE, ASKED, KEY)).repeated is False


@pytest.mark.spec("ALLOC-3")
async def test_an_answer_that_was_lost_is_found_by_its_mark(site: Site) -> None:
    site.gate.lost_answers = 1
    with pytest.raises(Unsure):
        await site.service.submit(ALICE, ASKED, KEY)
    again = await site.service.submit(ALICE, ASKED, KEY)
    assert (again.repeated, site.count) == (True, 1)


@pytest.mark.spec("ALLOC-3", "OPS-1")
async def test_a_job_is_found_that_the_gate_makes_after_its_server_died(site: Site) -> None:
    site.gate.lost_answers = 1
    with pytest.raises(Unsure):
        await site.service.submit(ALICE, ASKED, KEY)
    late = site.scheduler.allocations.pop()
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        await site.pause(seconds)
        waited.append(seconds)
        if len(waited) == 3:
            site.scheduler.allocations.append(late)

    other = SubmitService(
        site.scheduler, site.gate, site.store.another(), Vclusters(), site.clock, pause
    )
    again = await other.submit(ALICE, ASKED, KEY)
    assert (again.repeated, site.count) == (True, 1)


@pytest.mark.spec("ALLOC-3", "OPS-1")
async def test_a_key_that_nobody_asked_for_needs_no_state_and_is_found_by_its_mark(
    site: Site,
) -> None:
    site.store.away = True
    with pytest.raises(Unavailable):
        await site.service.submit(ALICE, ASKED, KEY)
    for state, key in ((site.store, KEY), (None, "another")):
        first = await site.another(state=state).submit(ALICE, ASKED, key, optional=True)
        with pytest.raises(Unavailable):
            await site.another(state=state).submit(ALICE, ASKED, key, optional=True, repeated=True)
        other = site.another(state=site.store.another())
        again = await other.submit(ALICE, ASKED, key, optional=True, repeated=True)
        assert (again.id, again.repeated) == (first.id, True)
    assert site.count == 2


@pytest.mark.spec("ALLOC-3")
async def test_a_server_that_died_in_between_is_mended(site: Site) -> None:
    site.gate.lost_answers = 1
    with pytest.raises(Unsure):
        await site.service.submit(ALICE, ASKED, KEY)
    # The job itself never came to be: its mark is nowhere, and the claim has grown old.
    site.scheduler.allocations.pop()
    with pytest.raises(Unavailable, match="under way"):
        await site.service.submit(ALICE, ASKED, KEY)
    site.clock.advance(120)
    assert (await site.service.submit(ALICE, ASKED, KEY)).repeated is False
    assert site.count == 2


@pytest.mark.spec("ALLOC-3")
async def test_a_key_is_forgotten_after_a_day(site: Site) -> None:
    first = await site.service.submit(ALICE, ASKED, KEY)
    site.clock.advance(25 * 3600)
    assert (await site.service.submit(ALICE, ASKED, KEY)).id != first.id
    site.clock.advance(25 * 3600)
    await site.service.submit(ALICE, ASKED, "another")
    assert len((await site.store.list("submits/")).entries) == 1


@pytest.mark.spec("ALLOC-3")
async def test_a_store_that_leaves_in_the_middle_loses_nothing(site: Site) -> None:
    async def leave() -> None:
        site.store.away = True

    site.gate.before_submit = leave
    first = await site.service.submit(ALICE, ASKED, KEY)
    site.store.away = False
    site.gate.before_submit = None
    again = await site.service.submit(ALICE, ASKED, KEY)
    assert (again.id, again.repeated, site.count) == (first.id, True, 1)


@pytest.mark.parametrize("key", ["x" * 256, "a\nb", "ü"])
async def test_keys_that_are_none(site: Site, key: str) -> None:
    with pytest.raises(UsageError, match="key is not valid"):
        await site.service.submit(ALICE, ASKED, key)


@pytest.mark.spec("ALLOC-4", "AUTH-12")
async def test_one_cancels_ones_own_and_learns_nothing_of_others(site: Site) -> None:
    answer = await site.service.cancel(ALICE, "1")
    assert (answer.id, answer.cancelling) == ("1", True)
    told = []
    for name in ("2", "77777"):
        with pytest.raises(NotFound) as error:
            await site.service.cancel(ALICE, name)
        told.append(error.value.message.replace(name, "ID") + str(error.value.hint))
    assert told[0] == told[1]
    with pytest.raises(UsageError):
        await site.service.cancel(ALICE, "1; 2")


@pytest.mark.parametrize(
    ("tasks", "inside", "outside"),
    [
        ("1-3", (1, 2, 3), (0, 4, 12)),
        ("1-9:4%2", (1, 5, 9), (2, 3, 10)),
        ("7", (7,), (1, 77)),
        ("[2,5-6]", (2, 5, 6), (3, 4)),
        ("1,3,...", (1, 3, 99), ()),
        ("", (), (0, 1)),
        ("x-y,3", (3,), (1,)),
    ],
)
def test_tasks_that_wait(tasks: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    assert [waits(tasks, each) for each in inside] == [True] * len(inside)
    assert [waits(tasks, each) for each in outside] == [False] * len(outside)


@pytest.mark.spec("ALLOC-4")
async def test_a_task_that_still_waits_can_be_cancelled(site: Site) -> None:
    pending = allocation(
        300, "alice", "research", state=State.PENDING, array=Array(300, None, "1-5%2")
    )
    site.scheduler.allocations.append(pending)
    assert (await site.service.cancel(ALICE, "300_4")).id == "300_4"
    with pytest.raises(NotFound):
        await site.service.cancel(ALICE, "300_9")


@pytest.mark.spec("ALLOC-4")
async def test_one_just_submitted_is_waited_for(site: Site) -> None:
    site.scheduler.live()
    site.scheduler.down = True
    site.clock.advance(1)
    site.scheduler.allocations.append(allocation(400, "alice", "research"))
    looks = 0

    async def pause(seconds: float) -> None:
        nonlocal looks
        looks += 1
        await site.pause(seconds)
        site.scheduler.down = looks < 2

    service = SubmitService(site.scheduler, site.gate, site.store, Vclusters(), site.clock, pause)
    assert (await service.cancel(ALICE, "400")).cancelling
    assert looks == 2


@pytest.mark.spec("ALLOC-4")
async def test_what_has_ended_is_not_cancelled_again(site: Site) -> None:
    answer = await site.service.cancel(ALICE, "101")
    assert (answer.cancelling, answer.state) == (False, State.COMPLETED.value)


@pytest.mark.spec("ALLOC-4", "AUTH-4")
async def test_a_role_lets_one_name_it_and_slurm_may_still_refuse(site: Site) -> None:
    carol = Actor(sub="c", user="carol", role=Role.TENANT_ADMIN, tenant="biology")
    with pytest.raises(PermissionRefused, match="Access/permission denied"):
        await site.service.cancel(carol, "2")
    with pytest.raises(NotFound):
        await site.service.cancel(carol, "1")
    reader = Actor(sub="a", user="alice", role=Role.READ_ONLY)
    with pytest.raises(NotFound):
        await site.service.cancel(reader, "1")


@pytest.mark.spec("AUTH-12")
async def test_while_slurm_is_silent_absence_is_not_claimed(site: Site) -> None:
    site.scheduler.past_down = True
    for name in ("2", "77777"):
        with pytest.raises(Unavailable):
            await site.service.cancel(ALICE, name)


async def test_slurm_is_looked_at_again_after_an_act(site: Site) -> None:
    before = site.scheduler.looked_again
    await site.service.submit(ALICE, ASKED)
    assert site.scheduler.looked_again == before + 1
    await site.service.submit(ALICE, ASKED, KEY)
    assert site.scheduler.looked_again == before + 2


VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize(
    "held",
    [
        (),
        (node_claim("bob", "n1"),),
        (node_claim("alice", "n1", step=ClaimStep.CLAIMING),),
        (node_claim("alice", "n1", step=ClaimStep.RELEASING),),
    ],
    ids=["none", "another's", "not made yet", "being released"],
)
async def test_sensitive_work_is_not_submitted_without_a_claim(
    site: Site, held: tuple[NodeClaim, ...]
) -> None:
    service = SubmitService(
        site.scheduler, site.gate, site.store, VAULT, site.clock, claims=FixedClaims(held)
    )
    with pytest.raises(PermissionRefused, match=r"SensitiveIsolation: vault .* you hold none"):
        await service.submit(ALICE, replace(ASKED, vcluster="vault"))
    assert site.count == 0
    await service.submit(ALICE, ASKED)


@pytest.mark.spec("AUDIT-1")
async def test_sensitive_work_is_submitted_to_the_nodes_of_the_claim(site: Site) -> None:
    claims = FixedClaims((node_claim("alice", "n1"), node_claim("bob", "n2", claim_id="b" * 12)))
    service = SubmitService(site.scheduler, site.gate, site.store, VAULT, site.clock, claims=claims)
    await service.submit(ALICE, replace(ASKED, vcluster="vault"))
    _, question, _ = site.gate.submitted[0]
    assert "--reservation=lattice-claim-c0ffee000001" in question.options
    claims.away = True
    with pytest.raises(Unavailable):
        await service.submit(ALICE, replace(ASKED, vcluster="vault"))
