"""The node's identity from SPIRE: a certificate (SVID) that SPIRE makes and rotates.

The Workload API gives certificate and key, which stay in memory. A server that accepts them tells
whom to trust. The cluster's authority signs that statement, so a replica's certificate alone can't
name keys of grants. The agent knows the authority from `bootstrap.ca`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from lattice.adapters.spiffe.workload import Svid, WorkloadApi
from lattice.agent.config import AgentSettings
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_store import Certificates, IdentityRefused, StoredIdentity
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.base.moment import age
from lattice.domain.peer import BadName
from lattice.domain.spiffe import NodePath, split_id
from lattice.features.agents.model import ClusterStatement
from lattice.wire.dial_reasons import BROKEN

_log = logging.getLogger("lattice.agent.identity")
SPIRE = "SPIRE"
"""The origin of an identity that SPIRE made, and the name of its step."""


class SvidSource(Protocol):
    """The Workload API."""

    @property
    def address(self) -> str: ...

    def svids(self) -> AsyncGenerator[tuple[Svid, ...], None]:
        """The certificates now, and again with each change. Ends by raising `LatticeError`."""


class SpireIdentity:
    """Reads this node's identity from one Workload API."""

    def __init__(
        self,
        node: str,
        path: NodePath,
        authorities: Path | None,
        api: SvidSource,
        certificates: Certificates,
        issuer: GrpcIssuer,
        clock: Clock,
    ) -> None:
        """`authorities` is the file with the cluster's authority."""
        self._node = node
        self._path = path
        self._authorities = authorities
        self._api = api
        self._certificates = certificates
        self._issuer = issuer
        self._clock = clock
        self._logged = ""

    async def obtain(self, replicas: Sequence[str]) -> StoredIdentity:
        """An identity that a server accepts now. Raises `LatticeError`; the log has it once."""
        try:
            async with aclosing(self._api.svids()) as updates:
                async for svids in updates:
                    found = await self.described(await self._read(svids), replicas)
                    self.note_success()
                    return found
            raise Unavailable(f"{self._api.address} sent nothing.")
        except LatticeError as error:
            self.note_failure(error)
            raise

    async def updates(self) -> AsyncGenerator[StoredIdentity, None]:
        """The certificate now and after each rotation. Ends by raising `LatticeError`.

        Grant keys are missing; `described` gets them.
        """
        async with aclosing(self._api.svids()) as updates:
            async for svids in updates:
                yield await self._read(svids)

    async def described(self, identity: StoredIdentity, replicas: Sequence[str]) -> StoredIdentity:
        """The identity with what a server says of the cluster. Raises `LatticeError`."""
        nonce = secrets.token_hex(32)
        try:
            text, signature = await self._issuer.describe(identity, replicas, nonce)
        except Unavailable as error:
            raise _with_trust_hint(error, identity) from None
        await asyncio.to_thread(
            self._certificates.check_statement, text, signature, identity.authorities
        )
        try:
            found = msgspec.json.decode(text, type=ClusterStatement)
            keys = tuple(bytes.fromhex(each) for each in found.grant_keys)
        except (msgspec.DecodeError, ValueError):
            raise IdentityRefused("the server's statement can't be read") from None
        if (found.node, found.nonce, found.cluster) != (self._node, nonce, identity.peer.cluster):
            raise IdentityRefused("the server's statement is for another question")
        return replace(
            identity, authorities=found.authorities, grant_keys=keys, replicas=found.replicas
        )

    def note_success(self) -> None:
        """The next failure is logged again."""
        self._logged = ""

    def note_failure(self, error: LatticeError) -> None:
        """Log why SPIRE gives no identity; the same reason once."""
        if error.message == self._logged:
            return
        self._logged = error.message
        todo = {"hint": error.hint} if error.hint else {}
        _log.warning("no identity from SPIRE", extra={"reason": error.message, **todo})

    async def _read(self, svids: Sequence[Svid]) -> StoredIdentity:
        svid = self._own(svids)
        authorities = await asyncio.to_thread(self._known_authorities)
        peer, trusted = await asyncio.to_thread(
            self._certificates.read_svid,
            svid.certificate,
            svid.key,
            authorities,
            self._node,
            self._path.template,
        )
        gone_s = (self._clock.now() - peer.not_after).total_seconds()
        if gone_s >= 0:
            raise IdentityRefused(f"the SVID {peer.spiffe_id} expired {age(gone_s)} ago")
        return StoredIdentity(
            peer=peer,
            key=svid.key,
            certificate=svid.certificate,
            authorities=trusted,
            origin=SPIRE,
        )

    def _own(self, svids: Sequence[Svid]) -> Svid:
        wanted, others = self._path.of(self._node), []
        for each in svids:
            try:
                path = split_id(each.spiffe_id)[1]
            except BadName:
                continue
            if path == wanted:
                return each
            others.append(each.spiffe_id[:120])
        given = ", ".join(others[:3]) or "no SVID"
        raise IdentityRefused(
            f"SPIRE gives {given}, and none with the path {wanted}",
            hint="Register that ID for the agent, or set spiffe.path.",
        )

    def _known_authorities(self) -> str:
        if self._authorities is None:
            raise IdentityRefused(
                "bootstrap.ca is not set",
                hint="Name a file with the cluster's authority (identity.ca_cert of the servers).",
            )
        try:
            return self._authorities.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is no PEM"
            raise IdentityRefused(f"{self._authorities}: {why}") from None


def _with_trust_hint(error: Unavailable, identity: StoredIdentity) -> Unavailable:
    """Add what TLS does not report: the server may not trust who signed the certificate."""
    if not error.message.endswith(BROKEN.text):
        return error
    domain, _ = split_id(identity.peer.spiffe_id)
    return Unavailable(
        f"{error.message}; the server may not trust {domain}",
        hint="On the servers, api.spiffe names the trust domain and its authorities.",
    )


def spire_identity(
    settings: AgentSettings, certificates: Certificates, issuer: GrpcIssuer, clock: Clock
) -> SpireIdentity | None:
    """The reader for the configured Workload API; None if there is none."""
    if not settings.spire_address:
        return None
    config = settings.config
    return SpireIdentity(
        settings.node,
        NodePath(config.spiffe.path),
        config.bootstrap.ca,
        WorkloadApi(settings.spire_address),
        certificates,
        issuer,
        clock,
    )
