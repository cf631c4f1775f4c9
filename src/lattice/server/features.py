"""The features of a server. A new one is an import and a line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from lattice.adapters.munge import MungeReader
from lattice.adapters.pki.files import believed_keys
from lattice.adapters.stateview import WatchedStateView
from lattice.base.reload import Reload
from lattice.base.supervisor import Loop, OnFailure
from lattice.features.agents import wiring as agents
from lattice.features.allocations import wiring as allocations
from lattice.features.attach import wiring as attach
from lattice.features.audit import wiring as audit
from lattice.features.checks import wiring as checks
from lattice.features.claims import wiring as claims
from lattice.features.compare import wiring as compare
from lattice.features.diag import wiring as diag
from lattice.features.diag.service.node_queries import NodeQueries
from lattice.features.doctor import wiring as doctor
from lattice.features.health import wiring as health
from lattice.features.identity import wiring as identity
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.service.munge import MungeSignIn
from lattice.features.identity.service.slurm_token import SlurmSignIn
from lattice.features.link import wiring as link
from lattice.features.locks import wiring as locks
from lattice.features.logs import wiring as logs
from lattice.features.logs.service.job_text import JobTextReader
from lattice.features.monitoring import wiring as monitoring
from lattice.features.monitoring.service.ended import ENDED
from lattice.features.nodes import wiring as nodes
from lattice.features.prometheus import wiring as prometheus
from lattice.features.report import wiring as report
from lattice.features.runs import wiring as runs
from lattice.features.sharing import wiring as sharing
from lattice.features.state import wiring as state
from lattice.features.submit import wiring as submit
from lattice.features.telemetry import wiring as telemetry
from lattice.features.telemetry.convert.snapshots import node_snapshot_of
from lattice.features.tenants import wiring as tenants
from lattice.features.timeline import wiring as timeline
from lattice.features.top import wiring as top
from lattice.features.watch import wiring as watch
from lattice.foundation.wiring import Wiring
from lattice.server.cluster.backups import (
    backup_terms,
    open_backup_store,
    restore_means,
    state_kind,
)
from lattice.server.config.api_section import ApiSection
from lattice.server.engines import open_archive_lock, open_objects
from lattice.server.foundation import Ground, ServedAgents
from lattice.server.inspection.expiry import ServerExpiries
from lattice.server.inspection.inspection import ServerInspection
from lattice.server.public_names import PublicNames


def features(ground: Ground, description: Callable[[], Awaitable[str]]) -> Iterator[Wiring]:
    """The wiring of every feature that this server can offer.

    `description` returns the description of the REST interface after all are composed.
    """
    base, config, agreed = ground.foundation, ground.config, ground.cluster.agreed
    lasting = agreed.cluster if agreed.lasts else None
    backups = open_backup_store(config, base.objects, base.clock)
    inspection = ServerInspection(ground, backups)
    yield health.wire(
        base,
        lasting,
        agreed.note,
        description=description,
        accounting=lambda: ground.scheduler.accounting_error,
        accounting_age_s=lambda: ground.scheduler.accounting_age_s,
        members=inspection.member_counts,
    )
    yield state.wire(
        base, state_kind(config, agreed), backups, backup_terms(config), restore_means(config)
    )
    yield doctor.wire(base, inspection)
    yield _monitoring(ground, inspection)
    names = PublicNames(config.api, ground.cluster.view.addresses)
    yield Wiring(reloads=(Reload("api", names.reload),))
    yield identity.wire(base, _discovery(config.api), _munge(ground, names), _slurm(ground))
    yield allocations.wire(base)
    yield submit.wire(base, config.uenv, keys=agreed.lasts)
    book = checks.open_book(base)
    drains = config.node_agent.drain_terms if ground.agents else None
    yield nodes.wire(base, drains, book.warnings)
    yield tenants.wire(base)
    yield report.wire(base)
    yield compare.wire(base)
    yield runs.wire(base)
    yield timeline.wire(base, attach.session_spans(base), logs.log_volumes(base))
    yield prometheus.wire(base)
    recordings = attach.recording_retention(base)
    texts = JobTextReader()
    seal_keys = believed_keys(config.logs.seal_keys)
    yield logs.wire(base, config.logs, seal_keys, recordings, texts)
    yield checks.wire(base, book, texts if base.objects is not None else None)
    if agreed.lasts:
        yield sharing.wire(base, ground.cluster.shares, config.sharing.terms)
        yield locks.wire(base, ground.cluster.locks)
    if ground.agents is not None:
        yield from _with_agents(ground, ground.agents)


def _with_agents(ground: Ground, served: ServedAgents) -> Iterator[Wiring]:
    base, config, access = ground.foundation, ground.config, ground.foundation.nodes
    assert access is not None
    asking = NodeQueries(access.streams, access.signer, access.attempts.of, node_snapshot_of)
    yield agents.wire(served.parts.enrolment, served.parts.trust, base.journal)
    objects = open_objects(config.objects, config.single, bucket=config.audit.bucket)
    lock = open_archive_lock(config, base.clock)
    yield audit.wire(base, served.parts.signer, served.audit, config.audit, objects, lock)
    if base.reservations is not None:
        yield claims.wire(base, base.reservations)
    yield link.wire(base, access)
    yield telemetry.wire(base, served.measurement.modes)
    entries = audit.entries(base, served.parts.signer, objects)
    yield attach.wire(base, access, config.attach, entries)
    yield top.wire(base, access)
    yield watch.wire(base, access)
    yield diag.wire(base, access, config.diag, asking, asking)


def _monitoring(ground: Ground, inspection: ServerInspection) -> Wiring:
    base = ground.foundation
    ended = WatchedStateView(base.state, ENDED, base.clock)
    return monitoring.wire(
        base,
        ended,
        ServerExpiries(ground, inspection),
        names=ground.config.api.metrics_names,
        loops=(Loop("state ended", ended.run, OnFailure.RESTART),),
    )


def _munge(ground: Ground, names: PublicNames) -> MungeSignIn | None:
    tokens = ground.own_tokens
    if tokens is None or not ground.config.api.munge:
        return None
    reader = MungeReader(ground.config.api.munge_socket)
    return MungeSignIn(reader, tokens, names.has, ground.foundation.clock)


def _slurm(ground: Ground) -> SlurmSignIn | None:
    tokens, judge = ground.own_tokens, ground.token_judge
    if tokens is None or judge is None:
        return None
    return SlurmSignIn(judge, tokens, ground.foundation.clock)


def _discovery(api: ApiSection) -> AuthDiscovery:
    issuer = api.oidc_issuer or ""
    return AuthDiscovery(idp_url=issuer, client_id=api.oidc_client_id or "", issuer=issuer)
