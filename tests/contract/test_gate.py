"""What every submit gate behind the port promises: the fake, and the helper with a real Slurm."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import HelperGate
from lattice.base.clock import SystemClock
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.base.signatures import SigningKey
from lattice.domain.submission import (
    CancelQuestion,
    ProgramRefused,
    SubmitGate,
    SubmitQuestion,
    Submitted,
    Submitter,
)
from tests.contract.identities import being
from tests.fakes.in_memory_gate import InMemoryGate
from tests.fakes.in_memory_scheduler import InMemoryScheduler

SCRIPT = b"#!/bin/sh\n#SBATCH --hold\nsleep 60\n"
ASKED = SubmitQuestion(script_sha256=hashlib.sha256(SCRIPT).hexdigest())
ALICE, BOB = Submitter("alice", "sub-alice"), Submitter("bob", "sub-bob")


@dataclass
class Site:
    """A gate, and how to silence it."""

    gate: SubmitGate
    silence: Callable[[], None]


@pytest.fixture(params=["in memory", pytest.param("helper", marks=pytest.mark.lab)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    if request.param == "in memory":
        fake = InMemoryGate(InMemoryScheduler(SystemClock()))
        yield Site(fake, lambda: setattr(fake, "away", True))
        return
    lab: Lab = request.getfixturevalue("lab")
    key = SigningKey.load(lab.gate.grant_key)
    real = HelperGate(HelperChannel(lab.gate.socket), GrantSigner(key, SystemClock()))

    # The gate hears one user alone, and the kernel tells it who connects.
    try:
        yield Site(_AsServer(real), lab.gate.down)
    finally:
        lab.gate.up()
        lab.jobs.cancel_all()


class _AsServer:
    """The same gate, asked by the server's user."""

    def __init__(self, gate: SubmitGate) -> None:
        self._gate = gate

    async def submit(self, who: Submitter, question: SubmitQuestion, script: bytes) -> Submitted:
        with being(SERVER_USER):
            return await self._gate.submit(who, question, script)

    async def cancel(self, who: Submitter, question: CancelQuestion) -> None:
        with being(SERVER_USER):
            await self._gate.cancel(who, question)


@pytest.mark.spec("ALLOC-3")
async def test_each_submission_is_a_job_of_its_own(site: Site) -> None:
    first = await site.gate.submit(ALICE, ASKED, SCRIPT)
    second = await site.gate.submit(BOB, replace(ASKED, options=("--job-name=x",)), SCRIPT)
    assert second.job_id > first.job_id > 0
    assert first.notes == ()


@pytest.mark.spec("ALLOC-3", "ALLOC-4")
@pytest.mark.threat("gate")
@pytest.mark.parametrize(
    "user", ["root", "slurm", SERVER_USER, "daemon", "nobody", "absent", "", "-x"]
)
async def test_nothing_is_done_as_a_system_account(site: Site, user: str) -> None:
    with pytest.raises(PermissionRefused):
        await site.gate.submit(Submitter(user, "s"), ASKED, SCRIPT)
    with pytest.raises(PermissionRefused):
        await site.gate.cancel(Submitter(user, "s"), CancelQuestion(jobs=("1",)))


@pytest.mark.spec("ALLOC-3")
async def test_a_refusal_is_in_the_programs_own_words(site: Site) -> None:
    with pytest.raises(ProgramRefused, match="sbatch: error: invalid partition") as refusal:
        await site.gate.submit(ALICE, replace(ASKED, options=("--partition=nowhere",)), SCRIPT)
    assert refusal.value.exit_code == 1


async def test_a_directory_is_a_wish_or_a_condition(site: Site) -> None:
    wish = replace(ASKED, directory="/nowhere/at/all")
    assert "/nowhere/at/all" in (await site.gate.submit(ALICE, wish, SCRIPT)).notes[0]
    with pytest.raises(UsageError, match="can't be entered"):
        await site.gate.submit(ALICE, replace(wish, directory_required=True), SCRIPT)


@pytest.mark.spec("ALLOC-4")
async def test_one_cancels_ones_own(site: Site) -> None:
    job = str((await site.gate.submit(ALICE, ASKED, SCRIPT)).job_id)
    with pytest.raises(ProgramRefused, match="denied"):
        await site.gate.cancel(BOB, CancelQuestion(jobs=(job,)))
    await site.gate.cancel(ALICE, CancelQuestion(jobs=(job,)))


async def test_a_gate_that_is_not_there_is_unavailable(site: Site) -> None:
    site.silence()
    with pytest.raises(Unavailable):
        await site.gate.submit(ALICE, ASKED, SCRIPT)
