"""A submit gate in memory, for tests of what stands on the port. Passes the port's contract suite.

It knows a few people and what they may do; jobs it submits appear in the scheduler it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.allocation import Allocation, State
from lattice.domain.submission import (
    CancelQuestion,
    ProgramRefused,
    SubmitQuestion,
    Submitted,
    Submitter,
    Unsure,
)
from tests.fakes.in_memory_scheduler import InMemoryScheduler

ACCOUNT = {"alice": "research", "bob": "genomics", "carol": "genomics", "dave": "theory"}


class InMemoryGate:
    """`away`: nothing listens. `lost_answers`: it acts, and nobody hears of it."""

    def __init__(self, scheduler: InMemoryScheduler, first_job: int = 500) -> None:
        self._scheduler = scheduler
        self._next = first_job
        self.away = False
        self.lost_answers = 0
        self.submitted: list[tuple[Submitter, SubmitQuestion, bytes]] = []
        self.before_submit: Callable[[], Awaitable[None]] | None = None

    async def submit(self, who: Submitter, question: SubmitQuestion, script: bytes) -> Submitted:
        account = self._account(who)
        if self.before_submit is not None:
            await self.before_submit()
        assert question.fault() == ""
        assert question.script_sha256 == hashlib.sha256(script).hexdigest()
        if "--partition=nowhere" in question.options:
            raise ProgramRefused("sbatch: error: invalid partition specified: nowhere")
        notes: tuple[str, ...] = ()
        if question.directory.startswith("/nowhere"):
            if question.directory_required:
                raise UsageError(f"{question.directory} can't be entered.")
            notes = (f"{question.directory} can't be entered; submitted from elsewhere.",)
        self.submitted.append((who, question, script))
        job_id, self._next = self._next, self._next + 1
        self._scheduler.allocations.append(self._job(job_id, who.user, account, question))
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unsure("sbatch did not end in time.")
        return Submitted(job_id, "", notes)

    async def cancel(self, who: Submitter, question: CancelQuestion) -> None:
        self._account(who)
        assert question.fault() == ""
        for job in question.jobs:
            found = [each for each in self._scheduler.allocations if each.id == job]
            if any(each.user != who.user for each in found):
                raise ProgramRefused(
                    f"scancel: error: Kill job error on job id {job}: Access/permission denied",
                    exit_code=210,
                )

    def _account(self, who: Submitter) -> str:
        if self.away:
            raise Unavailable("The helper does not answer.")
        if who.user not in ACCOUNT:
            raise PermissionRefused(f"Nothing is submitted as {who.user}.")
        return ACCOUNT[who.user]

    def _job(self, job_id: int, user: str, account: str, question: SubmitQuestion) -> Allocation:
        said = dict(
            each.removeprefix("--").split("=", 1) for each in question.options if "=" in each
        )
        now = datetime.now(UTC).replace(microsecond=0)
        return Allocation(
            cluster="lab",
            id=str(job_id),
            job_id=job_id,
            name=said.get("job-name", "sbatch"),
            user=user,
            account=account,
            tenant="",
            partition=said.get("partition", "batch"),
            qos="normal",
            vcluster=None,
            state=State.PENDING,
            submitted=now,
            first_submitted=now,
            comment=said.get("comment", ""),
        )
