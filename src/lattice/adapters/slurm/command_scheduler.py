"""The port `Scheduler` for one caller, by Slurm's own commands and with the caller's rights.

It reads when it is asked and keeps the last reading. It has no nodes, no accounts and no tenants:
a caller without a server sees the own jobs alone, and needs none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime

from lattice.adapters.slurm.accounting import PastReader
from lattice.adapters.slurm.accounts import Associations
from lattice.adapters.slurm.answer import checked, read_answer
from lattice.adapters.slurm.command_exchange import JOBS, CommandExchange
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.exit_codes import ExitCodes
from lattice.adapters.slurm.first_submit import Origins, is_requeued
from lattice.adapters.slurm.job_details import SlurmJobFiles
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.scheduler import LiveCluster, PastQuestion, SchedulerReading
from lattice.domain.source import LIVE, Source
from lattice.domain.vcluster import Vclusters

_TIMEOUT_S = 10.0
_LIMIT_BYTES = 256 * 1024 * 1024
"""22.05 prints the jobs of everybody."""


class CommandScheduler:
    """The jobs of one user, live and past."""

    def __init__(self, commands: SlurmCommands, user: str, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self._rest = SlurmRest("", exchange=CommandExchange(commands, user))
        dialects = Dialects(self._rest, known_schemas(), clock)
        self._schema = known_schemas()[-1]
        self._past = PastReader(self._rest, dialects, clock)
        self._origins = Origins(self._past, clock)
        self._exits = ExitCodes(commands)
        self._site = SlurmSite(commands, user)
        self._placing = Placing("", AccountTree(), Vclusters())
        self._reading: SchedulerReading | None = None
        self.job_files = SlurmJobFiles(commands, self._rest, dialects)

    @property
    def cluster_name(self) -> str:
        """Slurm's ClusterName; empty until it was read."""
        return self._placing.cluster

    def live(self) -> SchedulerReading:
        """The last reading. Raises `Unavailable` if there was none."""
        if self._reading is None:
            raise Unavailable("Slurm was not asked yet", hint="Try again.")
        return self._reading

    async def fresh(
        self,
        *,
        nodes: bool = False,  # noqa: ARG002
        accounts: bool = False,  # noqa: ARG002
        users: Collection[str] = (),  # noqa: ARG002
    ) -> SchedulerReading:
        """Read the caller's jobs from slurmctld, unless it does not answer.

        Then the last reading stays, or is empty. It is marked as old, with the reason.
        """
        asked_at = self._clock.now()
        try:
            found = await self._read()
        except Unavailable as problem:
            self._reading = self._old(problem.message, asked_at)
        else:
            source = Source(name=LIVE, ok=True, as_of=asked_at, age_s=0.0)
            cluster = LiveCluster(read_at=asked_at, allocations=found)
            self._reading = SchedulerReading(cluster, source)
        return self._reading

    async def _read(self) -> tuple[Allocation, ...]:
        reply, _ = await asyncio.gather(
            self._rest.get(JOBS, timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES),
            self._know_cluster(),
        )
        answer = checked(read_answer(reply.body, "jobs"), reply.status, "squeue")
        jobs = (self._schema.job(raw, self._placing) for raw in answer.records)
        found = tuple(each for each in jobs if each is not None)
        requeued = [each for each in found if is_requeued(each)]
        await self._origins.learn(requeued, self._placing)
        return tuple(map(self._origins.completed, found))

    def _old(self, error: str, now: datetime) -> SchedulerReading:
        if self._reading is None:
            source = Source(name=LIVE, ok=False, error=error)
            return SchedulerReading(LiveCluster(read_at=now), source)
        before = self._reading
        age_s = (now - before.cluster.read_at).total_seconds()
        source = Source(name=LIVE, ok=False, as_of=before.cluster.read_at, age_s=age_s, error=error)
        return SchedulerReading(before.cluster, source)

    async def past(
        self, question: PastQuestion, *, patience_s: float | None = None
    ) -> tuple[Allocation, ...]:
        """From slurmdbd, newest first. Raises `Unavailable` while it does not answer."""
        try:
            async with asyncio.timeout(patience_s):
                await self._know_cluster()
                found = await self._past.ask(question, self._placing, Associations())
                return await self._exits.filled(found)
        except TimeoutError:
            raise Unavailable(
                f"slurmdbd gave no answer within {patience_s:g} s", hint="Try again in a minute."
            ) from None

    async def _know_cluster(self) -> None:
        """Read the cluster's name: from slurmctld, else from slurmdbd if that has but one."""
        if self._placing.cluster:
            return
        try:
            name = await self._site.read_name()
        except Unavailable:
            listed = (await self._commands.clusters()).split()
            if len(listed) != 1:
                raise
            (name,) = listed
        self._placing = Placing(name, AccountTree(), Vclusters())

    async def aclose(self) -> None:
        """Cancel running requests."""
        await self._past.aclose()
