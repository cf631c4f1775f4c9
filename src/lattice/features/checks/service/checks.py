"""Submits checks as their caller, and collects what the jobs measured.

A check is written down before its job is submitted, and the job's comment has its mark. So the job
is found if the server dies meanwhile.

A check has its nodes to itself, so it waits until nothing runs there. Its results are in its
output, which every server may collect: at a question for them, and now and then. They are written
before the check is forgotten, and the same result twice is one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.access.limits import CallerLimits, Questions
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable, UsageError
from lattice.base.text import cut, inert
from lattice.domain.allocation import Allocation, parse_reference
from lattice.domain.job_text import JobText, JobTexts
from lattice.domain.labels import Marks, write_comment
from lattice.domain.marked_job import marked_job
from lattice.domain.node_check import (
    MOST_NODES,
    CheckJob,
    CheckMeasure,
    NodeCheck,
    judged_check,
    read_output,
)
from lattice.domain.node_names import known_nodes
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope
from lattice.domain.submission import SubmitGate, SubmitQuestion, Submitted, Submitter, Unsure
from lattice.features.checks.model import (
    CheckedNode,
    CheckRequest,
    NodeChecks,
    OpenCheck,
    SubmittedCheck,
)
from lattice.features.checks.service.book import CheckBook
from lattice.features.checks.service.script import check_script

_log = logging.getLogger(__name__)
COLLECT_EVERY_S = 15.0
_OUTPUT_WITHIN = timedelta(minutes=5)
"""How long the output of an ended job may take to be stored."""
_FORGOTTEN_AFTER = timedelta(days=1)
"""A job that Slurm does not know is waited for as long."""
_LONGEST_NAME = 64
NO_RESULT = "the job ended without a result for this node ({})"
NO_OUTPUT = "the output of the job could not be read: {}"
LOST = "Slurm does not know the job any more"


class CheckService:
    """Checks nodes for operators. Missing parts are None."""

    def __init__(
        self,
        scheduler: Scheduler,
        gate: SubmitGate | None,
        book: CheckBook,
        texts: JobTexts | None,
        clock: Clock,
        journal: ActJournal,
        limits: CallerLimits,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._scheduler = scheduler
        self._gate = gate
        self._book = book
        self._texts = texts
        self._clock = clock
        self._journal = journal
        self._limits = limits
        self._sleep = sleep
        self._collecting = asyncio.Lock()

    async def check(self, actor: Actor, request: CheckRequest) -> SubmittedCheck:
        """Submit a check of these nodes as the caller."""
        gate, who = self._ready(actor)
        reading = self._scheduler.live()
        nodes = known_nodes(request.name, reading)
        # Without a request for them Slurm gives a job no GPUs, even if it has the node alone.
        gpus = min(each.gpus for each in reading.cluster.nodes if each.name in nodes)
        if len(nodes) > MOST_NODES:
            raise UsageError(
                f"A check has {MOST_NODES} nodes at most.", hint="Check them in parts."
            )
        await self._limits.ask(actor.sub, Questions.SUBMIT)
        secret, mark = secrets.token_hex(16), secrets.token_hex(16)
        script = check_script(secret)
        question = SubmitQuestion(
            options=_options(request, nodes, gpus, mark),
            script_sha256=hashlib.sha256(script).hexdigest(),
        )
        if fault := question.fault():
            raise UsageError(f"This can't be submitted: {fault}.")
        job = CheckJob(
            job_id=0,
            nodes=nodes.fold(),
            user=who.user,
            by=cut(inert(actor.user or actor.sub), _LONGEST_NAME),
            secret=secret,
            submitted=self._clock.now(),
        )
        submitted = await self._submit(mark, job, partial(gate.submit, who, question, script))
        self._journal.acted("check", str(nodes), actor.sub, f"job {submitted.job_id}")
        return SubmittedCheck(
            id=str(submitted.job_id),
            job_id=submitted.job_id,
            nodes=nodes.fold(),
            notes=submitted.notes,
        )

    async def _submit(
        self, mark: str, job: CheckJob, act: Callable[[], Awaitable[Submitted]]
    ) -> Submitted:
        await self._book.begin(mark, job)
        try:
            submitted = await act()
        except Unsure:
            raise
        except LatticeError:
            with suppress(Unavailable):
                await self._book.discard(mark)
            raise
        # If this write fails, the job is found by its mark.
        with suppress(Unavailable):
            await self._book.submitted(mark, submitted.job_id)
        return submitted

    async def checks(self, names: str) -> NodeChecks:
        """The results of nodes, with those that have just come."""
        nodes = known_nodes(names, self._scheduler.live())
        if len(nodes) > MOST_NODES:
            raise UsageError(f"At most {MOST_NODES} nodes at once.")
        waiting = await self.collect()
        open_ones = [
            each for each in waiting if not set(NodeSet.parse(each.nodes)).isdisjoint(nodes)
        ]
        found = await asyncio.gather(*(self._book.of_node(each) for each in nodes))
        return NodeChecks(
            nodes=tuple(
                CheckedNode(node=node, checks=checks)
                for node, checks in sorted(zip(nodes, found, strict=True))
            ),
            open=tuple(open_ones),
        )

    async def run(self) -> None:
        """Collect results now and then, until cancelled."""
        while True:
            # Jitter: servers that start together do not collect at the same time.
            await self._sleep(COLLECT_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.collect()
                await self._book.refresh()
            except LatticeError as error:
                _log.info("checks of nodes: %s", error.message)

    async def collect(self) -> tuple[OpenCheck, ...]:
        """Record the results of ended checks. Returns the checks that are not over."""
        async with self._collecting:
            await self._find()
            found = [await self._collect(job) for job in await self._book.jobs()]
            return tuple(each for each in found if each is not None)

    async def _find(self) -> None:
        """Find the jobs of checks whose server has not written them down."""
        for mark, job in (await self._book.begun()).items():
            with suppress(Unavailable):
                since = (
                    job.submitted - _FORGOTTEN_AFTER
                )  # the clocks of server and Slurm may differ
                job_id = await marked_job(self._scheduler, job.user, mark, since)
                if job_id:
                    await self._book.submitted(mark, job_id)
                elif self._clock.now() - job.submitted >= _FORGOTTEN_AFTER:
                    await self._book.discard(mark)

    async def _collect(self, job: CheckJob) -> OpenCheck | None:
        try:
            allocation = await self._allocation(job)
            if allocation is not None and not allocation.state.finished:
                reason = allocation.reason.words if allocation.reason is not None else ""
                return _open(job, allocation.state.value, reason)
            if allocation is None:
                if self._clock.now() - job.submitted < _FORGOTTEN_AFTER:
                    return _open(job, "")
                await self._close(job, {}, self._clock.now(), LOST)
                return None
            return await self._read(job, allocation)
        except Unavailable as error:
            return _open(job, "", error.message)

    async def _read(self, job: CheckJob, allocation: Allocation) -> OpenCheck | None:
        ended = allocation.ended or self._clock.now()
        reason = NO_RESULT.format(allocation.state.value)
        try:
            never = allocation.started is None
            text = JobText("", complete=True) if never else await self._text(job)
        except LatticeError as error:
            text, reason = JobText("", complete=False), NO_OUTPUT.format(error.message)
        found = read_output(text.text, job.secret)
        nodes = set(NodeSet.parse(job.nodes))
        lacks = not nodes <= found.keys() and not text.complete
        if lacks and self._clock.now() - ended < _OUTPUT_WITHIN:
            return _open(job, allocation.state.value, "its output is not stored yet")
        await self._close(job, found, ended, reason)
        return None

    async def _text(self, job: CheckJob) -> JobText:
        if self._texts is None:
            raise Unavailable("this server stores no output of jobs")
        return await self._texts.of(str(job.job_id), job.user)

    async def _close(
        self,
        job: CheckJob,
        found: Mapping[str, tuple[CheckMeasure, ...]],
        at: datetime,
        reason: str,
    ) -> None:
        results = {
            node: NodeCheck(
                job_id=job.job_id,
                at=at,
                by=job.by,
                nodes=job.nodes,
                measures=found.get(node, ()),
                reason="" if node in found else reason,
            )
            for node in NodeSet.parse(job.nodes)
        }
        for node, result in results.items():
            peers = [each for other, each in results.items() if other != node]
            await self._book.record(node, _judge(result, peers))
        await self._book.remove(job.job_id)
        await self._book.refresh()

    async def _allocation(self, job: CheckJob) -> Allocation | None:
        """The job as Slurm knows it; None if it does not. Raises `Unavailable`."""
        reading = self._scheduler.live()
        if reading.cluster.read_at <= job.submitted:
            reading = await self._scheduler.fresh(users={job.user})
        live = _of_user(reading.cluster.of_job(job.job_id), job)
        if live is not None:
            return live
        scope = Scope(users=frozenset({job.user}))
        question = PastQuestion(scope=scope, reference=parse_reference(str(job.job_id)))
        return _of_user(await self._scheduler.past(question), job)

    def _ready(self, actor: Actor) -> tuple[SubmitGate, Submitter]:
        if self._gate is None:
            raise Unavailable(
                "This server has no submit gate, and a check is a job.",
                hint="An administrator sets gate.socket and runs lattice-helper beside the server.",
            )
        if self._texts is None:
            raise Unavailable(
                "This server stores no output of jobs, so it can't read the result of a check.",
                hint="An administrator sets objects.* in the server's configuration.",
            )
        if not actor.user:
            raise PermissionRefused(
                "A check is a job of yours, and your token names no Unix user.",
                hint="See `lattice whoami`.",
            )
        return self._gate, Submitter(actor.user, actor.sub)


def _of_user(found: Sequence[Allocation], job: CheckJob) -> Allocation | None:
    # Job ids are used again after years; the newest of this user is the check.
    own = [each for each in found if each.user == job.user]
    return max(own, key=lambda each: each.submitted, default=None)


def _judge(
    result: NodeCheck, peers: Sequence[NodeCheck]
) -> Callable[[Sequence[NodeCheck]], NodeCheck]:
    def judge(before: Sequence[NodeCheck]) -> NodeCheck:
        earlier = [each for each in before if each.job_id != result.job_id]
        return judged_check(result, earlier, peers)

    return judge


def _open(job: CheckJob, state: str, reason: str = "") -> OpenCheck:
    return OpenCheck(
        job_id=job.job_id,
        nodes=job.nodes,
        by=job.by,
        submitted=job.submitted,
        state=state,
        reason=reason,
    )


def _options(request: CheckRequest, nodes: NodeSet, gpus: int, mark: str) -> tuple[str, ...]:
    """Whole nodes, and no others; the job is not run again by itself."""
    named = (("partition", request.partition), ("account", request.project))
    return (
        "--job-name=lattice-check",
        f"--comment={write_comment(Marks(key=mark))}",
        f"--nodes={len(nodes)}",
        f"--nodelist={nodes.fold()}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--no-requeue",
        f"--time={-(-request.walltime_s // 60)}",
        "--output=lattice-check-%j.out",
        *([f"--gres=gpu:{gpus}"] if gpus else ()),
        *(f"--{name}={value}" for name, value in named if value),
    )
