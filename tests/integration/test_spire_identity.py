"""A node with an identity from SPIRE over real sockets: admitted, rotated, refused, revoked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.adapters.pki.replica import AuthorityFiles, ReplicaIdentity
from lattice.adapters.spiffe.bundle import BundleFile
from lattice.adapters.spiffe.der import certificates_pem, key_pem
from lattice.adapters.spiffe.workload import WorkloadApi
from lattice.agent.certificates import LocalCertificates
from lattice.agent.config import AgentSettings
from lattice.agent.identity import AgentIdentity
from lattice.agent.identity_cascade import Cascade, NoIdentity
from lattice.agent.identity_issuer import GrpcIssuer, dial_terms
from lattice.agent.identity_spire import SPIRE, SpireIdentity
from lattice.agent.identity_store import IdentityStore
from lattice.agent.sections import AgentConfig, BootstrapSection
from lattice.base.clock import SystemClock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.peer import PeerKind
from lattice.domain.spiffe import NodeIds, NodePath
from lattice.features.agents.rpc import AgentIdentityRpc
from lattice.wire.guard import declared_permissions
from lattice.wire.peerguard import PeerGuard, PeerReader, grpc_peer
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1.agents_pb2_grpc import (
    AgentIdentityServiceStub,
    add_AgentIdentityServiceServicer_to_server,
)
from tests.eventually import eventually_async
from tests.fakes.agent_site import ADMIN, GRANT_KEY, AgentSite
from tests.fakes.certificates import CLUSTER, new_key, request
from tests.fakes.certificates import key_pem as secret_pem
from tests.fakes.spire import DOMAIN, FakeSpire, MadeSvid, SpiffeAuthority

HOST = "127.0.0.1"
SIGNER = GrantSigner(SigningKey.generate(), SystemClock())
PATH = NodePath()


@dataclass
class Cluster:
    """A server that trusts a SPIFFE domain, and the SPIRE agent of one node."""

    folder: Path
    site: AgentSite
    spire: FakeSpire
    agents: str = ""
    workload: str = ""
    refusals: list[tuple[str, str, str]] = field(default_factory=list)

    def node(
        self, name: str = "n1", checker: GrantChecker | None = None, **named: Any
    ) -> AgentIdentity:
        clock, certificates = SystemClock(), LocalCertificates()
        issuer = GrpcIssuer([], None)
        ca = self.folder / "ca.pem"
        config = AgentConfig(state_dir=self.folder / name, bootstrap=BootstrapSection(ca=ca))
        settings = AgentSettings(config, name, (), (self.agents,), **named)
        api = WorkloadApi(self.workload)
        spire = SpireIdentity(name, PATH, ca, api, certificates, issuer, clock)
        store = IdentityStore(config.state_dir, name, certificates)
        cascade = Cascade(settings, store, issuer, clock, spire)
        return AgentIdentity(cascade, store, issuer, clock, checker=checker, replicas=[self.agents])

    def dial(self, identity: AgentIdentity) -> aio.Channel:
        credentials, options = dial_terms(identity.held)
        return aio.secure_channel(self.agents, credentials, options)


async def _speak(requests: Any, context: Any) -> None:
    async for _ in requests:
        await context.write(grpc_peer().name.encode())


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    site = await AgentSite(tmp_path, SystemClock()).started()
    spire = FakeSpire(SpiffeAuthority(intermediate=True))
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(spire.authority.bundle_pem)
    made = Cluster(tmp_path, site, spire)
    trusted = BundleFile(bundle, SystemClock())
    files = AuthorityFiles(tmp_path / "ca.pem", tmp_path / "ca.key")
    site.replica = ReplicaIdentity(
        files, "r1", [HOST], SystemClock(), more_clients=trusted.authorities
    )
    reader = PeerReader(CLUSTER, NodeIds(DOMAIN, PATH), lambda: site.replica.bundle)

    def refused(rpc: str, who: str, error: LatticeError) -> None:
        made.refusals.append((rpc, who, error.message))

    def defect(_rpc: str, error: BaseException) -> None:
        raise error

    permissions = {**declared_permissions(), "test.Link/Speak": "AGENT"}
    guard = PeerGuard(
        permissions,
        site.trust.admit,
        refused,
        defect,
        note_use=site.trust.note_use,
        read=reader.read,
    )
    server = aio.server(interceptors=[guard])
    add_AgentIdentityServiceServicer_to_server(AgentIdentityRpc(site.enrolment, SIGNER), server)
    methods = {"Speak": grpc.stream_stream_rpc_method_handler(_speak)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Link", methods),))
    credentials = site.replica.grpc_server_credentials()
    made.agents = f"{HOST}:{server.add_secure_port(f'{HOST}:0', credentials)}"
    await server.start()
    async with AsyncExitStack() as stack:
        made.workload = await stack.enter_async_context(spire.serving(tmp_path / "api.sock"))
        yield made
    await server.stop(None)


@pytest.mark.spec("AUTH-9")
async def test_spire_alone_gives_an_identity_and_the_keys_of_grants(cluster: Cluster) -> None:
    cluster.spire.give(cluster.spire.authority.node("n1"))
    checker = GrantChecker("n1", SystemClock())
    identity = cluster.node(checker=checker)
    await identity.obtain()
    held = identity.held
    assert (held.origin, held.peer.spiffe_id) == (SPIRE, f"spiffe://{DOMAIN}/lattice/node/n1")
    assert (held.peer.kind, held.peer.name, held.peer.cluster) == (PeerKind.NODE, "n1", CLUSTER)
    assert held.grant_keys == (GRANT_KEY,)
    assert not (cluster.folder / "n1" / "identity.json").exists(), "a SVID stays in memory"
    async with cluster.dial(identity) as channel:
        call = channel.stream_stream("/test.Link/Speak")(timeout=10)
        await call.write(b"x")
        assert await call.read() == b"n1"
        identity.learned(["10.0.0.1:50052"])
    assert not (cluster.folder / "n1" / "identity.json").exists()


@pytest.mark.spec("AUTH-9")
async def test_a_rotation_is_taken_up_and_leaves_an_open_stream_alone(cluster: Cluster) -> None:
    cluster.spire.give(cluster.spire.authority.node("n1"))
    identity = cluster.node()
    await identity.obtain()
    first = identity.held
    async with cluster.dial(identity) as channel:
        stream = channel.stream_stream("/test.Link/Speak")(timeout=60)
        await stream.write(b"x")
        assert await stream.read() == b"n1"
        following = asyncio.create_task(identity.follow_spire())
        changed = asyncio.ensure_future(identity.wait_changed())
        cluster.spire.give(cluster.spire.authority.node("n1"))
        await asyncio.wait_for(changed, 60)
        await eventually_async(lambda: _generation(identity), lambda now: now == 2)
        assert identity.held.certificate != first.certificate
        assert identity.held.grant_keys == first.grant_keys
        await stream.write(b"x")
        assert await stream.read() == b"n1"
        following.cancel()
    async with cluster.dial(identity) as channel:
        call = channel.stream_stream("/test.Link/Speak")(timeout=10)
        await call.write(b"x")
        assert await call.read() == b"n1"


async def _generation(identity: AgentIdentity) -> int:
    return identity.generation


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
async def test_only_this_domain_and_this_path_name_a_node(cluster: Cluster) -> None:
    domain = cluster.spire.authority
    refused = {
        domain.svid("/lattice/node/n1", domain="other.org"): "trust domain is other.org, not",
        domain.svid("/billing/web"): "its path is not /lattice/node/{node}",
        domain.svid("/lattice/node/n1/more"): "is no name of a node",
        domain.certify(f"lattice://{CLUSTER}/node/n1"): "the cluster's authority did not sign it",
        domain.certify(f"lattice://{CLUSTER}/replica/r1"): "authority did not sign it",
        domain.certify(f"SPIFFE://{DOMAIN}/lattice/node/n1"): "its SPIFFE ID can't be read",
        domain.certify(
            f"spiffe://{DOMAIN}/lattice/node/n1", f"lattice://{CLUSTER}/node/n2"
        ): "exactly one URI",
    }
    for svid, reason in refused.items():
        answer = await _asked_with_chain(cluster, svid)
        assert answer.startswith("PERMISSION_DENIED: The certificate is not accepted: "), answer
        assert reason in answer
        assert reason in cluster.refusals[-1][2], "the log has the reason"
    assert await _asked_with_chain(cluster, domain.node("n7")) == "n7"


async def _asked_with_chain(cluster: Cluster, svid: MadeSvid) -> str:
    credentials = grpc.ssl_channel_credentials(
        cluster.site.replica.bundle,
        key_pem(svid.key).encode(),
        certificates_pem(svid.chain).encode(),
    )
    options = cluster.site.replica.channel_options()
    async with aio.secure_channel(cluster.agents, credentials, options) as channel:
        call = channel.stream_stream("/test.Link/Speak")(timeout=10)
        try:
            await call.write(b"x")
            return bytes(await call.read()).decode()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return f"{(await call.code()).name}: {await call.details()}"


@pytest.mark.spec("AUTH-9")
async def test_an_authority_that_servers_do_not_trust_gives_no_identity(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = SpiffeAuthority()
    assert (await _asked_with_chain(cluster, stranger.node("n1"))).startswith("UNAVAILABLE")
    cluster.spire.give(stranger.node("n1"))
    with pytest.raises(Unavailable) as refusal:
        await cluster.node()._cascade.obtain()
    assert f"the server may not trust {DOMAIN}" in refusal.value.message
    assert "api.spiffe" in str(refusal.value.hint)
    [line] = [each for each in caplog.records if each.message == "no identity from SPIRE"]
    assert f"may not trust {DOMAIN}" in line.reason  # type: ignore[attr-defined]


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
async def test_a_revocation_holds_for_every_svid_until_it_is_taken_back(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    domain = cluster.spire.authority
    cluster.spire.give(domain.node("n1"))
    identity = cluster.node()
    await identity.obtain()
    await cluster.site.trust.revoke(ADMIN, "n1", "stolen")
    later = await _asked_with_chain(cluster, domain.node("n1"))
    assert later == (
        "PERMISSION_DENIED: node certificate revoked; admin: lattice admin reinstate n1"
    )
    assert await _asked_with_chain(cluster, domain.node("n2")) == "n2"
    with pytest.raises(NoIdentity) as none:
        await cluster.node()._cascade.obtain()
    assert any("SPIRE: node certificate revoked" in each for each in none.value.problems)
    await cluster.site.trust.restore(ADMIN, "n1")
    assert await _asked_with_chain(cluster, domain.node("n1")) == "n1"
    await cluster.site.trust.quarantine("n1", "it spoke as n2")
    assert "n1 is in quarantine" in await _asked_with_chain(cluster, domain.node("n1"))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
async def test_an_svid_is_not_exchanged_for_a_certificate_that_lives_longer(
    cluster: Cluster,
) -> None:
    cluster.spire.give(cluster.spire.authority.node("n1"))
    identity = cluster.node()
    await identity.obtain()
    async with cluster.dial(identity) as channel:
        stub: Any = AgentIdentityServiceStub(channel)
        asked = pb.RenewRequest(csr=request(new_key()).decode())
        with pytest.raises(aio.AioRpcError) as refusal:
            await stub.Renew(asked, timeout=10)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refusal.value.details() == "n1 has a SPIFFE ID: SPIRE renews its certificate."


@pytest.mark.spec("AUTH-9")
async def test_an_svid_that_expired_or_is_another_node_s_is_refused_with_the_reason(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    domain = cluster.spire.authority
    cluster.spire.give(domain.node("n1", timedelta(hours=-2)))
    with pytest.raises(NoIdentity):
        await cluster.node()._cascade.obtain()
    assert f"the SVID spiffe://{DOMAIN}/lattice/node/n1 expired 2 h ago" in _reasons(caplog)[-1]
    cluster.spire.give(domain.node("n2"))
    with pytest.raises(NoIdentity):
        await cluster.node()._cascade.obtain()
    assert _reasons(caplog)[-1] == (
        f"SPIRE gives spiffe://{DOMAIN}/lattice/node/n2, and none with the path /lattice/node/n1"
    )


def _reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each for each in caplog.records if each.message == "no identity from SPIRE"]
    return [each.reason for each in found]  # type: ignore[attr-defined]


@pytest.mark.spec("AUTH-9")
async def test_while_spire_is_away_the_next_step_serves_and_one_line_says_why(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster.workload = f"unix:{cluster.folder}/away.sock"
    key = new_key()
    store = IdentityStore(cluster.folder / "n1", "n1", LocalCertificates())
    made = await cluster.site.enrolment.create(ADMIN, "n1")
    csr = request(key, "n1").decode()
    given = await cluster.site.enrolment.enrol(made.token, "n1", csr)
    store.save(store.held(given, secret_pem(key).decode(), "enrolment token"))
    identity = cluster.node()
    await identity.obtain()
    assert identity.held.origin == "own certificate"
    following = asyncio.create_task(identity.follow_spire())
    await asyncio.sleep(0.1)
    assert _reasons(caplog) == [f"unix:{cluster.folder}/away.sock: there is no such socket."]
    cluster.spire.give(cluster.spire.authority.node("n1"))
    async with cluster.spire.serving(cluster.folder / "away.sock"):
        await eventually_async(lambda: _origin(identity), lambda now: now == SPIRE)
    following.cancel()
    assert len(_reasons(caplog)) <= 2


async def _origin(identity: AgentIdentity) -> str:
    return identity.held.origin


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
async def test_a_replica_s_certificate_alone_can_t_name_keys_of_grants(cluster: Cluster) -> None:
    """It can answer, but only the cluster's authority signs the statement."""
    cluster.spire.give(cluster.spire.authority.node("n1"))
    stranger = GrantSigner(SigningKey.generate(), SystemClock())
    sound = cluster.site.enrolment.describe

    def forged(peer: Any, nonce: str) -> tuple[bytes, bytes]:
        statement, signature = sound(peer, nonce)
        own, other = GRANT_KEY.hex(), stranger.public_keys[0].hex()
        return statement.replace(own.encode(), other.encode()), signature

    def replayed(peer: Any, _nonce: str) -> tuple[bytes, bytes]:
        return sound(peer, "0" * 64)

    for describe, reason in (
        (forged, "not signed by an authority of this cluster"),
        (replayed, "for another question"),
    ):
        cluster.site.enrolment.describe = describe  # type: ignore[method-assign]
        with pytest.raises(NoIdentity) as none:
            await cluster.node()._cascade.obtain()
        assert any(reason in each for each in none.value.problems)


@pytest.mark.spec("AUTH-9")
async def test_servers_that_are_away_are_waited_for(cluster: Cluster) -> None:
    cluster.spire.give(cluster.spire.authority.node("n1"))
    there, cluster.agents = cluster.agents, f"{HOST}:1"
    with pytest.raises(Unavailable, match="connection refused"):
        await cluster.node()._cascade.obtain()
    cluster.agents = there
    found = await cluster.node()._cascade.obtain()
    assert found.origin == SPIRE


@pytest.mark.spec("AUTH-9")
def test_a_server_names_an_svid_that_expired(cluster: Cluster) -> None:
    reader = PeerReader(CLUSTER, NodeIds(DOMAIN, PATH), lambda: cluster.site.replica.bundle)
    expired = reader.read(cluster.spire.authority.node("n1", timedelta(hours=-2)).leaf_pem)
    with pytest.raises(PermissionRefused, match="the SVID of n1 expired 2 h ago") as refusal:
        cluster.site.trust.admit(expired)
    assert refusal.value.hint == "Check SPIRE's agent on n1."
