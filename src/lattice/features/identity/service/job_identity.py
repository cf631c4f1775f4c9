"""What a job may ask for itself: a token of its own, and who it is.

The node is the one of the agent's certificate. It names a job by number and start; everything else
is Slurm's word. A token that outlives its job is worth nothing: each question looks up whether that
run still has this node.
"""

from __future__ import annotations

from lattice.access.job_tokens import JobTokens
from lattice.access.journal import RefusalJournal
from lattice.access.locks import locked_text
from lattice.base.errors import JobEnded, LoginRequired, PermissionRefused, Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.attempts import AttemptLookup, NotKnownYet
from lattice.domain.job_token import BadJobToken, JobToken
from lattice.domain.lock import Locks
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import Scheduler, SchedulerReading
from lattice.features.identity.model import IssuedJobToken, JobSelf

_RUNS = frozenset({State.RUNNING, State.SUSPENDED, State.STOPPED, State.SIGNALING, State.RESIZING})


class JobIdentityService:
    """For agents, on behalf of the jobs on their nodes."""

    def __init__(
        self,
        tokens: JobTokens,
        attempts: AttemptLookup,
        scheduler: Scheduler,
        locks: Locks,
        journal: RefusalJournal,
    ) -> None:
        self._tokens = tokens
        self._attempts = attempts
        self._scheduler = scheduler
        self._locks = locks
        self._journal = journal

    async def issue(self, node: str, job_id: int, started: float) -> IssuedJobToken:
        """A token for the run that began on this node then.

        Raises `NotFound`, `JobEnded`, `PermissionRefused` and `Unavailable`.
        """
        try:
            run = await self._attempts(node, job_id, started)
        except NotKnownYet as error:
            raise Unavailable(error.message, hint="Try again in a few seconds.") from None
        text, token = self._tokens.issue(node, run)
        await self._admit(token)
        return IssuedJobToken(token=text, lifetime_s=token.expires - token.issued)

    async def describe(self, node: str, text: str) -> JobSelf:
        """What the job with this token may know of itself.

        Raises `LoginRequired`, `JobEnded`, `PermissionRefused` and `Unavailable`.
        """
        try:
            token = self._tokens.check(text, node)
        except BadJobToken as error:
            self._journal.refused("DescribeJob", node, str(error))
            raise LoginRequired(
                "The token of the job was not accepted.", hint="Ask the node for another one."
            ) from None
        allocation = await self._admit(token)
        return JobSelf(
            cluster=allocation.cluster,
            id=allocation.id,
            allocation=allocation.ref,
            attempt=token.attempt,
            job_id=allocation.job_id,
            name=allocation.name,
            user=allocation.user,
            account=allocation.account,
            tenant=allocation.tenant,
            partition=allocation.partition,
            state=allocation.state,
            nodes=allocation.nodes,
            node_count=allocation.node_count,
            started=allocation.started,
            time_limit_s=allocation.time_limit_s,
        )

    async def _admit(self, token: JobToken) -> Allocation:
        """The allocation, if this run still has this node and nobody locked it."""
        lock = self._locks.of_user(token.user) or self._locks.of_node(token.node)
        if lock is not None:
            raise PermissionRefused(
                locked_text(lock), hint="Jobs run on. Ask the administrators of the cluster."
            )
        reading = self._scheduler.live()
        found = _run_of(token, reading)
        if found is None and reading.cluster.read_at.timestamp() < token.issued:
            # Slurm may have started it since.
            reading = await self._scheduler.fresh(users={token.user})
            found = _run_of(token, reading)
        if not reading.source.ok:
            raise Unavailable(
                "Slurm does not answer, so it is not known whether the job still runs.",
                hint="Try again in a minute.",
            )
        if found is None:
            raise JobEnded(f"Job {token.job_id} does not run on {token.node} any more.")
        return found


def _run_of(token: JobToken, reading: SchedulerReading) -> Allocation | None:
    for each in reading.cluster.of_job(token.job_id):
        is_run = (each.ref, each.attempt, each.user) == (
            token.allocation,
            token.attempt,
            token.user,
        )
        if is_run and each.state in _RUNS and token.node in NodeSet.parse(each.nodes):
            return each
    return None
