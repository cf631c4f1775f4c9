"""The agents' part of a server in memory: authority, agreed state, trust and enrolment."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lattice.access.actor import Actor, Role
from lattice.access.grants import GrantSigner
from lattice.adapters.pki.replica import AuthorityFiles, ReplicaIdentity
from lattice.adapters.signedstate import RecordSigner
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.signatures import SigningKey
from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.domain.peer import PeerIdentity
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.records import TRUST
from lattice.features.agents.service.trust import TrustedNodes
from lattice.features.link.service.peers import Peers
from lattice.server.cluster.agents import AgentParts, open_agents
from lattice.server.cluster.state import AgreedState
from lattice.server.config.sections import ServerConfig
from lattice.wire.peerguard import read_peer
from tests.fakes.certificates import CLUSTER, authority_files, node_pair
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.presences import NoPresences
from tests.fakes.supervised import SupervisedLoops

ADMIN = Actor(sub="admin-1", role=Role.SYSTEM_ADMIN)
GRANT_KEY = bytes(range(32))


def agent_parts(clock: Clock, store: InMemoryStateStore) -> AgentParts:
    """What a composed server needs of it; the authority's files are gone again at once."""
    with TemporaryDirectory() as folder:
        replica = ReplicaIdentity(
            authority_files(Path(folder), clock=clock), "r1", ["127.0.0.1"], clock
        )
    trust = TrustedNodes(CLUSTER, store, InMemoryStateView(store, TRUST), clock, NoPresences())
    key = SigningKey.generate()
    signer = GrantSigner(key, clock)
    enrolment = EnrolmentService(
        replica,
        trust,
        store,
        clock,
        lifetime=timedelta(hours=24),
        grant_keys=signer.public_keys,
        replicas=lambda: ("127.0.0.1:50052",),
    )
    return AgentParts(
        replica=replica,
        signer=signer,
        trust=trust,
        enrolment=enrolment,
        record_signer=RecordSigner(key),
        peers=Peers(replica.channel_credentials, replica.channel_options),
    )


def opened_agents(
    config: ServerConfig, store: InMemoryStateStore, clock: Clock, note: str = ""
) -> AbstractAsyncContextManager[AgentParts | None]:
    """Those of a configured server; `note` is what is known of its state."""
    agreed = AgreedState(store, InMemoryStateView(store, CLUSTER_KEY), note)
    return open_agents(
        config,
        agreed,
        clock,
        SupervisedLoops(),
        replica_id="r1",
        presences=NoPresences(),
        replicas=lambda: ("127.0.0.1:50052",),
    )


class AgentSite:
    """One replica's view of it; `another` is a second replica on the same state."""

    def __init__(
        self, folder: Path, clock: Clock, store: InMemoryStateStore | None = None, **options: Any
    ) -> None:
        self.clock = clock
        self.folder = folder
        self.store = store or InMemoryStateStore(clock)
        files = authority_files(folder, clock=clock) if store is None else None
        if files is None:
            files = AuthorityFiles(folder / "ca.pem", folder / "ca.key")
        self.replica = ReplicaIdentity(files, "r1", ["127.0.0.1"], clock)
        self.view = WatchedStateView(self.store, TRUST, clock)
        self.trust = TrustedNodes(CLUSTER, self.store, self.view, clock, NoPresences())
        self.enrolment = EnrolmentService(
            self.replica,
            self.trust,
            self.store,
            clock,
            lifetime=timedelta(hours=24),
            grant_keys=[GRANT_KEY],
            replicas=lambda: ("127.0.0.1:1",),
            **options,
        )

    async def started(self) -> AgentSite:
        await self.view.refresh()
        return self

    async def another(self) -> AgentSite:
        return await AgentSite(self.folder, self.clock, self.store.another()).started()

    def node(self, name: str = "n1", life: timedelta = timedelta(days=1)) -> PeerIdentity:
        """A node as it is seen once TLS is done."""
        return read_peer(node_pair(self.replica.authority, name, life).certificate)
