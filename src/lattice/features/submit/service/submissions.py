"""Runs `sbatch` and `scancel` as the caller.

Two checks protect a cancel. The policy decides which allocations the caller can name, and Slurm
decides whether `scancel` succeeds. An allocation of another user gets the answer of an absent one.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.access.limits import CallerLimits, Questions
from lattice.access.permission import Permission
from lattice.access.policy import scope_of
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.allocation import Allocation, BadReference, Reference, parse_reference
from lattice.domain.claim import Claims, NoClaims
from lattice.domain.privileged import digest_of
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope
from lattice.domain.source import PAST
from lattice.domain.state import StateStore
from lattice.domain.submission import (
    LARGEST_SCRIPT_BYTES,
    CancelQuestion,
    ProgramRefused,
    SubmitGate,
    SubmitQuestion,
    Submitted,
    Submitter,
)
from lattice.domain.vcluster import VclusterKind, Vclusters
from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest
from lattice.features.submit.service.once import Once, Pause, key_digest
from lattice.features.submit.service.options import sbatch_options
from lattice.features.submit.service.uenv import UenvPlugin, is_unknown_option

_RETRY_S = 0.5
_MOST_READS = 8
_SEEN_WITHIN_S = 2.0
_GONE = "Invalid job id specified"
_NO_SUCH_OPTION = (
    "Slurm on the submit host has no plugin that takes this option. An administrator installs the "
    "plugin there, or corrects the names in the section `uenv` of the server's configuration."
)
_NO_GATE_HINT = "An administrator sets gate.socket and runs lattice-helper beside the server."


class SubmitService:
    """Submits and cancels for one caller at a time. Missing parts are None."""

    def __init__(  # noqa: PLR0913, PLR0917 - its dependencies
        self,
        scheduler: Scheduler,
        gate: SubmitGate | None,
        state: StateStore | None,
        views: Vclusters,
        clock: Clock,
        pause: Pause = asyncio.sleep,
        limits: CallerLimits | None = None,
        journal: ActJournal | None = None,
        claims: Claims | None = None,
        plugin: UenvPlugin | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._gate = gate
        self._views = views
        self._clock = clock
        self._pause = pause
        self._limits = limits
        self._journal = journal
        self._claims = claims or NoClaims()
        self._plugin = plugin or UenvPlugin()
        self._once = Once(state, scheduler, clock, pause) if state is not None else None

    async def submit(
        self,
        actor: Actor,
        request: SubmitRequest,
        key: str = "",
        *,
        optional: bool = False,
        repeated: bool = False,
    ) -> SubmitAnswer:
        """Run `sbatch` as the caller; with a key at most once.

        `optional`: the caller gave no key, so its first use works without the state store.
        `repeated`: the key was used before, and the answer was lost.
        """
        gate, who = self._ready(actor)
        digest = key_digest(actor.sub, key)
        script = _script(request.script)
        question = SubmitQuestion(
            options=sbatch_options(
                request,
                self._views,
                digest,
                self._reservations(who, request.vcluster),
                self._plugin,
            ),
            arguments=request.arguments,
            environment=tuple(sorted(request.environment.items())),
            directory=request.directory,
            directory_required=request.directory_required,
            script_sha256=hashlib.sha256(script).hexdigest(),
        )
        if fault := question.fault():
            raise UsageError(f"This can't be submitted: {fault}.")
        await self._ask(actor, Questions.SUBMIT)

        async def act() -> Submitted:
            return await self._run(gate, who, question, script)

        free = optional and not repeated
        if not digest or (self._once is None and free):
            submitted = await act()
            await self._refresh(who.user)
            return _answer(submitted, repeated=False)
        if self._once is None:
            raise Unavailable(
                "This server keeps no state, so it can't honour an idempotency key.",
                hint="Leave the key out, or set quorum.endpoints in the server's configuration.",
            )
        submitted, before = await self._once.submit(
            digest, who, digest_of(question), act, optional=free, repeated=repeated
        )
        await self._refresh(who.user)
        return _answer(submitted, repeated=before)

    async def _run(
        self, gate: SubmitGate, who: Submitter, question: SubmitQuestion, script: bytes
    ) -> Submitted:
        try:
            return await gate.submit(who, question, script)
        except ProgramRefused as refusal:
            if not is_unknown_option(refusal.message, self._plugin):
                raise
            raise ProgramRefused(
                refusal.message, hint=_NO_SUCH_OPTION, exit_code=refusal.exit_code
            ) from None

    def _reservations(self, who: Submitter, vcluster: str) -> tuple[str, ...]:
        """The reservations of the caller's claims, for sensitive work. Raises without one."""
        if self._views.kind_of(vcluster) is not VclusterKind.SENSITIVE:
            return ()
        names = tuple(each.reservation.name for each in self._claims.claims().of_user(who.user))
        if not names:
            raise PermissionRefused(
                f"SensitiveIsolation: {vcluster} is for sensitive work, which runs on nodes that "
                "its owner has claimed, and you hold none.",
                hint="`lattice admin claim NODES` claims nodes, with the role ClaimingUser.",
            )
        return names

    async def cancel(self, actor: Actor, name: str) -> CancelAnswer:
        """Run `scancel` as the caller, for an allocation that the caller may cancel."""
        try:
            reference = parse_reference(name)
        except BadReference as problem:
            raise UsageError(f"{problem}.", hint="Use 12345, 12345_7 or 12345+1.") from None
        await self._ask(actor, Questions.CANCEL)
        found = await self._found(actor, reference)
        shown = str(Reference(reference.job_id, reference.task_id, reference.offset))
        unfinished = [each for each in found if not each.state.finished]
        if not unfinished:
            return CancelAnswer(id=shown, cancelling=False, state=found[0].state.value)
        gate, who = self._ready(actor)
        try:
            await gate.cancel(who, CancelQuestion(jobs=(shown,)))
        except ProgramRefused as refusal:
            if _GONE in refusal.message:
                raise _absent(reference) from None
            raise PermissionRefused(
                refusal.message, hint="Slurm itself does not let you cancel this one."
            ) from None
        self._record(actor, unfinished[0])
        await self._refresh(unfinished[0].user)
        return CancelAnswer(id=shown, cancelling=True, state=unfinished[0].state.value)

    def _record(self, actor: Actor, job: Allocation) -> None:
        """Record that somebody cancelled an allocation of another."""
        if self._journal is not None and actor.user != job.user:
            self._journal.acted("cancel", job.ref, actor.sub, "", owner=job.user, tenant=job.tenant)

    async def _ask(self, actor: Actor, kind: Questions) -> None:
        """Take a token of the caller's rate limit; raises `RateLimited`."""
        if self._limits is not None:
            await self._limits.ask(actor.sub, kind)

    async def _refresh(self, user: str) -> None:
        """Refresh the snapshot for the next `lattice status`; ignore errors."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_SEEN_WITHIN_S):
                await self._scheduler.fresh(users={user})

    def _ready(self, actor: Actor) -> tuple[SubmitGate, Submitter]:
        if self._gate is None:
            raise Unavailable("This server has no submit gate.", hint=_NO_GATE_HINT)
        if not actor.user:
            raise PermissionRefused(
                "Your token names no Unix user to act as.", hint="See `lattice whoami`."
            )
        return self._gate, Submitter(actor.user, actor.sub)

    async def _found(self, actor: Actor, reference: Reference) -> list[Allocation]:
        # The same steps for every owner: a new snapshot, since the job may be newer or have ended,
        # and the past within the caller's scope.
        asked_at = self._clock.now()
        accounts = self._scheduler.live().cluster.accounts
        scope = scope_of(actor, Permission.CANCEL_ALLOCATION, accounts)
        reading = await self._scheduler.fresh(users=scope.only_users)
        past, past_known = await self._past(PastQuestion(scope=scope, reference=reference))
        for _ in range(_MOST_READS):
            there = reading.cluster.candidates(reference, scope)
            found = [each for each in there if _meant(reference, each)]
            if found or not reading.source.ok or reading.cluster.read_at >= asked_at:
                break
            # A long queue is not read for every request, so a new job may be missing from the
            # snapshot.
            await self._pause(_RETRY_S)
            reading = await self._scheduler.fresh(users=scope.only_users)
        found = found or _newest(past, scope, reference)
        if found:
            return found
        if reading.source.ok and past_known:
            raise _absent(reference)
        silent = reading.source.name if not reading.source.ok else PAST
        raise Unavailable(
            f"Whether allocation {reference} exists can't be told now: {silent} does not answer.",
            hint="Try again in a minute; `lattice status` shows what is known.",
        )

    async def _past(self, question: PastQuestion) -> tuple[tuple[Allocation, ...], bool]:
        try:
            return await self._scheduler.past(question), True
        except Unavailable:
            return (), False


def _absent(reference: Reference) -> NotFound:
    return NotFound(f"No allocation {reference} of yours.", hint="`lattice status` lists yours.")


def _meant(reference: Reference, allocation: Allocation) -> bool:
    if reference.matches(allocation):
        return True
    # Pending tasks have no record of their own; one record covers all of them.
    array = allocation.array
    return (
        array is not None
        and reference.task_id is not None
        and (array.job_id, array.task_id) == (reference.job_id, None)
        and waits(array.waiting, reference.task_id)
    )


def waits(tasks: str, task: int) -> bool:
    """True if the task is in `1-5,7,9-30:3%2`; Slurm ends long lists with dots."""
    for part in tasks.partition("%")[0].split(","):
        if "..." in part:
            return True
        span, _, step = part.strip("[]").partition(":")
        first, _, last = span.partition("-")
        if not all(each.isdecimal() for each in (first, last or first, step or "1")):
            continue
        if task in range(int(first), int(last or first) + 1, int(step or 1) or 1):
            return True
    return False


def _newest(past: tuple[Allocation, ...], scope: Scope, reference: Reference) -> list[Allocation]:
    found = [each for each in past if scope.covers(each) and reference.matches(each)]
    # The controller no longer has the job, so it does not run, even if the store has it as running.
    return [each for each in found if each.state.finished][:1]


def _script(text: str) -> bytes:
    try:
        script = text.encode()
    except UnicodeEncodeError:
        raise UsageError("The script is no valid text.") from None
    if not script.strip():
        raise UsageError("The script is empty.", hint="It begins with `#!` and an interpreter.")
    if len(script) > LARGEST_SCRIPT_BYTES:
        raise UsageError(f"The script is larger than {LARGEST_SCRIPT_BYTES} bytes.")
    return script


def _answer(submitted: Submitted, *, repeated: bool) -> SubmitAnswer:
    return SubmitAnswer(
        id=str(submitted.job_id), job_id=submitted.job_id, repeated=repeated, notes=submitted.notes
    )
