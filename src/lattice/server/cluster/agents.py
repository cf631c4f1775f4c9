"""What a server needs for agents: its own identity, the keys of grants, the trusted nodes.

The agents' listener itself is elsewhere. It serves `renewal`, and calls `trust.admit` for every
certificate.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from lattice.access.grants import GrantSigner
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, believed_keys, create_identity
from lattice.adapters.pki.replica import AuthorityFiles, ReplicaIdentity
from lattice.adapters.signedstate import RecordSigner, SignedStateStore
from lattice.adapters.spiffe.bundle import Bundle, BundleFile, BundleStream
from lattice.adapters.spiffe.workload import WorkloadApi
from lattice.adapters.stateview import WatchedStateView
from lattice.base.address import Address
from lattice.base.clock import Clock, SystemClock
from lattice.base.config import load
from lattice.base.errors import ConfigurationError
from lattice.base.signatures import SigningKey
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.joinkey import JoinKey, written
from lattice.domain.peer import PeerIdentity
from lattice.domain.presence import Presences
from lattice.domain.spiffe import NodeIds, NodePath, workload_address
from lattice.features.agents.rpc import AgentIdentityRpc
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.records import QUARANTINE, REVOKED, TRUST
from lattice.features.agents.service.trust import TrustedNodes
from lattice.features.link.service.peers import Peers
from lattice.server.cluster.state import AgreedState
from lattice.server.config.api_section import ApiSection, SpiffeSection
from lattice.server.config.sections import IdentitySection, ServerConfig
from lattice.server.tls import root_of
from lattice.wire.peerguard import PeerReader, read_peer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """Made together, because each depends on the one before it."""

    replica: ReplicaIdentity
    signer: GrantSigner
    trust: TrustedNodes
    enrolment: EnrolmentService
    record_signer: RecordSigner
    """For records of the agreed state that give rights."""
    peers: Peers
    """The other replicas."""
    read_peer: Callable[[bytes], PeerIdentity] = read_peer
    """Reads the certificate of a caller."""

    @property
    def renewal(self) -> AgentIdentityRpc:
        """For the agents' listener."""
        return AgentIdentityRpc(self.enrolment, self.signer)


def identity_paths(identity: IdentitySection) -> IdentityPaths | None:
    """The configured paths of the cluster's identity, or None if there are none."""
    if identity.ca_cert is None or identity.ca_key is None or identity.grant_key is None:
        return None
    return IdentityPaths(identity.ca_cert, identity.ca_key, identity.grant_key)


def begin_identity(path: Path, environ: Mapping[str, str]) -> bool:
    """Create the configured files if none exists, as `--bootstrap` does.

    Call it before the configuration is checked, because the rules require the files. Raises
    `ConfigurationError`.
    """
    config, _ = load(ServerConfig, path, environ)
    paths = identity_paths(config.identity)
    return paths is not None and create_identity(paths, SystemClock(), name=config.cluster.name)


def succeed_identity(config: ServerConfig, folder: Path) -> IdentityPaths:
    """Make an authority and a grant key in a folder, as successors of the configured ones.

    They are for the same cluster, and nothing trusts them yet. Raises `ConfigurationError`.
    """
    paths = identity_paths(config.identity)
    if paths is None:
        raise ConfigurationError("There is no identity to follow.", hint="Set identity.ca_cert.")
    clock = SystemClock()
    authority = ClusterAuthority.load(paths.ca_cert, paths.ca_key, clock)
    made = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
    if not create_identity(made, clock, cluster=authority.cluster):
        raise ConfigurationError(f"{folder} holds an identity already.", hint="Name a new folder.")
    return made


def as_single_server(config: ServerConfig, folder: Path) -> ServerConfig:
    """The configuration of a server with `--single`: an identity in its folder, made if needed.

    If no address for nodes is configured, agents are served on loopback alone.
    """
    if config.identity.is_set:
        return replace(config, single=folder)
    paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
    create_identity(paths, SystemClock(), name=config.cluster.name)
    api = config.api
    if api.agent_listen.is_wildcard and api.agent_advertise is None:
        here = "127.0.0.1"
        api = replace(
            api,
            agent_listen=Address(here, api.agent_listen.port),
            lane_listen=Address(here, api.lane_listen.port),
        )
    identity = replace(
        config.identity, ca_cert=paths.ca_cert, ca_key=paths.ca_key, grant_key=paths.grant_key
    )
    return replace(config, api=api, identity=identity, single=folder)


def new_replica_id() -> str:
    """This machine's name, and a part that differs for each process."""
    host = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    return f"{host[:40] or 'server'}-{secrets.token_hex(4)}"


class JoinKeys:
    """Writes join keys: every replica's port for services, and the authority of their TLS."""

    def __init__(self, api: ApiSection, replicas: Callable[[], tuple[str, ...]]) -> None:
        """`replicas` returns the addresses of the agents' listeners."""
        self._port = api.grpc_listen.port
        self._own = api.agent_address.host
        self._certificate = api.tls_cert
        self._replicas = replicas

    def for_token(self, token: str) -> str:
        hosts = {Address.parse(each).host: None for each in self._replicas()} or {self._own: None}
        servers = tuple(str(Address(host, self._port)) for host in hosts)
        return written(JoinKey(servers=servers, token=token, ca=self._authority()))

    def _authority(self) -> str:
        """The authority at the end of the chain; empty if the chain does not have it."""
        try:
            chain = self._certificate.read_bytes() if self._certificate else b""
        except OSError:
            return ""
        return root_of(chain)


@asynccontextmanager
async def open_agents(
    config: ServerConfig,
    agreed: AgreedState,
    clock: Clock,
    supervisor: Supervisor,
    *,
    replica_id: str,
    presences: Presences,
    replicas: Callable[[], tuple[str, ...]],
) -> AsyncIterator[AgentParts | None]:
    """All parts, or None if no identity is configured. Raises `ConfigurationError`.

    `replicas` returns the addresses of the agents' listeners.
    """
    identity, api = config.identity, config.api
    paths = identity_paths(identity)
    if paths is None:
        yield None
        return
    if not agreed.lasts:
        raise ConfigurationError(
            "Agents need agreed state, and there is none.",
            hint="Set quorum.endpoints, or leave out the section identity.",
        )
    lifetime = timedelta(hours=identity.certificate_life_h)
    files = AuthorityFiles(paths.ca_cert, paths.ca_key, identity.trust)
    bundle = spiffe_bundle(api.spiffe, clock)
    replica = ReplicaIdentity(
        files,
        replica_id,
        [api.agent_address.host],
        clock,
        lifetime=lifetime,
        more_clients=bundle.authorities if bundle else bytes,
    )
    key = SigningKey.load(paths.grant_key)
    signer = GrantSigner(key, clock, believed_keys(identity.previous_grant_keys))
    record_signer = RecordSigner(key, signer.public_keys)
    records = SignedStateStore(agreed.store, record_signer, obeyed_unsigned=(REVOKED, QUARANTINE))
    view = WatchedStateView(records, TRUST, clock)
    trust = TrustedNodes(replica.cluster, records, view, clock, presences)
    token = identity.development_token
    enrolment = EnrolmentService(
        replica,
        trust,
        records,
        clock,
        lifetime=lifetime,
        grant_keys=signer.public_keys,
        replicas=replicas,
        development_token=token.reveal() if token else None,
        join_key=JoinKeys(api, replicas).for_token,
    )
    async with (
        aclosing(Peers(replica.channel_credentials, replica.channel_options)) as peers,
        supervisor.running(Loop("trust", view.run, OnFailure.RESTART), *_bundle_loops(bundle)),
    ):
        yield AgentParts(
            replica=replica,
            signer=signer,
            trust=trust,
            enrolment=enrolment,
            record_signer=record_signer,
            peers=peers,
            read_peer=_peer_reader(api.spiffe, replica),
        )


def spiffe_bundle(spiffe: SpiffeSection, clock: Clock) -> Bundle | None:
    """The authorities of the site's trust domain, if it has one. Raises `BundleRefused`."""
    if not spiffe.trust_domain:
        return None
    if spiffe.bundle is not None:
        return BundleFile(spiffe.bundle, clock)
    return BundleStream(WorkloadApi(workload_address(spiffe.socket)), spiffe.trust_domain)


def _bundle_loops(bundle: Bundle | None) -> tuple[Loop, ...]:
    if not isinstance(bundle, BundleStream):
        return ()
    return (Loop("SPIFFE bundle", bundle.run, OnFailure.RESTART),)


def _peer_reader(
    spiffe: SpiffeSection, replica: ReplicaIdentity
) -> Callable[[bytes], PeerIdentity]:
    if not spiffe.trust_domain:
        return read_peer
    ids = NodeIds(spiffe.trust_domain, NodePath(spiffe.path))
    return PeerReader(replica.cluster, ids, lambda: replica.bundle).read
