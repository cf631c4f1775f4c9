"""Replicas and agents in one process: real gRPC, real certificates, agreed state in memory.

For what needs many cuts or exact moments. What needs real processes is in tests/e2e.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc import aio

from lattice.access.actor import Actor, Role
from lattice.access.grants import GrantChecker, GrantSigner
from lattice.access.limits import LimitVerdict, Questions
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.adapters.pki.replica import AuthorityFiles, ReplicaIdentity
from lattice.adapters.stateview import WatchedStateView
from lattice.base.address import Address
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.peer import PeerIdentity, server_name
from lattice.domain.presence import LINKS, NODES
from lattice.domain.stream import CarrierLost, Serve, StreamKind
from lattice.features.link.model import REPLICAS, Replica, read_replica
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.echo import serve_echo
from lattice.features.link.node.keeper import LinkKeeper, NodeSelf
from lattice.features.link.node.redial import Redial
from lattice.features.link.node.sessions import NodeSessions
from lattice.features.link.rpc import LinkRpc, PeerRpc, ProbeRpc
from lattice.features.link.service.broker import NodeStreamBroker
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.peers import Peers
from lattice.features.link.service.probe import ProbeService
from lattice.features.link.service.routes import Routes
from lattice.features.link.wiring import bindings
from lattice.server.cluster.lane_listener import LaneServer, lane_listener
from lattice.server.cluster.limits import Rates, limit_table
from lattice.server.config.sections import RateLimitsSection
from lattice.server.listeners.connections import ConnectionLimits, Connections
from lattice.server.listeners.grpc_bounds import AGENT_OPTIONS
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.conduit import Conduit
from lattice.wire.guard import GuardInterceptor, declared_permissions
from lattice.wire.lane import LaneIdentity
from lattice.wire.peerguard import PeerGuard
from lattice.wire.rpc import OperationHandlers
from lattice.wire.v1 import link_pb2 as pb
from lattice.wire.v1.link_pb2_grpc import add_PeerServiceServicer_to_server
from tests.fakes.in_memory_state import InMemoryStateStore

CLUSTER = "site"
OLGA = Actor(sub="olga-sub", user="olga", role=Role.SYSTEM_ADMIN)


_GIVEN: set[int] = set()


def free_port() -> int:
    """Below those that the kernel gives to connections, of which one could take it meanwhile."""
    for port in Random().sample(range(29_000, 32_000), 1000):
        with socket.socket() as door, suppress(OSError):
            door.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
    raise AssertionError("no port is free")


class NodeKey:
    """A node's certificate, as an agent would hold it."""

    def __init__(self, authority: ClusterAuthority, node: str, life: timedelta) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(key, hashes.SHA256())
        )
        pem = request.public_bytes(serialization.Encoding.PEM)
        self.generation = 1
        self._certificate = authority.sign_node(pem, node, life).pem
        self._bundle = authority.bundle
        self._key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._bundle, self._key, self._certificate)

    def channel_options(self) -> Sequence[tuple[str, Any]]:
        return (("grpc.ssl_target_name_override", server_name(CLUSTER)),)

    def lane_identity(self) -> LaneIdentity:
        return LaneIdentity(self._key, self._certificate, self._bundle)

    def server_name(self) -> str:
        return server_name(CLUSTER)


class Server:
    """One replica with both listeners."""

    def __init__(self, site: Site, name: str, *, store: Any = None) -> None:
        self.name = name
        self.port = free_port()
        self.people_port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        clock = site.clock
        self.store = store or site.store.another()
        self.links = WatchedStateView(self.store, LINKS, clock)
        self.nodes = WatchedStateView(self.store, NODES, clock)
        self.replicas = WatchedStateView(self.store, REPLICAS, clock)
        self.trusted = True
        self.quarantined: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str, LatticeError]] = []
        self.defects: list[tuple[str, BaseException]] = []
        identity = ReplicaIdentity(site.files, name, ["127.0.0.1"], clock)
        me = Replica(id=name, address=self.address, since=clock.now().timestamp())
        self.membership = Membership(self.store, me)
        routes = Routes(self.store, self.links, self.nodes, self.membership, clock)
        self.hub = LinkHub(routes, self.membership, clock, self._quarantine)
        self._peers = Peers(identity.channel_credentials, identity.channel_options)
        self.desk = NodeStreamBroker(
            self.hub, self.links, self.nodes, self.replicas, self._peers, self.address, clock
        )
        self.probe = ProbeService(self.desk, site.signer, clock, name)
        permissions = declared_permissions()
        guard = PeerGuard(
            permissions,
            self._believe,
            lambda *told: self.refused.append(told),
            lambda *told: self.defects.append(told),
        )
        self.lanes = LaneServer(guard, self.desk.arrived, lambda *told: self.defects.append(told))
        self.lane_connections = Connections(ConnectionLimits(100, 20))
        self._lane_context = identity.lane_context
        self._offers_lanes = site.lanes
        self._stack = AsyncExitStack()
        self._agents = aio.server(interceptors=[guard], options=AGENT_OPTIONS)
        self._agents.add_generic_rpc_handlers(
            (LinkRpc(self.hub, self.desk, lambda: [self.address]).handlers(),)
        )
        self.rates = Rates(
            limit_table(RateLimitsSection()),
            clock,
            replica=name,
            replicas=lambda: sorted(key.removeprefix(REPLICAS) for key in self.replicas.entries),
            others=self,
        )
        add_PeerServiceServicer_to_server(PeerRpc(self.hub, self.rates.answer), self._agents)
        self._agents.add_secure_port(f"127.0.0.1:{self.port}", identity.grpc_server_credentials())
        self._people = aio.server(
            interceptors=[
                GuardInterceptor(
                    permissions,
                    site.authorise,
                    lambda *told: self.defects.append(told),
                    recheck_every_s=site.recheck_every_s,
                )
            ]
        )
        self._people.add_generic_rpc_handlers(
            (ProbeRpc(self.probe).handlers(), OperationHandlers(bindings(self.probe)))
        )
        people = f"127.0.0.1:{self.people_port}"
        if site.people_show_certificates:
            self._people.add_secure_port(people, identity.grpc_server_credentials())
        else:
            self._people.add_insecure_port(people)
        self._tasks: list[asyncio.Task[None]] = []

    async def take(self, replica: str, sub: str, kind: Questions) -> LimitVerdict:
        """The port `BucketOwner`."""
        entry = self.replicas.entries.get(REPLICAS + replica)
        if entry is None:
            raise Unavailable("gone")
        return await self._peers.take_token(read_replica(entry.value), sub, kind)

    def _believe(self, peer: PeerIdentity) -> None:
        if not self.trusted:
            raise PermissionRefused(f"{peer.name} is not trusted any more.")

    async def _quarantine(self, node: str, why: str) -> None:
        self.quarantined.append((node, why))

    async def start(self) -> None:
        for step in (
            self.links.run(), self.nodes.run(), self.replicas.run(),
            self.membership.run(), self.hub.tend(), self.hub.announce_published(),
        ):  # fmt: skip
            self._tasks.append(asyncio.create_task(step))
        await self._agents.start()
        await self._people.start()
        if self._offers_lanes:
            listener = lane_listener(
                Address("127.0.0.1", 0), self.lanes, self._lane_context, self.lane_connections
            )
            port = await self._stack.enter_async_context(listener)
            self.desk.lane_address = f"127.0.0.1:{port}"

    async def stop(self, grace_s: float | None = None) -> None:
        await self._stack.aclose()
        await self._people.stop(grace_s)
        await self._agents.stop(grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._peers.aclose()


class Agent:
    """One node's agent."""

    def __init__(
        self,
        site: Site,
        node: str,
        addresses: Sequence[str],
        seed: int = 1,
        serves: Mapping[StreamKind, Serve] | None = None,
    ) -> None:
        self.node = node
        self.identity = NodeKey(site.authority, node, timedelta(hours=1))
        self.dialling = Dialling(self.identity, site.clock)
        self.checker = GrantChecker(node, site.clock, site.signer.public_keys)
        self.sessions = NodeSessions(
            self.dialling,
            self.checker,
            serves or {StreamKind.ECHO: serve_echo},
            wait_s=site.wait_s,
        )
        me = NodeSelf(node=node, boot_id="boot", instance=secrets.token_hex(8), agent_version="0")
        self.keeper = LinkKeeper(
            me,
            self.dialling,
            Redial(node, addresses, Random(seed)),
            site.clock,
            self.sessions.take,
            lambda _welcome: None,
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.keeper.run())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.sessions.aclose()
        await self.dialling.aclose()


class Site:
    """Everything the two kinds share."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.wait_s = 60.0
        self.recheck_every_s = 60.0
        self.allowed = True
        self.unknown_checks = 0
        """So many checks of callers still fail, because nobody knows."""
        self.people_show_certificates = False
        self.lanes = True
        """False: replicas take streams over gRPC alone."""
        paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
        create_identity(paths, self.clock, cluster=CLUSTER)
        self.authority = ClusterAuthority.load(paths.ca_cert, paths.ca_key, self.clock)
        self.files = AuthorityFiles(paths.ca_cert, paths.ca_key)
        self.signer = GrantSigner(SigningKey.load(paths.grant_key), self.clock)
        self.store = InMemoryStateStore(self.clock)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def authorise(self, **_question: str) -> Actor:
        if self.unknown_checks:
            self.unknown_checks -= 1
            raise Unavailable("Nobody knows.")
        if not self.allowed:
            raise LoginRefused("The token no longer holds.")
        return OLGA

    async def server(self, name: str) -> Server:
        server = Server(self, name)
        await server.start()
        self._stack.push_async_callback(server.stop)
        return server

    def agent(self, node: str, *servers: Server, addresses: Sequence[str] = ()) -> Agent:
        agent = Agent(self, node, addresses or [each.address for each in servers])
        agent.start()
        self._stack.push_async_callback(agent.stop)
        return agent


class LoginRefused(LatticeError):
    code = "login_required"


class Caller:
    """A person's end of an echo stream, which goes on at any server it knows."""

    def __init__(self, node: str, addresses: Sequence[str], opening: bytes = b"") -> None:
        self.conduit = Conduit()
        self.connections = 0
        self._node = node
        self._addresses = list(addresses)
        self._opening = opening
        self._session = secrets.token_hex(16)
        self._task = asyncio.create_task(self._run())
        self.why: list[str] = []

    async def _run(self) -> None:
        # The next server at each try: one that is gone is never connected to.
        for address in itertools.cycle(self._addresses):
            if self.conduit.over:
                return
            try:
                await self._once(address)
            except CarrierLost as lost:
                self.why.append(str(lost))
                await asyncio.sleep(0.002)

    async def _once(self, address: str) -> None:
        async with self.channel(address) as channel:
            dial: Any = channel.stream_stream
            call = dial("/lattice.v1.LinkProbe/EchoNode")()
            carrier = GrpcCarrier(call)
            opening = pb.StreamOpening(
                node=self._node,
                session=self._session,
                resume=self.conduit.begun,
                opening=self._opening,
            )
            await carrier.open_with(opening)
            self.connections += 1
            try:
                await self.conduit.carry(carrier)
            finally:
                call.cancel()

    def channel(self, address: str) -> aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return aio.insecure_channel(address, options=options)

    async def finished(self) -> None:
        await self._task

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
