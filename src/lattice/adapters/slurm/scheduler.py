"""`SlurmScheduler`: the port `Scheduler` over slurmrestd, updated in the background.

`run` polls; `live` returns the last reading with its age; `past` queries slurmdbd. While Slurm is
down the last reading stays, ages, and is marked as old. Jobs and nodes come from slurmctld, the
account tree from slurmdbd, the switches from `scontrol`. Each fails and recovers independently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from lattice.adapters.slurm.accounting import PastReader
from lattice.adapters.slurm.accounts import AccountsReader
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.exit_codes import ExitCodes
from lattice.adapters.slurm.first_submit import Origins
from lattice.adapters.slurm.job_details import SlurmAccounting, SlurmJobFiles
from lattice.adapters.slurm.job_list import JobList
from lattice.adapters.slurm.poller import ControllerClock, Polled
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema import Raw
from lattice.adapters.slurm.schema.decoder import Schema, known_schemas
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.tenancy import Placing
from lattice.adapters.slurm.topology import leaves, parse_topology
from lattice.adapters.slurm.user_readings import AskedTime, UserReadings
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.node import Node, Topology
from lattice.domain.scheduler import JobListSource, LiveCluster, PastQuestion, SchedulerReading
from lattice.domain.source import LIVE, Source
from lattice.domain.vcluster import Vclusters

_log = logging.getLogger(__name__)
T = TypeVar("T")

_ACCOUNTS_EVERY_S = 60.0
_TOPOLOGY_EVERY_S = 600.0
_ORIGINS_EVERY_S = 1.0
_RETRY_S = 5.0
_NODES_SHARE = 10
_LONGEST_WAIT_S = 5.0
_LONGEST_FRESH_S = 8.0
_LONGEST_NODES_WAIT_S = 15.0
_LEAST_STALE_S = 10.0
_OF_USERS = "jobs of single users"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmReader:
    """Who reads Slurm, and how."""

    account: str = ""
    """As which slurmrestd reads."""
    commands_user: str = ""
    """As whom Slurm's commands run."""
    job_list: JobListSource = JobListSource.AUTO


class SlurmScheduler:
    """Reads one Slurm cluster. The counters are in `jobs.counts`, `nodes.counts`, `past_reader`."""

    def __init__(
        self,
        rest: SlurmRest,
        commands: SlurmCommands,
        vclusters: Vclusters,
        clock: Clock,
        poll_interval_s: float = 2.0,
        *,
        reader: SlurmReader | None = None,
        shown_name: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`shown_name`: the cluster's name for people."""
        reader = reader or SlurmReader()
        self._shown_name = shown_name
        self._site = SlurmSite(commands, reader.account)
        self._commands = commands
        self._vclusters = vclusters
        self._clock = clock
        self._sleep = sleep
        self._poll_interval_s = poll_interval_s
        self._interval_s = poll_interval_s
        self._polling = asyncio.Lock()
        self._polling_nodes = asyncio.Lock()
        """One poll at a time: an older answer never replaces a newer one."""
        self._reading_accounts = asyncio.Lock()
        self._accounts_asked_s = 0.0
        self._user_readings = UserReadings(self._read_jobs_of, clock)
        self._fresh_polls: set[asyncio.Task[object]] = set()
        self.dialects = dialects = Dialects(rest, known_schemas(), clock)
        self.job_files = SlurmJobFiles(commands, rest, dialects)
        self.accounting = SlurmAccounting(commands, rest, dialects)
        self.controller_clock = controller_clock = ControllerClock(rest, clock)
        self.past_reader = PastReader(rest, dialects, clock)
        self._origins = Origins(self.past_reader, clock)
        self.jobs = self._job_list(rest, SlurmSite(commands, reader.commands_user), reader.job_list)
        self.nodes: Polled[Node] = Polled(
            rest,
            dialects,
            clock,
            controller_clock,
            name="nodes",
            decode=self._node,
            whole=True,
        )
        self._accounts = AccountsReader(self._site, rest, dialects, commands)
        self._exits = ExitCodes(commands)
        self._placing = Placing("", AccountTree(), vclusters)
        self._topology, self._leaves = Topology(), dict[str, str]()
        self._cluster: LiveCluster | None = None
        self._nodes_read = False
        self._nodes_as_of: datetime | None = None
        self._jobs_as_of: datetime | None = None
        self._jobs_as_of_s = 0.0
        self.errors: dict[str, str] = {}
        """Current errors, by part, such as jobs or nodes."""
        self._answered_at_s: dict[str, float] = {}
        """When each part was last read."""

    def _job_list(self, rest: SlurmRest, site: SlurmSite, source: JobListSource) -> JobList:
        polled: Polled[Allocation] = Polled(
            rest,
            self.dialects,
            self._clock,
            self.controller_clock,
            name="jobs",
            decode=self._job,
            restless=lambda job: job.state.waiting,
        )
        return JobList(
            polled,
            self._commands,
            site,
            rest,
            self.dialects,
            self._clock,
            lambda: self._placing,
            self._origins,
            source,
        )

    @property
    def cluster_name(self) -> str:
        """The configured name, else Slurm's ClusterName; empty until Slurm answered."""
        return self._shown_name or self._site.cluster

    @property
    def accounting_error(self) -> str:
        """Why slurmdbd does not answer, as last asked; empty if it does."""
        return self.errors.get("accounts") or self.errors.get("associations") or ""

    @property
    def accounting_age_s(self) -> float | None:
        """Age of slurmdbd's newest answer; None before the first."""
        parts = (self._answered_at_s.get(each) for each in ("accounts", "associations"))
        newest = max((each for each in parts if each is not None), default=None)
        return None if newest is None else self._clock.monotonic() - newest

    def live(self) -> SchedulerReading:
        """The last reading and its age, at once. Raises `Unavailable` if there was none yet."""
        if self._cluster is None:
            error = self.errors.get("jobs") or self.errors.get("nodes")
            raise Unavailable(
                f"Slurm has not answered yet{f': {error}' if error else ''}",
                hint="Try again in a few seconds.",
            )
        age_s = self._clock.monotonic() - self._jobs_as_of_s
        source = Source(
            name=LIVE,
            ok=self._is_current(age_s),
            as_of=self._jobs_as_of,
            age_s=age_s,
            error=self.errors.get("jobs"),
            incomplete=self._site.hidden,
        )
        return SchedulerReading(self._cluster, source)

    def _is_current(self, age_s: float) -> bool:
        # A long list is read less often, which is no error; a failed poll is one.
        if "jobs" in self.errors:
            return age_s <= _LEAST_STALE_S
        return age_s <= max(3 * self._interval_s, _LEAST_STALE_S)

    def reload(self, poll_interval_s: float) -> None:
        """From now on poll so often."""
        self._poll_interval_s = poll_interval_s

    async def reload_views(self) -> None:
        """Place every job again: the vClusters have changed."""
        placing = Placing(self._site.cluster, self._accounts.tree, self._vclusters)
        self._placing = placing
        await self.jobs.replace(lambda job: _viewed(job, placing))
        self._rebuild()

    async def fresh(
        self, *, nodes: bool = False, accounts: bool = False, users: Collection[str] = ()
    ) -> SchedulerReading:
        """One more poll, shared by concurrent callers, within the time that polls may take.

        If slurmctld does not answer, or the list is too long to be read at once: the last reading.
        Of a long list the jobs of `users` are read alone.
        """
        if accounts:
            await self._polled(self._try("accounts", self._read_accounts_again))
        elif "jobs" in self.errors:
            pass
        elif users and not nodes and self.jobs.is_long:
            asked = await self._polled(self._user_readings.fresh(frozenset(users)))
            return self._live_as_of(asked)
        else:
            await self._polled(self._read_again(nodes))
        return self.live()

    def _live_as_of(self, asked: AskedTime | None) -> SchedulerReading:
        """The last reading, for those whose jobs alone were asked for after it."""
        reading = self.live()
        if asked is None or asked.at_s < self._jobs_as_of_s:
            return reading
        age_s = self._clock.monotonic() - asked.at_s
        return replace(reading, source=replace(reading.source, as_of=asked.at, age_s=age_s))

    async def _polled(self, reading: Coroutine[Any, Any, T]) -> T | None:
        polls = asyncio.create_task(reading, name="slurm fresh")
        self._fresh_polls.add(polls)
        polls.add_done_callback(self._fresh_polls.discard)
        # Not cancelled when the time is over: slurmrestd keeps working on it, and the next caller
        # would only add another request.
        await asyncio.wait({polls}, timeout=_LONGEST_FRESH_S)
        return polls.result() if polls.done() and not polls.cancelled() else None

    async def _read_jobs_of(self, users: frozenset[str]) -> bool:
        async def read() -> None:
            if await self.jobs.read_users(users):
                self._rebuild()

        return await self._try(_OF_USERS, read)

    async def _read_again(self, nodes: bool) -> None:
        asked_s = self._clock.monotonic()
        if nodes and _NODES_SHARE * self.nodes.usual_cost_s <= _LONGEST_WAIT_S:
            # First: a caller that just changed a node must not wait for the list of jobs.
            await self._try("nodes", self._poll_nodes)
        async with self._polling:
            if self._jobs_as_of_s < asked_s and "jobs" not in self.errors:
                due_s = self._jobs_as_of_s + self.jobs.share * self.jobs.usual_cost_s
                wait_s = max(0.0, due_s - self._clock.monotonic())
                if wait_s <= _LONGEST_WAIT_S:
                    await self._sleep(wait_s)
                    await self._try("jobs", self._read_jobs)

    async def past(
        self, question: PastQuestion, *, patience_s: float | None = None
    ) -> tuple[Allocation, ...]:
        """From slurmdbd, newest first. Raises `Unavailable` while it does not answer."""
        try:
            async with asyncio.timeout(patience_s):
                await self._know_cluster()
                found = await self.past_reader.ask(
                    question, self._placing, self._accounts.associations
                )
                return await self._exits.filled(found)
        except TimeoutError:
            raise Unavailable(
                f"slurmdbd gave no answer within {patience_s:g} s",
                hint="Try again in some seconds: a late answer is kept for a while.",
            ) from None

    async def run(self) -> None:
        """Update the reading until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, step, wait_s in (
                    ("jobs", self._poll_jobs, self._wait_for_jobs),
                    ("nodes", self._poll_nodes, self._wait_for_nodes),
                    ("accounts", self._read_accounts, lambda: _ACCOUNTS_EVERY_S),
                    ("associations", self._accounts.read_ids, lambda: _ACCOUNTS_EVERY_S),
                    ("rights", self._read_rights, lambda: _ACCOUNTS_EVERY_S),
                    ("topology", self._read_topology, lambda: _TOPOLOGY_EVERY_S),
                    ("origins", self._read_origins, lambda: _ORIGINS_EVERY_S),
                    ("details", self._read_details, lambda: self._interval_s),
                ):
                    group.create_task(self._repeat(name, step, wait_s), name=f"slurm {name}")
        finally:
            for polls in self._fresh_polls:
                polls.cancel()
            await self.past_reader.aclose()

    async def refresh(self) -> None:
        """Read everything once. Failures are in `errors`; for start-up and tests."""
        await asyncio.gather(
            self._try("accounts", self._read_accounts),
            self._try("associations", self._accounts.read_ids),
            self._try("rights", self._read_rights),
            self._try("topology", self._read_topology),
            self._try("nodes", self._read_nodes),
            self._try("jobs", self._read_jobs),
        )
        await self._try("origins", self._read_origins)
        await self._try("details", self._read_details)

    async def _repeat(
        self, name: str, step: Callable[[], Awaitable[None]], wait_s: Callable[[], float]
    ) -> None:
        while True:
            worked = await self._try(name, step)
            await self._sleep(wait_s() if worked else min(wait_s(), _RETRY_S))

    async def _try(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except LatticeError as error:
            if self.errors.get(name) != error.message:
                _log.warning("slurm %s: %s", name, error.message)
            self.errors[name] = error.message
            return False
        except Exception as error:  # noqa: BLE001
            # An unexpected record must not break the view for everyone: log it and retry.
            _log.exception("slurm %s: not foreseen", name)
            self.errors[name] = f"internal error while reading {name}: {type(error).__name__}"
            return False
        self._answered_at_s[name] = self._clock.monotonic()
        if self.errors.pop(name, None):
            _log.info("slurm %s: answers again", name)
        return True

    def _wait_for_jobs(self) -> float:
        if "jobs" in self.errors or self.jobs.counts.polls_total == 1:
            return self._poll_interval_s
        # Polling takes a part of the time at most: a long list is read less often.
        cost_s = self.jobs.last_cost_s
        self._interval_s = max(
            self._poll_interval_s, self.jobs.least_interval_s, self.jobs.share * cost_s
        )
        return self._interval_s - cost_s

    def _wait_for_nodes(self) -> float:
        # One slow poll must not hide an operator's change of a node for a minute.
        wait_s = max(self._interval_s, (_NODES_SHARE - 1) * self.nodes.usual_cost_s)
        return min(wait_s, max(self._interval_s, _LONGEST_NODES_WAIT_S))

    async def _poll_jobs(self) -> None:
        async with self._polling:
            await self._read_jobs()

    async def _read_jobs(self) -> None:
        as_of, as_of_s = self._clock.now(), self._clock.monotonic()
        await self._know_cluster()
        changed = await self.jobs.poll()
        self._jobs_as_of, self._jobs_as_of_s = as_of, as_of_s
        if self._user_readings.failed_s < as_of_s:
            # What could not be read then has been read now.
            self.errors.pop(_OF_USERS, None)
        if changed or self._cluster is None:
            self._rebuild()
        else:
            self._cluster = self._cluster.confirmed(as_of)

    async def _poll_nodes(self) -> None:
        async with self._polling_nodes:
            if "jobs" in self.errors:
                # slurmrestd may hold a thread for each request until slurmctld answers. It needs
                # the others for slurmdbd.
                async with self._polling:
                    await self._read_nodes()
            else:
                await self._read_nodes()

    async def _read_nodes(self) -> None:
        as_of = self._clock.now()
        await self.nodes.poll()
        self._nodes_read, self._nodes_as_of = True, as_of
        self._rebuild()

    async def _read_accounts_again(self) -> None:
        """Callers that wait at the same time share an answer."""
        asked_s = self._clock.monotonic()
        async with self._reading_accounts:
            if self._accounts_asked_s <= asked_s:
                await self._read_tree()

    async def _read_accounts(self) -> None:
        async with self._reading_accounts:
            await self._read_tree()

    async def _read_tree(self) -> None:
        asked_s = self._clock.monotonic()
        changed = await self._accounts.read()
        self._accounts_asked_s = asked_s
        if not changed:
            return
        placing = Placing(self._site.cluster, self._accounts.tree, self._vclusters)
        self._placing = placing
        await self.jobs.replace(lambda job: _placed(job, placing))
        self._rebuild()

    async def _know_cluster(self) -> None:
        """Read Slurm's name of the cluster before any record. Raises `Unavailable`."""
        if not self._placing.cluster:
            name = await self._site.read_name()
            self._placing = Placing(name, self._accounts.tree, self._vclusters)

    async def _read_rights(self) -> None:
        before = self._site.hidden
        await self._site.read_rights()
        if self._site.hidden != before:
            if self._site.hidden:
                _log.error("slurm rights: %s", self._site.hidden)
            else:
                _log.info("slurm rights: nothing is hidden any more")

    async def _read_topology(self) -> None:
        topology = parse_topology(await self._commands.topology())
        if topology != self._topology:
            self._topology, self._leaves = topology, leaves(topology)
            await self.nodes.replace_all(self._on_switch)
            self._rebuild()

    async def _read_details(self) -> None:
        if await self.jobs.read_details():
            self._rebuild()

    async def _read_origins(self) -> None:
        if await self.jobs.read_origins():
            self._rebuild()

    def _rebuild(self) -> None:
        if self._jobs_as_of is None or not self._nodes_read:
            return
        self._cluster = LiveCluster(
            read_at=self._jobs_as_of,
            allocations=self.jobs.index,
            nodes=self.nodes.records,
            nodes_read_at=self._nodes_as_of,
            topology=self._topology,
            accounts=self._accounts.tree,
        )

    def _job(self, schema: Schema, raw: Raw) -> Allocation | None:
        job = schema.job(raw, self._placing)
        return job and self._origins.completed(job)

    def _node(self, schema: Schema, raw: Raw) -> Node | None:
        node = schema.node(raw)
        return node and self._on_switch(node)

    def _on_switch(self, node: Node) -> Node:
        switch = self._leaves.get(node.name, "")
        return node if node.switch == switch else replace(node, switch=switch)


def _viewed(job: Allocation, placing: Placing) -> Allocation:
    return replace(job, vcluster=placing.vcluster(job.partition, job.qos))


def _placed(job: Allocation, placing: Placing) -> Allocation:
    tenant = placing.tenant(job.account)
    return job if job.tenant == tenant else replace(job, tenant=tenant)
