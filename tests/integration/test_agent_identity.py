"""From token to revocation over real sockets: enrol, renew, be locked out, speak as another."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.agent.certificates import LocalCertificates
from lattice.agent.config import AgentSettings
from lattice.agent.identity import AgentIdentity
from lattice.agent.identity_cascade import Cascade, NoIdentity
from lattice.agent.identity_issuer import GrpcIssuer, dial_terms
from lattice.agent.identity_store import IdentityStore
from lattice.agent.sections import AgentConfig
from lattice.base.clock import SystemClock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.base.signatures import SigningKey
from lattice.features.agents.rpc import AgentIdentityRpc
from lattice.features.agents.wiring import bindings
from lattice.wire.guard import GuardInterceptor, declared_permissions
from lattice.wire.peerguard import PeerGuard, grpc_peer
from lattice.wire.rpc import OperationHandlers
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1.agents_pb2_grpc import (
    AgentIdentityServiceStub,
    add_AgentIdentityServiceServicer_to_server,
)
from tests.fakes.agent_site import ADMIN, AgentSite
from tests.fakes.certificates import new_key, request

HOST = "127.0.0.1"
SIGNER = GrantSigner(SigningKey.generate(), SystemClock())


@dataclass
class Cluster:
    """A server with both its gRPC listeners, and what it wrote down."""

    site: AgentSite
    people: str
    agents: str
    refusals: list[tuple[str, str, str]] = field(default_factory=list)

    async def node(self, folder: Path, name: str = "n1", token: str = "") -> AgentIdentity:
        store = IdentityStore(folder / name, name, LocalCertificates())
        issuer = GrpcIssuer([self.people], None)
        settings = AgentSettings(
            AgentConfig(state_dir=folder / name), name, (), (), enrol_token=token
        )
        clock = SystemClock()
        identity = AgentIdentity(
            Cascade(settings, store, issuer, clock), store, issuer, clock, replicas=[self.agents]
        )
        await identity.obtain()
        return identity

    async def enrolled(self, folder: Path, name: str = "n1") -> AgentIdentity:
        made = await self.site.enrolment.create(ADMIN, name)
        return await self.node(folder, name, made.token)

    def dial(self, identity: AgentIdentity) -> aio.Channel:
        credentials, options = dial_terms(identity.held)
        return aio.secure_channel(self.agents, credentials, options)

    async def renew(self, identity: AgentIdentity, name: str = "") -> Any:
        async with self.dial(identity) as channel:
            stub: Any = AgentIdentityServiceStub(channel)
            csr = request(new_key(), name).decode()
            return await stub.Renew(pb.RenewRequest(csr=csr), timeout=10)


async def _nobody(*, rpc: str, permission: str, authorization: str) -> None:
    if permission != "PUBLIC":
        raise PermissionRefused("not here")


async def _speak(requests: Any, context: Any) -> None:
    """As a link does: the certificate must name the node that is spoken for."""
    async for said in requests:
        await context.write(b"yes" if said == grpc_peer().name.encode() else b"no")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    site = await AgentSite(tmp_path, SystemClock()).started()
    made = Cluster(site, "", "")

    def refused(rpc: str, who: str, error: LatticeError) -> None:
        made.refusals.append((rpc, who, error.message))

    def defect(rpc: str, error: BaseException) -> None:
        raise error

    permissions = {**declared_permissions(), "test.Link/Speak": "AGENT"}
    people = aio.server(interceptors=[GuardInterceptor(permissions, _nobody, defect)])
    operations = OperationHandlers(bindings(site.enrolment, site.trust))
    people.add_generic_rpc_handlers((operations,))
    made.people = f"{HOST}:{people.add_insecure_port(f'{HOST}:0')}"
    guard = PeerGuard(permissions, site.trust.admit, refused, defect, note_use=site.trust.note_use)
    agents = aio.server(interceptors=[guard])
    add_AgentIdentityServiceServicer_to_server(AgentIdentityRpc(site.enrolment, SIGNER), agents)
    methods = {"Speak": grpc.stream_stream_rpc_method_handler(_speak)}
    agents.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Link", methods),))
    credentials = site.replica.grpc_server_credentials()
    made.agents = f"{HOST}:{agents.add_secure_port(f'{HOST}:0', credentials)}"
    await people.start()
    await agents.start()
    yield made
    await people.stop(None)
    await agents.stop(None)


@pytest.mark.spec("AUTH-9")
async def test_a_node_enrols_once_and_renews_with_what_it_got(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = await cluster.site.enrolment.create(ADMIN, "n1")
    identity = await cluster.node(tmp_path, "n1", made.token)
    given = await cluster.renew(identity)
    assert given.node == "n1"
    with pytest.raises(NoIdentity) as none:
        await cluster.node(tmp_path / "elsewhere", "n1", made.token)
    assert any("token is not accepted" in each for each in none.value.problems)
    again = await cluster.node(tmp_path, "n1")
    assert again.held.origin == "own certificate"


@pytest.mark.spec("AUTH-9")
async def test_renewal_leaves_an_open_stream_alone_and_new_dials_use_the_new_key(
    cluster: Cluster, tmp_path: Path
) -> None:
    identity = await cluster.enrolled(tmp_path)
    before = identity.held
    async with cluster.dial(identity) as channel:
        stream = channel.stream_stream("/test.Link/Speak")(timeout=30)
        await stream.write(b"n1")
        assert await stream.read() == b"yes"
        identity.doubt()
        running = asyncio.create_task(identity.run())
        await asyncio.wait_for(identity.wait_changed(), 60)
        running.cancel()
        assert identity.held.key != before.key
        assert (await cluster.renew(identity)).node == "n1"
        await stream.write(b"n1")
        assert await stream.read() == b"yes"
        await stream.done_writing()


@pytest.mark.spec("AUTH-9")
async def test_a_revoked_node_is_denied_with_words_and_written_down(
    cluster: Cluster, tmp_path: Path
) -> None:
    identity = await cluster.enrolled(tmp_path)
    await cluster.site.trust.revoke(ADMIN, "n1", "stolen")
    with pytest.raises(aio.AioRpcError) as refusal:
        await cluster.renew(identity)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refusal.value.details() == "node certificate revoked; admin: lattice admin enrol n1"
    rpc, who, why = cluster.refusals[-1]
    assert rpc.endswith("/Renew")
    assert who.endswith("/node/n1")
    assert "revoked" in why
    back = await cluster.enrolled(tmp_path / "again")
    # The new one begins a second after the revocation, to be told from those before it.
    early_s = (back.held.peer.not_before - SystemClock().now()).total_seconds()
    await asyncio.sleep(max(0.0, early_s) + 0.1)
    assert (await cluster.renew(back)).node == "n1"


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_n1_can_not_speak_for_n2_and_is_put_in_quarantine(
    cluster: Cluster, tmp_path: Path
) -> None:
    identity = await cluster.enrolled(tmp_path)
    with pytest.raises(aio.AioRpcError) as refusal:
        await cluster.renew(identity, name="n2")
    assert "somebody else than n1" in (refusal.value.details() or "")
    async with cluster.dial(identity) as channel:
        stream = channel.stream_stream("/test.Link/Speak")(timeout=10)
        await stream.write(b"n2")
        assert await stream.read() == b"no"
    await cluster.site.trust.quarantine("n1", "a certificate of n1 spoke as n2")
    with pytest.raises(aio.AioRpcError) as refusal:
        await cluster.renew(identity)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "quarantine" in (refusal.value.details() or "")


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_copied_certificate_that_renews_after_the_node_did_is_found_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Attack 35."""
    identity = await cluster.enrolled(tmp_path)
    (tmp_path / "thief").mkdir()
    shutil.copytree(tmp_path / "n1", tmp_path / "thief" / "n1")
    thief = await cluster.node(tmp_path / "thief")
    identity.doubt()
    running = asyncio.create_task(identity.run())
    await asyncio.wait_for(identity.wait_changed(), 60)
    running.cancel()
    assert (await cluster.renew(thief)).node == "n1", "the new one was not used yet"
    async with cluster.dial(identity) as channel:
        stream = channel.stream_stream("/test.Link/Speak")(timeout=30)
        await stream.write(b"n1")
        assert await stream.read() == b"yes"
        await stream.done_writing()
    with pytest.raises(aio.AioRpcError) as refusal:
        await cluster.renew(thief)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "restore n1, then lattice admin enrol n1" in (refusal.value.details() or "")
    with pytest.raises(aio.AioRpcError, match="quarantine"):
        await cluster.renew(identity)


@pytest.mark.spec("AUTH-9")
async def test_a_replica_is_no_node_and_people_are_neither(
    cluster: Cluster, tmp_path: Path
) -> None:
    replica = cluster.site.replica
    csr = pb.RenewRequest(csr=request(new_key()).decode())
    async with aio.secure_channel(
        cluster.agents, replica.channel_credentials(), replica.channel_options()
    ) as channel:
        stub: Any = AgentIdentityServiceStub(channel)
        with pytest.raises(aio.AioRpcError) as refusal:
            await stub.Renew(csr, timeout=10)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with aio.insecure_channel(cluster.people) as channel:
        stub = AgentIdentityServiceStub(channel)
        with pytest.raises(aio.AioRpcError) as refusal:
            await stub.Renew(csr, timeout=10)
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_nobody_to_ask_is_told_apart_from_a_refusal(tmp_path: Path) -> None:
    servers: Sequence[str] = (f"{HOST}:1", f"{HOST}:2")
    with pytest.raises(Unavailable, match=f"{HOST}:2"):
        await GrpcIssuer(servers, None).enrol("t", "n1", "csr")
    with pytest.raises(Unavailable, match="No server is named"):
        await GrpcIssuer((), None).enrol("t", "n1", "csr")


@pytest.mark.spec("AUTH-9")
async def test_the_time_is_signed_for_the_node_of_the_certificate(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = await cluster.enrolled(tmp_path)
    checker = GrantChecker("n1", SystemClock(), SIGNER.public_keys)
    async with cluster.dial(node) as channel:
        stub: Any = AgentIdentityServiceStub(channel)
        answer = await stub.TellTime(pb.TellTimeRequest(nonce="0a" * 32), timeout=10)
        told = checker.read_time(answer.signed)
        assert (told.place, told.nonce) == ("n1", "0a" * 32)
        assert abs(told.time_ms / 1000 - SystemClock().now().timestamp()) < 5
        for nonsense in ("", "0" * 63, "0" * 65, "lattice grant 1"):
            with pytest.raises(aio.AioRpcError, match="nothing that a helper drew"):
                await stub.TellTime(pb.TellTimeRequest(nonce=nonsense), timeout=10)
