"""`ServerInspection`: the port of doctor for what the shell of the server has."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from lattice.access.actor import Actor, Role
from lattice.access.limits import Questions
from lattice.adapters.munge import BadCredential, MungeReader, encoded
from lattice.adapters.oidc.discovery import DiscoveredProvider, ProviderFault, provider_client
from lattice.adapters.oidc.keys import read_key_set
from lattice.base.driver_reads import DriverReads
from lattice.base.errors import Unavailable
from lattice.domain.quorum import QuorumMember
from lattice.features.doctor.service.facts import (
    AgentTrust,
    BackupFacts,
    CertificateFacts,
    ControllerFacts,
    FolderFacts,
    LockFacts,
    ProcessFacts,
    ReplicaFacts,
    RetentionFacts,
    RightFacts,
    SchemaFacts,
    SignInFacts,
    StateFacts,
)
from lattice.features.doctor.service.measured import WITHIN_S, NotUsed
from lattice.features.link.model import Replica
from lattice.features.link.service.probe import ProbeService
from lattice.features.state.service.backup_store import BackupStore
from lattice.server.engines import open_archive_lock, open_sensitive_lock, own_user
from lattice.server.foundation import Ground
from lattice.server.inspection.files import certificate_facts, folder_facts, log_folder_facts
from lattice.server.inspection.slurm import SlurmInspection

T = TypeVar("T")

_PAUSE = "lattice_event_loop_longest_pause_seconds"
_CALLER = "lattice-doctor"
_HANGS = "the disk does not answer"
_MUNGE_TEXT = "lattice doctor"


class ServerInspection:
    """Measures one server. The engines are asked anew each time."""

    def __init__(self, ground: Ground, backups: BackupStore | None = None) -> None:
        slurm = ground.config.slurm
        self._ground = ground
        self._backups = backups
        self._slurm = SlurmInspection(
            ground.scheduler,
            ground.commands,
            reader=slurm.user or own_user(),
        )
        self._base = ground.foundation
        self._blocking: dict[str, DriverReads[object]] = {}

    @property
    def state(self) -> StateFacts:
        single = self._ground.config.single
        return StateFacts(
            lasts=self._ground.cluster.agreed.lasts,
            single=single is not None,
            size_bytes=_size(single / "state.db") if single is not None else None,
        )

    @property
    def sign_in(self) -> SignInFacts:
        api = self._ground.config.api
        return SignInFacts(
            mode=api.auth.value,
            munge=api.munge,
            slurm_tokens=api.slurm_tokens,
            encrypts=api.tls_cert is not None,
            loopback=api.rest_listen.is_loopback and api.grpc_listen.is_loopback,
            development_token=self._ground.config.identity.development_token is not None,
        )

    def process(self) -> ProcessFacts:
        supervisor = self._base.supervisor
        return ProcessFacts(
            open_files=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only their number
            most_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            longest_pause_s=self._base.own_metrics.registry.get_sample_value(_PAUSE),
            failures=supervisor.failures,
            failed_s_ago=supervisor.failed_s_ago,
            reload=self._ground.reloader.outcome,
        )

    def people_names(self) -> tuple[str, ...]:
        config = self._ground.config
        # A join key names the host of the agents' listener with the port of the people's gRPC.
        advertised = config.api.agent_address if config.identity.is_set else config.api.rest_listen
        return () if advertised.is_wildcard else (advertised.host,)

    async def controller(self) -> ControllerFacts:
        return await self._slurm.controller()

    async def controller_ahead_s(self) -> float | None:
        return await self._slurm.ahead_s()

    async def accounting(self) -> str:
        return await self._slurm.accounting()

    async def schemas(self) -> SchemaFacts:
        return await self._slurm.schemas()

    async def rights(self) -> RightFacts:
        return await self._slurm.rights()

    async def backups(self) -> BackupFacts:
        every_h, store = self._ground.config.backup.every_h, self._backups
        if not every_h or store is None:
            raise NotUsed("no backups are scheduled")
        found = await store.listed()
        return BackupFacts(
            every_h=every_h, newest=found[0].taken if found else None, location=store.location
        )

    async def member_counts(self) -> tuple[int, int] | None:
        """How many members of etcd answer, and how many do not. None without etcd."""
        try:
            members = await self.members()
        except NotUsed:
            return None
        away = sum(bool(each.reason) for each in members)
        return len(members) - away, away

    async def members(self) -> tuple[QuorumMember, ...]:
        members = self._ground.cluster.agreed.members
        if members is None:
            raise NotUsed("no etcd")
        return await members(WITHIN_S)

    async def object_folder(self) -> FolderFacts:
        config = self._ground.config
        url = config.objects.url
        folder = url.folder if url is not None else None
        if url is None and config.single is not None:
            folder = config.single / "objects"
        if folder is None:
            raise NotUsed("no folder")
        return await self._read("object folder", partial(folder_facts, folder))

    async def archive_lock(self) -> LockFacts:
        config = self._ground.config
        reader = open_archive_lock(config, self._base.clock)
        if reader is None:
            raise NotUsed("the audit log has no bucket of its own (audit.bucket)")
        least = config.audit.retention_days
        return LockFacts(bucket=reader.bucket, lock=await reader.read(), least_days=least)

    async def sensitive_lock(self) -> RetentionFacts:
        config = self._ground.config
        reader = open_sensitive_lock(config, self._base.clock)
        if reader is None:
            raise NotUsed("no sensitive bucket is configured: the site has no sensitive work")
        shortest = config.logs.rules.shortest
        if not shortest:
            raise NotUsed("no retention is set (logs.retention_days): nothing is removed")
        return RetentionFacts(bucket=reader.bucket, lock=await reader.read(), removed_days=shortest)

    async def state_folder(self) -> FolderFacts:
        single = self._ground.config.single
        if single is None:
            raise NotUsed("the agreed state is in etcd, and the server keeps no folder of its own")
        return await self._read("state folder", partial(folder_facts, single))

    async def log_folder(self) -> FolderFacts:
        return await self._read("log folder", log_folder_facts)

    async def people_certificate(self) -> CertificateFacts:
        file = self._ground.config.api.tls_cert
        if file is None:
            raise NotUsed("the listeners have no TLS (api.tls_cert is not set)")
        return await self._read("certificate", partial(certificate_facts, file))

    async def authority(self) -> CertificateFacts:
        file = self._ground.config.identity.ca_cert
        if file is None:
            raise NotUsed("no agents are served (identity.ca_cert is not set)")
        return await self._read("authority", partial(certificate_facts, file))

    async def provider_keys(self) -> int:
        api = self._ground.config.api
        if api.oidc_issuer is None:
            raise NotUsed("no identity provider is configured (api.oidc_issuer)")
        async with provider_client(api.oidc_ca) as client:
            provider = DiscoveredProvider(client, api.oidc_issuer, jwks_uri=api.oidc_jwks_uri)
            try:
                return len(read_key_set(await provider.key_set()))
            except (ProviderFault, ValueError) as error:
                raise Unavailable(str(error)) from None

    async def munge(self) -> str:
        api = self._ground.config.api
        if not api.munge:
            raise NotUsed("nobody signs in by MUNGE (api.munge)")
        socket = str(api.munge_socket) if api.munge_socket is not None else ""
        credential = await self._read("munge", lambda: encoded(_MUNGE_TEXT, socket))
        try:
            user, _ = await MungeReader(api.munge_socket).read(credential)
        except BadCredential as fault:
            raise Unavailable(str(fault)) from None
        return user

    async def token_judge(self) -> str:
        judge = self._ground.token_judge
        if judge is None:
            raise NotUsed("nobody signs in by a Slurm token (api.slurm_tokens)")
        return await judge.check()

    async def replicas(self) -> tuple[ReplicaFacts, ...]:
        identity, view = self._ground.cluster.identity, self._ground.cluster.view
        if identity is None:
            raise NotUsed("servers call each other only where agents are served (identity)")
        peers = identity.peers

        async def reached(replica: Replica) -> ReplicaFacts:
            try:
                await peers.take_token(replica, _CALLER, Questions.DIAGNOSTICS)
            except Unavailable as error:
                reason = error.message.rstrip(".")
                return ReplicaFacts(id=replica.id, reason=reason, version=replica.version)
            return ReplicaFacts(id=replica.id, version=replica.version)

        others = [each for each in view.others() if each.id != self._base.replica]
        return tuple(await asyncio.gather(*map(reached, others)))

    async def echo(self, node: str) -> float:
        access = self._base.nodes
        if access is None:
            raise NotUsed("no agents are served")
        probe = ProbeService(access.streams, access.signer, self._base.clock, self._base.replica)
        asker = Actor(sub=_CALLER, role=Role.SYSTEM_ADMIN)
        return (await probe.ping(asker, node, 1)).opened_ms / 1000

    async def trust(self) -> tuple[AgentTrust, ...]:
        served = self._ground.agents
        if served is None:
            raise NotUsed("no agents are served")
        lasts = timedelta(hours=self._ground.config.identity.certificate_life_h)
        return tuple(
            AgentTrust(
                node=each.node,
                expires=each.certificate_expires,
                issued=each.certificate_expires - lasts if each.certificate_expires else None,
                revoked=f"{each.revoked_reason} (by {each.revoked_by})" if each.revoked else "",
                quarantine=each.quarantine,
            )
            for each in (await served.parts.trust.agents()).agents
        )

    async def _read(self, name: str, read: Callable[[], T]) -> T:
        """Call it in a thread of its own: a dead disk must not take the server's threads."""
        reads = self._blocking.get(name)
        if reads is None:
            reads = self._blocking[name] = DriverReads(read, f"doctor {name}", WITHIN_S, _HANGS)
        return await reads()  # type: ignore[return-value]


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None
