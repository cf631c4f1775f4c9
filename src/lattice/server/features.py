"""Every feature of a server, opened on its ground: each where what it needs is there.

The order is that of the agents' listener: what takes in their logs and samples stands before it,
what asks them stands behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from lattice.adapters.signedstate import SignedStateStore
from lattice.adapters.slurm.accounted import SlurmAccounting
from lattice.adapters.slurm.jobfiles import SlurmJobFiles
from lattice.adapters.slurm.operator import SlurmNodeOperator
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.objects import ObjectStore
from lattice.domain.operation import NodeOperator
from lattice.features.compare.service.comparing import CompareService
from lattice.features.diag.service.asking import NodeAsking
from lattice.features.diag.service.diagnosing import DiagService
from lattice.features.identity.model import AuthDiscovery
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.service.lastoutput import NodeLastOutputs
from lattice.features.logs.service.metadata import Summaries
from lattice.features.logs.service.reading import LogReading
from lattice.features.logs.service.seal import Seals
from lattice.features.nodes.service.draining import FailedNodeDrain, in_service
from lattice.features.report.service.reporting import ReportService
from lattice.features.telemetry.convert.looks import sight_of
from lattice.features.watch.service.watching import Watching
from lattice.server.attach import AttachNeeds, AttachParts, open_attach
from lattice.server.compare import CompareNeeds, compare_service
from lattice.server.compose import Parts
from lattice.server.diag import DiagNeeds, diag_service
from lattice.server.draining import show_drains, terms_of
from lattice.server.ground import Ground
from lattice.server.links import Intakes, Links, open_links
from lattice.server.logs import log_intake, log_seals, open_log_keeping, open_log_reading
from lattice.server.report import ReportNeeds, open_report
from lattice.server.sections import ApiSection
from lattice.server.slurm import slurm_commands, submit_gate
from lattice.server.telemetry import (
    TelemetryIntake,
    TelemetryNeeds,
    TelemetryParts,
    open_telemetry,
    open_telemetry_parts,
)
from lattice.server.top import TopParts, top_parts
from lattice.server.watch import watching_of


@asynccontextmanager
async def open_features(ground: Ground) -> AsyncIterator[tuple[Parts, Links | None]]:
    """Until the context ends; the links are for whoever has to send agents elsewhere first."""
    config, clock, agents = ground.config, ground.clock, ground.agents
    async with AsyncExitStack() as stack:
        needs = _telemetry_needs(ground)
        samples = await _samples(ground, needs, stack)
        keeping = await _log_keeping(ground, stack)
        links = await _links(ground, samples, keeping, stack)
        telemetry = await _telemetry(ground, needs, samples, links, stack)
        logs = await _logs(ground, links, stack)
        attach = await _attach(ground, links, stack)
        report = await _report(ground, stack)
        operator = SlurmNodeOperator(slurm_commands(config.slurm))
        await _draining(ground, operator, stack)
        parts = Parts(
            public_per_minute=ground.config.rate_limits.public_per_minute,
            scheduler=ground.scheduler,
            operator=operator,
            verifier=ground.verifier,
            claim_names=config.api.claim_names,
            discovery=_discovery(config.api),
            clock=clock,
            figures=ground.figures,
            log=ground.log,
            gate=submit_gate(config, clock),
            state=ground.store,
            cluster_record=ground.state.cluster if ground.state else None,
            note=ground.state.note if ground.state else "",
            views=config.views,
            agents=agents,
            presences=ground.reach.presences if ground.reach else None,
            limits=ground.limits,
            probe=links.probe if links else None,
            logs=logs,
            last_outputs=NodeLastOutputs(links.desk, agents.signer, clock)
            if links and agents
            else None,
            sharing=ground.sharing,
            locks=ground.lock_book,
            attach=attach,
            telemetry=telemetry,
            watch=_watch(ground, telemetry),
            top=_top(ground, telemetry),
            report=report,
            diag=_diag(ground, telemetry, samples, links),
            compare=_compare(ground),
        )
        yield parts, links


def _telemetry_needs(ground: Ground) -> TelemetryNeeds | None:
    if not (ground.state and ground.sharing):
        return None
    return TelemetryNeeds(
        scheduler=ground.scheduler,
        state=ground.state.store,
        sharing=ground.sharing,
        clock=ground.clock,
        views=ground.config.views,
        figures=ground.figures,
        journal=ground.journal,
    )


async def _samples(
    ground: Ground, needs: TelemetryNeeds | None, stack: AsyncExitStack
) -> TelemetryIntake | None:
    if not (needs and ground.agents):
        return None
    return await stack.enter_async_context(
        open_telemetry(needs, ground.config.telemetry, ground.metrics, ground.supervisor)
    )


async def _log_keeping(ground: Ground, stack: AsyncExitStack) -> Summaries | None:
    if not (ground.objects and ground.state):
        return None
    return await stack.enter_async_context(
        open_log_keeping(
            ground.scheduler,
            ground.objects,
            ground.state.store,
            ground.clock,
            ground.config.logs.rules,
            ground.figures,
            _seals(ground, ground.objects),
            ground.supervisor,
        )
    )


async def _links(
    ground: Ground,
    samples: TelemetryIntake | None,
    keeping: Summaries | None,
    stack: AsyncExitStack,
) -> Links | None:
    if not (ground.reach and ground.agents and ground.peers):
        return None
    intakes = Intakes(logs=_log_intake(ground, keeping), metrics=samples.rpc if samples else None)
    links = await stack.enter_async_context(
        open_links(
            ground.config,
            ground.reach,
            ground.agents,
            ground.peers,
            ground.limits.rates,
            ground.figures,
            ground.log,
            intakes,
            ground.supervisor,
            ground.locks,
        )
    )
    if ground.lock_book:
        expelling = partial(links.desk.expel_locked, ground.lock_book.next_change)
        await stack.enter_async_context(
            ground.supervisor.running(Loop("locked nodes", expelling, OnFailure.RESTART))
        )
    return links


def _log_intake(ground: Ground, keeping: Summaries | None) -> LogIntakeRpc | None:
    if not (ground.objects and ground.agents):
        return None
    return log_intake(
        ground.scheduler,
        SlurmJobFiles(slurm_commands(ground.config.slurm)),
        ground.objects,
        ground.agents.signer,
        ground.clock,
        ground.journal,
        _seals(ground, ground.objects),
        *([keeping.note] if keeping else []),
        quota_bytes=ground.config.logs.job_quota_mb * 1024 * 1024,
    )


async def _telemetry(
    ground: Ground,
    needs: TelemetryNeeds | None,
    samples: TelemetryIntake | None,
    links: Links | None,
    stack: AsyncExitStack,
) -> TelemetryParts | None:
    if not (links and ground.agents and needs and samples):
        return None
    return await stack.enter_async_context(
        open_telemetry_parts(needs, samples, links.desk, ground.agents.signer)
    )


async def _logs(ground: Ground, links: Links | None, stack: AsyncExitStack) -> LogReading | None:
    if not (links and ground.objects and ground.agents and ground.sharing):
        return None
    return await stack.enter_async_context(
        open_log_reading(
            ground.scheduler,
            ground.objects,
            links.desk,
            ground.agents.signer,
            ground.clock,
            ground.limits,
            ground.sharing,
            _seals(ground, ground.objects),
        )
    )


def _seals(ground: Ground, objects: ObjectStore) -> Seals:
    signer = ground.agents.signer if ground.agents else None
    return log_seals(objects, signer, ground.config.logs.seal_keys)


async def _attach(ground: Ground, links: Links | None, stack: AsyncExitStack) -> AttachParts | None:
    if not (links and ground.agents and ground.state):
        return None
    needs = AttachNeeds(
        scheduler=ground.scheduler,
        nodes=links.desk,
        signer=ground.agents.signer,
        limits=ground.limits,
        state=ground.state.store,
        signed_state=SignedStateStore(ground.state.store, ground.agents.record_signer),
        clock=ground.clock,
        replica=ground.replica,
        replicas=ground.replicas,
        locks=ground.locks,
    )
    return await stack.enter_async_context(
        open_attach(needs, ground.config.attach, ground.figures, ground.journal, ground.supervisor)
    )


async def _report(ground: Ground, stack: AsyncExitStack) -> ReportService | None:
    if not ground.sharing:
        return None
    needs = ReportNeeds(
        scheduler=ground.scheduler,
        store=ground.metrics,
        accounting=SlurmAccounting(slurm_commands(ground.config.slurm)),
        objects=ground.objects,
        sharing=ground.sharing,
        clock=ground.clock,
        limits=ground.limits,
        replica=ground.replica,
        replicas=ground.replicas,
    )
    return await stack.enter_async_context(open_report(needs, ground.figures, ground.supervisor))


async def _draining(ground: Ground, operator: NodeOperator, stack: AsyncExitStack) -> None:
    terms = terms_of(ground.config.node_agent)
    if not (terms and ground.reach and ground.agents and ground.store):
        return
    drain = FailedNodeDrain(
        ground.reach.presences,
        lambda: in_service(ground.scheduler),
        operator,
        ground.store,
        ground.journal,
        ground.clock,
        terms,
    )
    show_drains(ground.figures, drain)
    ground.log.info(
        "failed nodes are drained", after_s=terms.after_s, most_per_hour=terms.most_per_hour
    )
    await stack.enter_async_context(
        ground.supervisor.running(Loop("drain failed nodes", drain.run, OnFailure.RESTART))
    )


def _watch(ground: Ground, telemetry: TelemetryParts | None) -> Watching | None:
    if not (telemetry and ground.sharing):
        return None
    return watching_of(telemetry, ground.scheduler, ground.sharing, ground.clock, ground.limits)


def _top(ground: Ground, telemetry: TelemetryParts | None) -> TopParts | None:
    if not (telemetry and ground.sharing):
        return None
    return top_parts(
        ground.scheduler,
        telemetry,
        ground.sharing,
        ground.clock,
        ground.config.views,
        ground.limits,
    )


def _diag(
    ground: Ground,
    telemetry: TelemetryParts | None,
    samples: TelemetryIntake | None,
    links: Links | None,
) -> DiagService | None:
    if not (telemetry and ground.sharing):
        return None
    asking = (
        NodeAsking(links.desk, ground.agents.signer, samples.attempts.of, sight_of)
        if links and ground.agents and samples
        else None
    )
    needs = DiagNeeds(
        scheduler=ground.scheduler,
        telemetry=telemetry,
        facts=asking,
        stacks=asking,
        sharing=ground.sharing,
        clock=ground.clock,
        limits=ground.limits,
    )
    return diag_service(needs, ground.config.diag, ground.log)


def _compare(ground: Ground) -> CompareService | None:
    if not ground.sharing:
        return None
    return compare_service(
        CompareNeeds(
            scheduler=ground.scheduler,
            store=ground.metrics,
            objects=ground.objects,
            sharing=ground.sharing,
            clock=ground.clock,
            views=ground.config.views,
            limits=ground.limits,
        )
    )


def _discovery(api: ApiSection) -> AuthDiscovery:
    issuer = api.oidc_issuer or ""
    return AuthDiscovery(idp_url=issuer, client_id=api.oidc_client_id or "", issuer=issuer)
