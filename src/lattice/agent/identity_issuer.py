"""Requests certificates from servers: the first with a token, renewals with the current one.

Enrolment uses the port for people, renewal the agents' port. Each address is tried once, in order.
A server that answers with a refusal ends the search.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc import aio

from lattice.agent.identity_store import StoredIdentity
from lattice.base.errors import ConfigurationError, LatticeError, Unavailable
from lattice.domain.peer import server_name
from lattice.features.agents.model import Credentials
from lattice.wire.convert import value_of
from lattice.wire.status import error_of
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1.agents_pb2_grpc import AgentIdentityServiceStub, AgentServiceStub

_TIMEOUT_S = 15.0


class Issuer(Protocol):
    """Issues certificates. Raises `LatticeError`; `Unavailable` if no server could be reached."""

    async def enrol(self, token: str, node: str, csr: str) -> Credentials: ...

    async def renew(
        self, identity: StoredIdentity, replicas: Sequence[str], csr: str
    ) -> Credentials: ...


class GrpcIssuer:
    """Issues by the servers. `servers` are their ports for people, where enrolment is."""

    def __init__(self, servers: Sequence[str], authorities: Path | None) -> None:
        self._servers = tuple(servers)
        self._authorities = authorities

    async def enrol(self, token: str, node: str, csr: str) -> Credentials:
        request = pb.EnrolRequest(token=token, node=node, csr=csr)

        async def ask(address: str) -> pb.Credentials:
            async with self._people(address) as channel:
                stub: Any = AgentServiceStub(channel)
                answer: pb.Credentials = await stub.Enrol(request, timeout=_TIMEOUT_S)
                return answer

        return value_of(await _first(self._servers, ask), Credentials)

    def _people(self, address: str) -> aio.Channel:
        if self._authorities is None and _is_loopback(address):
            return aio.insecure_channel(address)
        try:
            roots = self._authorities.read_bytes() if self._authorities else None
        except OSError as error:
            raise ConfigurationError(f"{self._authorities}: {error.strerror}") from None
        return aio.secure_channel(address, grpc.ssl_channel_credentials(roots))

    async def renew(
        self, identity: StoredIdentity, replicas: Sequence[str], csr: str
    ) -> Credentials:
        async def ask(address: str) -> pb.Credentials:
            credentials, options = dial_terms(identity)
            async with aio.secure_channel(address, credentials, options) as channel:
                stub: Any = AgentIdentityServiceStub(channel)
                answer: pb.Credentials = await stub.Renew(
                    pb.RenewRequest(csr=csr), timeout=_TIMEOUT_S
                )
                return answer

        return value_of(await _first(replicas, ask), Credentials)


def dial_terms(
    identity: StoredIdentity,
) -> tuple[grpc.ChannelCredentials, tuple[tuple[str, str], ...]]:
    """Credentials and options for dialling the agents' listener of any replica."""
    credentials = grpc.ssl_channel_credentials(
        identity.authorities.encode(), identity.key.encode(), identity.certificate.encode()
    )
    return credentials, (("grpc.ssl_target_name_override", server_name(identity.peer.cluster)),)


async def _first(
    addresses: Sequence[str], ask: Callable[[str], Awaitable[pb.Credentials]]
) -> pb.Credentials:
    failure: LatticeError = Unavailable(
        "No server is named.", hint="Name one: --quorum-endpoint https://HOST:50051."
    )
    for address in addresses:
        try:
            return await ask(address)
        except aio.AioRpcError as error:
            failure = error_of(address, error)
            if not isinstance(failure, Unavailable):
                break
    raise failure


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
