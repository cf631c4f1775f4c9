"""Requests certificates from servers: the first with a token, renewals with the current one.

Enrolment uses the port for people, renewal the agents' port. Each address is tried once, in order.
A server that answers with a refusal ends the search.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

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

M = TypeVar("M")

_TIMEOUT_S = 15.0


class GrpcIssuer:
    """Issues by the servers. `servers` are their ports for people, where enrolment is.

    Raises `LatticeError`; `Unavailable` if no server could be reached.
    """

    def __init__(self, servers: Sequence[str], authorities: Path | None, ca: str = "") -> None:
        """`authorities` is a file; `ca` has the same as text and is used if there is none."""
        self._servers = tuple(servers)
        self._authorities = authorities
        self._ca = ca.encode()

    async def enrol(self, token: str, node: str, csr: str) -> Credentials:
        request = pb.EnrolRequest(token=token, node=node, csr=csr)
        found = await _first(
            self._servers,
            self._people,
            lambda channel: AgentServiceStub(channel).Enrol(request, timeout=_TIMEOUT_S),
        )
        return value_of(found, Credentials)

    def _people(self, address: str) -> aio.Channel:
        if self._authorities is None and not self._ca and _is_loopback(address):
            return aio.insecure_channel(address)
        try:
            roots = self._authorities.read_bytes() if self._authorities else self._ca or None
        except OSError as error:
            raise ConfigurationError(f"{self._authorities}: {error.strerror}") from None
        return aio.secure_channel(address, grpc.ssl_channel_credentials(roots))

    async def renew(
        self, identity: StoredIdentity, replicas: Sequence[str], csr: str
    ) -> Credentials:
        request = pb.RenewRequest(csr=csr)
        credentials, options = dial_terms(identity)
        found = await _first(
            replicas,
            lambda address: aio.secure_channel(address, credentials, options),
            lambda channel: AgentIdentityServiceStub(channel).Renew(request, timeout=_TIMEOUT_S),
        )
        return value_of(found, Credentials)

    async def describe(
        self, identity: StoredIdentity, replicas: Sequence[str], nonce: str
    ) -> tuple[bytes, bytes]:
        """A server's statement for this nonce, and its signature; neither is checked here."""
        request = pb.DescribeClusterRequest(nonce=nonce)
        credentials, options = dial_terms(identity)
        found = await _first(
            replicas,
            lambda address: aio.secure_channel(address, credentials, options),
            lambda channel: AgentIdentityServiceStub(channel).DescribeCluster(
                request, timeout=_TIMEOUT_S
            ),
        )
        return found.statement.encode(), found.signature


def dial_terms(
    identity: StoredIdentity,
) -> tuple[grpc.ChannelCredentials, tuple[tuple[str, str], ...]]:
    """Credentials and options for dialling the agents' listener of any replica."""
    credentials = grpc.ssl_channel_credentials(
        identity.authorities.encode(), identity.key.encode(), identity.certificate.encode()
    )
    return credentials, (("grpc.ssl_target_name_override", server_name(identity.peer.cluster)),)


async def _first(
    addresses: Sequence[str],
    dial: Callable[[str], aio.Channel],
    ask: Callable[[Any], Awaitable[M]],
) -> M:
    failure: LatticeError = Unavailable(
        "No server is named.", hint="Name one: --quorum-endpoint https://HOST:50051."
    )
    for address in addresses:
        try:
            async with dial(address) as channel:
                return await ask(channel)
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
