"""A client of the SPIFFE Workload API, which a SPIRE agent serves on each node.

Each call is a stream: its first message comes at once, and a further one with each change. Every
message replaces the one before it. The API is local, so there is no TLS; the header shows the API
that the caller means it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from lattice.adapters.spiffe.der import BadDer, certificates_pem, key_pem
from lattice.adapters.spiffe.wire import workload_pb2 as pb
from lattice.adapters.spiffe.wire.workload_pb2_grpc import SpiffeWorkloadAPIStub
from lattice.base.errors import ConfigurationError, LatticeError, Unavailable
from lattice.domain.spiffe import domain_id
from lattice.wire.carriers import EOF
from lattice.wire.dial_reasons import dial_reason

_HEADER = (("workload.spiffe.io", "true"),)
_FIRST_S = 5.0
"""For the first message; the API sends it without delay."""
_MOST_SVIDS = 64
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Svid:
    """One certificate of the caller with its key, in PEM; intermediate authorities follow it."""

    spiffe_id: str
    certificate: str
    key: str = field(repr=False)


class WorkloadApi:
    """The API at one address: `unix:/PATH`, or an address and a port."""

    def __init__(self, address: str, *, first_s: float = _FIRST_S) -> None:
        self.address = address
        self._first_s = first_s

    async def svids(self) -> AsyncGenerator[tuple[Svid, ...], None]:
        """The caller's certificates, and again with each change. Ends by raising `LatticeError`.

        `Unavailable` if another try may help.
        """
        request = pb.X509SVIDRequest()
        async with aclosing(self._stream("FetchX509SVID", request)) as messages:
            async for message in messages:
                yield self._read(message)

    async def bundles(self, domain: str) -> AsyncGenerator[str, None]:
        """The authorities of a trust domain in PEM, and again with each change.

        Ends by raising `LatticeError`.
        """
        request = pb.X509BundlesRequest()
        async with aclosing(self._stream("FetchX509Bundles", request)) as messages:
            async for message in messages:
                found = message.bundles.get(domain_id(domain), b"")
                if not found:
                    raise Unavailable(f"{self.address} has no authorities of {domain}.")
                try:
                    yield certificates_pem(found)
                except BadDer as fault:
                    raise Unavailable(f"{self.address}: the bundle of {domain}: {fault}") from None

    def _read(self, message: pb.X509SVIDResponse) -> tuple[Svid, ...]:
        found = []
        for each in message.svids[:_MOST_SVIDS]:
            try:
                certificate, key = certificates_pem(each.x509_svid), key_pem(each.x509_svid_key)
            except BadDer as fault:
                raise Unavailable(f"{self.address} sent an unusable SVID: {fault}.") from None
            found.append(Svid(spiffe_id=each.spiffe_id, certificate=certificate, key=key))
        return tuple(found)

    async def _stream(self, method: str, request: Any) -> AsyncGenerator[Any, None]:
        # A connection that is never answered ends with its call, and not 15 seconds later.
        options = (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", round(self._first_s * 1000)))
        async with aio.insecure_channel(self.address, options) as channel:
            call = getattr(SpiffeWorkloadAPIStub(channel), method)(request, metadata=_HEADER)
            limit_s: float | None = self._first_s
            try:
                while True:
                    async with asyncio.timeout(limit_s):
                        message = await call.read()
                    if message is EOF:
                        raise Unavailable(f"{self.address}: the stream ended.")
                    limit_s = None
                    yield message
            except TimeoutError:
                raise Unavailable(f"{self.address}: no answer in time.") from None
            except aio.AioRpcError as error:
                raise self._error(error) from None
            finally:
                call.cancel()

    def _error(self, error: aio.AioRpcError) -> LatticeError:
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return Unavailable(
                "SPIRE has no identity for this process.",
                hint="Register an entry for it (spire-server entry create), with its user or unit.",
            )
        if error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}:
            return ConfigurationError(
                f"{self.address} does not serve the SPIFFE Workload API.",
                hint="Name SPIRE's socket for workloads, not that of its administration.",
            )
        reason = dial_reason(error.details() or error.code().name)
        return Unavailable(f"{self.address}: {reason.text}.", hint=reason.hint or None)
