"""Measures everything at the same time, and makes the checks of what was measured.

Every measurement has its own deadline, so an engine that hangs costs three seconds. Callers at the
same time share one examination: hanging engines must not be asked once for each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TypeVar

from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import SchedulerReading
from lattice.features.doctor.model import Check, CheckState, Examination, counts_of
from lattice.features.doctor.service.agents import agent_checks
from lattice.features.doctor.service.certificates import CertificatesFacts, certificate_checks
from lattice.features.doctor.service.facts import AgentsFacts, Inspection
from lattice.features.doctor.service.identity import IdentityFacts, identity_checks
from lattice.features.doctor.service.measured import (
    WITHIN_S,
    Inspected,
    inspected,
)
from lattice.features.doctor.service.metrics import MetricFacts, metric_checks
from lattice.features.doctor.service.objects import ObjectFacts, object_checks
from lattice.features.doctor.service.probes import (
    MetricProbe,
    ObjectProbe,
    SealingProbe,
    StateProbe,
    gate_rights,
    is_gate_well,
)
from lattice.features.doctor.service.sensitive import SealingFacts, sealing_checks
from lattice.features.doctor.service.server import ServerFacts, server_checks
from lattice.features.doctor.service.slurm import SLURM_SLOW_S, SlurmFacts, slurm_checks
from lattice.features.doctor.service.state import STATE_SLOW_S, AgreedFacts, state_checks
from lattice.foundation.foundation import Foundation

T = TypeVar("T")

_DUE_S = 120.0
"""How long a job runs before samples of it are due."""
_MOST_ECHOES = 8
_MOST_JOBS = 100
"""Enough to know whether samples are due."""
_LONG_REASON = 40
"""Characters."""


class Examiner:
    """Examines one server and what it stands on."""

    def __init__(
        self,
        foundation: Foundation,
        inspection: Inspection,
        version: str,
        *,
        within_s: float = WITHIN_S,
    ) -> None:
        """`within_s` is the deadline of each measurement."""
        self._within_s = within_s
        self._base = foundation
        self._inspection = inspection
        self._version = version
        self._running: asyncio.Task[Examination] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def examine(self) -> Examination:
        """All checks, measured now or in an examination that is already under way."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._examine(), name="doctor")
        return await asyncio.shield(self._running)

    async def aclose(self) -> None:
        """End a running examination."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _examine(self) -> Examination:
        clock = self._base.clock
        begun_s = clock.monotonic()
        groups = await asyncio.gather(
            self._slurm(),
            self._state(),
            self._metrics(),
            self._objects(),
            self._sealing(),
            self._certificates(),
            self._sign_in(),
            self._server(),
            self._agents(),
        )
        checks = without_repeats(check for group in groups for check in group)
        return Examination(
            version=self._version,
            replica=self._base.replica,
            taken=clock.now(),
            took_s=clock.monotonic() - begun_s,
            counts=counts_of(checks),
            checks=checks,
        )

    async def _measure(self, asked: Awaitable[T], times: int = 1) -> Inspected[T]:
        return await inspected(asked, self._base.clock, times * self._within_s)

    async def _alone(
        self, first: Inspected[T], ask: Callable[[], Awaitable[T]], slow_s: float
    ) -> Inspected[T]:
        """The quicker of a slow answer and a second one, for which nothing else is asked.

        The examination itself keeps a small machine busy, and must not blame the engine for it.
        """
        if first.value is None or first.took_s <= slow_s:
            return first
        async with self._one_at_a_time:
            second = await self._measure(ask())
        return second if second.value is not None and second.took_s < first.took_s else first

    async def _reading(self) -> SchedulerReading:
        return self._base.scheduler.live()

    async def _slurm(self) -> tuple[Check, ...]:
        ask, there = self._measure, self._inspection
        controller, ahead, accounting, schemas, (rights, gate), partitions = await asyncio.gather(
            ask(there.controller()),
            ask(there.controller_ahead_s()),
            ask(there.accounting()),
            ask(there.schemas()),
            asyncio.gather(ask(there.rights()), ask(gate_rights(self._base))),
            ask(self._partitions()),
        )
        facts = SlurmFacts(
            controller=await self._alone(controller, there.controller, SLURM_SLOW_S),
            ahead=ahead,
            accounting=await self._alone(accounting, there.accounting, SLURM_SLOW_S),
            schemas=schemas,
            rights=rights,
            gate=gate,
            partitions=partitions,
            reading=await ask(self._reading()),
            views=self._base.views,
        )
        return tuple(slurm_checks(facts))

    async def _partitions(self) -> frozenset[str]:
        return frozenset(await self._base.operator.admitted())

    async def _state(self) -> tuple[Check, ...]:
        probe = StateProbe(self._base)
        read, write, members, backups = await asyncio.gather(
            self._measure(probe.read()),
            self._measure(probe.write()),
            self._measure(self._inspection.members()),
            self._measure(self._inspection.backups()),
        )
        facts = AgreedFacts(
            store=self._inspection.state,
            read=await self._alone(read, probe.read, STATE_SLOW_S),
            write=await self._alone(write, probe.write, STATE_SLOW_S),
            members=members,
            backups=backups,
            now=self._base.clock.now(),
        )
        return tuple(state_checks(facts))

    async def _metrics(self) -> tuple[Check, ...]:
        probe = MetricProbe(self._base.metrics, self._base.replica, self._now_s)
        query, write, newest = await asyncio.gather(
            self._measure(probe.query()),
            self._measure(probe.write()),
            self._measure(probe.newest()),
        )
        facts = MetricFacts(
            query=query, write=write, newest=newest, now=self._now_s(), jobs=self._due_jobs()
        )
        return tuple(metric_checks(facts))

    def _now_s(self) -> float:
        return self._base.clock.now().timestamp()

    def _due_jobs(self) -> int | None:
        """How many jobs run on a node with a linked agent for so long that samples are due."""
        try:
            reading = self._base.scheduler.live()
        except Unavailable:
            return None
        records = self._base.presences.presences().records
        latest = datetime.fromtimestamp(self._now_s() - _DUE_S, UTC)
        due = (
            each.nodes
            for each in reading.cluster.allocations
            if each.state is State.RUNNING and each.started is not None and each.started < latest
        )
        linked = {name for name, each in records.items() if each.linked}
        return sum(not linked.isdisjoint(_nodes_of(nodes)) for nodes in islice(due, _MOST_JOBS))

    async def _objects(self) -> tuple[Check, ...]:
        probe = ObjectProbe(self._base.objects, self._base.replica)
        write, folder, lock = await asyncio.gather(
            self._measure(probe.write()),
            self._measure(self._inspection.object_folder()),
            self._measure(self._inspection.archive_lock()),
        )
        read: Inspected[bool] = Inspected(off=write.off, reason=write.reason)
        listing = read
        if write.value is not None:
            read, listing = await asyncio.gather(
                self._measure(probe.read()), self._measure(probe.listed())
            )
            await self._measure(probe.remove())
        facts = ObjectFacts(write=write, read=read, listing=listing, folder=folder, lock=lock)
        return tuple(object_checks(facts))

    async def _sealing(self) -> tuple[Check, ...]:
        probe, keys = SealingProbe(self._base), self._base.data_keys
        site_keys, older, bucket, lock = await asyncio.gather(
            self._measure(probe.wraps(), 2),
            self._measure(probe.older(), 2),
            self._measure(probe.stores()),
            self._measure(self._inspection.sensitive_lock()),
        )
        trouble = keys.trouble if keys is not None else ""
        facts = SealingFacts(keys=site_keys, older=older, bucket=bucket, lock=lock, trouble=trouble)
        return tuple(sealing_checks(facts))

    async def _certificates(self) -> tuple[Check, ...]:
        people, authority = await asyncio.gather(
            self._measure(self._inspection.people_certificate()),
            self._measure(self._inspection.authority()),
        )
        facts = CertificatesFacts(
            people=people,
            people_names=self._inspection.people_names(),
            authority=authority,
            now=self._base.clock.now(),
        )
        return tuple(certificate_checks(facts))

    async def _sign_in(self) -> tuple[Check, ...]:
        keys, munge, token_judge = await asyncio.gather(
            self._measure(self._inspection.provider_keys()),
            self._measure(self._inspection.munge()),
            self._measure(self._inspection.token_judge()),
        )
        facts = IdentityFacts(
            settings=self._inspection.sign_in, keys=keys, munge=munge, token_judge=token_judge
        )
        return tuple(identity_checks(facts))

    async def _server(self) -> tuple[Check, ...]:
        state_disk, log_disk, replicas, gate = await asyncio.gather(
            self._measure(self._inspection.state_folder()),
            self._measure(self._inspection.log_folder()),
            self._measure(self._inspection.replicas()),
            self._measure(is_gate_well(self._base.gate)),
        )
        facts = ServerFacts(
            process=self._inspection.process(),
            state_disk=state_disk,
            log_disk=log_disk,
            replicas=replicas,
            gate=gate,
            single=self._inspection.state.single,
            version=self._version,
        )
        return tuple(server_checks(facts))

    async def _agents(self) -> tuple[Check, ...]:
        found = await self._measure(self._agent_facts())
        echo = await self._measure(self._echoes(found), 2)
        return tuple(agent_checks(found, echo, self._base.clock.now()))

    async def _agent_facts(self) -> AgentsFacts:
        trust = await self._inspection.trust()
        try:
            nodes = self._base.scheduler.live().cluster.nodes
        except Unavailable:
            nodes = None
        return AgentsFacts(
            version=self._version,
            nodes=nodes,
            presences=self._base.presences.presences(),
            trust=trust,
        )

    async def _echoes(self, found: Inspected[AgentsFacts]) -> tuple[int, float, str]:
        """How many answered, the slowest time, and why others did not."""
        records = found.value.presences.records if found.value is not None else {}
        nodes = [each.node for each in records.values() if each.linked]
        chosen = random.sample(nodes, min(len(nodes), _MOST_ECHOES))
        answers = await asyncio.gather(
            *(self._measure(self._inspection.echo(node)) for node in chosen)
        )
        asked = dict(zip(chosen, answers, strict=True))
        slowest_s = max((each.value for each in answers if each.value is not None), default=0.0)
        troubles = [f"{node}: {each.reason}" for node, each in asked.items() if each.value is None]
        return len(chosen) - len(troubles), slowest_s, "; ".join(sorted(troubles))


def without_repeats(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks; one that is unknown for the long reason of a failed one names that one instead.

    A short reason, such as that nothing answered in time, may have another cause.
    """
    listed = tuple(checks)
    causes = {
        each.evidence: each.id
        for each in reversed(listed)
        if each.state is CheckState.FAILED and len(each.evidence) >= _LONG_REASON
    }

    def shorter(check: Check) -> Check:
        if check.state is not CheckState.UNKNOWN:
            return check
        cause = next((name for text, name in causes.items() if text in check.evidence), None)
        if cause is None:
            return check
        return replace(check, evidence=f"not known while {cause} fails", remedy="")

    return tuple(map(shorter, listed))


def _nodes_of(text: str) -> tuple[str, ...]:
    try:
        return tuple(NodeSet.parse(text))
    except ValueError:
        return ()
