"""Where the port `Scheduler` is tried: a place with work in it, in memory or a real Slurm.

A site can be told what a person or an accident would do; the suite only looks at the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from lab.laboratory import Lab
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.reasons import reason_of
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.scheduler import SlurmReader, SlurmScheduler
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation, Array, Attempt, ExitCode, State
from lattice.domain.node import Node, NodeState, Switch, Topology
from lattice.domain.scheduler import JobListSource, Scheduler
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from tests.eventually import eventually_async
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

ACCOUNT = {"alice": "research", "bob": "genomics"}
VIEWS = Vclusters((Vcluster("hpc", VclusterKind.HPC, "batch"),))


class Site(Protocol):
    """A cluster with the people alice (research, of physics) and bob (genomics, of biology)."""

    @property
    def scheduler(self) -> Scheduler: ...

    def submit(
        self, user: str, name: str, *, ends: int | None = None, held: bool = False, array: str = ""
    ) -> int:
        """A job that runs on, or one that ends at once with an exit code."""

    def requeue(self, job: int) -> None: ...
    def cancel(self, job: int) -> None: ...
    def use_ids_again_from(self, job: int) -> None: ...
    def silence(self, part: str) -> None: ...
    def wake(self, part: str) -> None: ...
    async def pass_time(self, seconds: float) -> None: ...

    async def until(self, seen: Callable[[], bool]) -> None:
        """Let the site go on until the reading shows it."""


class InMemorySite:
    """The fake, with just enough of a scheduler around it."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.scheduler = InMemoryScheduler(self._clock)
        self.scheduler.accounts = AccountTree.of(
            [
                Account("physics"),
                Account("research", "physics"),
                Account("theory", "physics", frozenset({"carol"})),
                Account("biology"),
                Account("genomics", "biology"),
            ],
            {"alice": ["research"], "bob": ["genomics"]},
        )
        self.scheduler.nodes = [
            Node(
                name=name, state=NodeState.READY, slurm_state="idle", cpus=8, gpus=4, switch=switch
            )
            for name, switch in (("n1", "s1"), ("n2", "s1"), ("n3", "s2"))
        ]
        self.scheduler.topology = Topology(
            (Switch("s1", 0, ("n1", "n2")), Switch("s2", 0, ("n3",)))
        )
        self._next = 1
        self._ends: dict[int, int] = {}

    def submit(
        self, user: str, name: str, *, ends: int | None = None, held: bool = False, array: str = ""
    ) -> int:
        job = self._next
        tasks: list[int | None] = [1, 2] if array else [None]
        for task in tasks:
            self._add(user, name, job, task, held)
            if ends is not None:
                self._ends[self._next] = ends
            self._next += 1
        return job

    def _add(self, user: str, name: str, job: int, task: int | None, held: bool) -> None:
        now = self._clock.now()
        account = ACCOUNT[user]
        allocation = Allocation(
            cluster="lab",
            id=str(job) if task is None else f"{job}_{task}",
            job_id=self._next,
            name=name,
            user=user,
            account=account,
            tenant=self.scheduler.accounts.tenant_of(account),
            partition="batch",
            qos="normal",
            vcluster="hpc",
            state=State.PENDING,
            submitted=now,
            first_submitted=now,
            reason=reason_of("JobHeldUser" if held else "None"),
            array=None if task is None else Array(job, task),
        )
        self.scheduler.allocations.append(allocation)
        self.scheduler.remembered.append(allocation)

    def requeue(self, job: int) -> None:
        self._clock.advance(5)
        old = self._live(job)
        now = self._clock.now()
        ended = _attempt(replace(old, state=State.REQUEUED, ended=now), old.attempt)
        again = replace(old, state=State.PENDING, submitted=now, started=None, nodes="", attempt=2)
        self._change(old, replace(again, attempts=(ended, _attempt(again, 2))))

    def cancel(self, job: int) -> None:
        old = self._live(job)
        self._change(old, replace(old, state=State.CANCELLED, ended=self._clock.now(), reason=None))

    def use_ids_again_from(self, job: int) -> None:
        self._clock.advance(60)
        self.scheduler.allocations.clear()
        self._next = job

    def silence(self, part: str) -> None:
        self._set(part, True)

    def wake(self, part: str) -> None:
        self._set(part, False)

    def _set(self, part: str, down: bool) -> None:
        if part == "slurmctld":
            self.scheduler.down = down
        else:
            self.scheduler.past_down = down

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def until(self, seen: Callable[[], bool]) -> None:
        for _ in range(10):
            if seen():
                return
            self._clock.advance(1)
            for each in list(self.scheduler.allocations):
                self._go_on(each)
        raise AssertionError("it never came to that")

    def _go_on(self, job: Allocation) -> None:
        now = self._clock.now()
        if job.state is State.PENDING and (not job.reason or job.reason.code != "JobHeldUser"):
            running = replace(job, state=State.RUNNING, started=now, nodes="n1", reason=None)
            if job.attempts:
                attempts = (*job.attempts[:-1], _attempt(running, job.attempt))
                running = replace(running, attempts=attempts)
            self._change(job, running)
        elif job.state is State.RUNNING and job.job_id in self._ends:
            code = self._ends[job.job_id]
            state = State.FAILED if code else State.COMPLETED
            self._change(job, replace(job, state=state, ended=now, exit_code=ExitCode(code)))

    def _live(self, job: int) -> Allocation:
        return next(each for each in self.scheduler.allocations if each.job_id == job)

    def _change(self, old: Allocation, new: Allocation) -> None:
        for known in (self.scheduler.allocations, self.scheduler.remembered):
            known[known.index(old)] = new


def _attempt(run: Allocation, number: int) -> Attempt:
    return Attempt(
        number=number,
        state=run.state,
        submitted=run.submitted,
        started=run.started,
        ended=run.ended,
        nodes=run.nodes,
    )


class SlurmSite:
    """A real Slurm: the lab's, read through its slurmrestd."""

    def __init__(self, lab: Lab, source: JobListSource = JobListSource.REST) -> None:
        self._lab = lab
        self._rest = SlurmRest(f"unix:{lab.slurm.files.rest_socket}")
        commands = SlurmCommands(lab.layout.slurm_conf, prefix=lab.control.room.argv([]))
        reader = SlurmReader(account="root", job_list=source)
        self._slurm = SlurmScheduler(self._rest, commands, VIEWS, SystemClock(), 0.5, reader=reader)
        self._daemons = {"slurmctld": lab.slurm.ctld, "slurmdbd": lab.slurm.dbd}

    @property
    def scheduler(self) -> Scheduler:
        return self._slurm

    def submit(
        self, user: str, name: str, *, ends: int | None = None, held: bool = False, array: str = ""
    ) -> int:
        options = ["-J", name, "-p", "batch", "--mem=10M"]
        options += ["-H"] if held else []
        options += [f"--array={array}"] if array else []
        script = "sleep 600" if ends is None else f"exit {ends}"
        return self._lab.jobs.submit(user, *options, wrap=script)

    def requeue(self, job: int) -> None:
        self._lab.jobs.wait_state(job, "RUNNING")
        self._lab.ctl(["scontrol", "requeue", str(job)])
        self._lab.jobs.wait_state(job, "PENDING")
        self._lab.start_requeued(job)

    def cancel(self, job: int) -> None:
        self._lab.jobs.cancel(job)

    def use_ids_again_from(self, job: int) -> None:
        self._lab.jobs.cancel_all()
        self._lab.slurm.reset_controller(first_job_id=job)

    def silence(self, part: str) -> None:
        self._daemons[part].stop()

    def wake(self, part: str) -> None:
        self._daemons[part].up()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, seen: Callable[[], bool]) -> None:
        async def refreshed() -> bool:
            await self._slurm.refresh()
            try:
                return seen()
            except Unavailable:
                return False

        await eventually_async(refreshed, pause_s=0.25)

    async def aclose(self) -> None:
        await self._slurm.past_reader.aclose()
        await self._rest.aclose()


LONG_AGO = timedelta(days=1)


def a_day_before(moment: datetime) -> datetime:
    return moment - LONG_AGO
