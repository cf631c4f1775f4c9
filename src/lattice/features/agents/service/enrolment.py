"""How a node gets a certificate: once with a token, and then with the one it has.

Enrolment is open to whoever can reach the server, so it says the same to every token that does
not hold (wrong, used, expired, another node's), at the cost of one look, and is held to a rate.
The token is spent by the commit that expects it unspent: of two that race, one wins.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.peer import Issued, PeerIdentity
from lattice.domain.state import Change, Delete, Expect, Put, StateStore
from lattice.features.agents.model import Credentials, Enrolment
from lattice.features.agents.service.bucket import Bucket
from lattice.features.agents.service.records import (
    CERTIFICATE,
    ENROLMENTS,
    REVOKED,
    BadRecord,
    Certificate,
    Revocation,
    Token,
    at,
    read,
    token_key,
    written,
)
from lattice.features.agents.service.trust import TrustedNodes, node_named

_log = logging.getLogger("lattice.agents")
DEFAULT_LIFE_S = 3600
_SHORTEST_S, _LONGEST_S = 60, 7 * 86400
_TOKEN_BYTES = 32
_LONGEST_TOKEN = 256
_PER_S, _BURST = 20.0, 100
_SWEPT_AT_ONCE = 50


class NodeAuthority(Protocol):
    """What signs for the cluster, and what nodes must believe."""

    @property
    def cluster(self) -> str: ...

    @property
    def bundle(self) -> bytes: ...

    def sign_node(
        self, csr_pem: bytes, node: str, life: timedelta, *, after: datetime | None = None
    ) -> Issued: ...


class EnrolmentService:
    """Tokens out, certificates out. `believed` is what a node needs besides its certificate."""

    def __init__(
        self,
        authority: NodeAuthority,
        trust: TrustedNodes,
        store: StateStore,
        clock: Clock,
        *,
        life: timedelta,
        grant_keys: Iterable[bytes],
        replicas: Callable[[], tuple[str, ...]],
        development_token: str | None = None,
    ) -> None:
        self._authority = authority
        self._trust = trust
        self._store = store
        self._clock = clock
        self._life = life
        self._grant_keys = tuple(each.hex() for each in grant_keys)
        self._replicas = replicas
        self._development = _digest(development_token) if development_token else None
        self._bucket = Bucket(_PER_S, _BURST, clock)

    async def create(self, actor: Actor, node: str, life_s: int = 0) -> Enrolment:
        """A token for one node, which is kept nowhere but in the answer."""
        node_named(node)
        life_s = life_s or DEFAULT_LIFE_S
        if not _SHORTEST_S <= life_s <= _LONGEST_S:
            raise UsageError("A token lives from a minute to a week.", hint="Such as --for 1h.")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        expires = self._clock.now().timestamp() + life_s
        record = Token(node=node, expires=expires, by=actor.sub)
        key = token_key(token)
        swept = await self._spent()
        await self._store.commit([Expect(key, 0)], [Put(key, written(record)), *swept])
        _log.info("enrolment made", extra={"node": node, "by": actor.sub, "life_s": life_s})
        return Enrolment(node=node, token=token, expires=at(expires))

    async def _spent(self) -> list[Delete]:
        """Tokens nobody came for in time; each new one takes some of them away."""
        now = self._clock.now().timestamp()
        gone = []
        for entry in (await self._store.list(ENROLMENTS)).entries:
            try:
                over = read(entry.value, Token).expires <= now
            except BadRecord:
                over = True
            if over:
                gone.append(Delete(entry.key))
        return gone[:_SWEPT_AT_ONCE]

    async def enrol(self, token: str, node: str, csr: str) -> Credentials:
        """A first certificate, for whoever holds the token. Spends it."""
        self._bucket.take()
        if self._is_development(token):
            return await self._enrol_in_development(node, csr)
        key = token_key(token[:_LONGEST_TOKEN])
        entry = await self._store.get(key)
        record = self._holding(entry.value if entry else None, node)
        if entry is None or record is None:
            raise _refused(node)
        issued = await self._sign(record.node, csr)
        spent: list[Change] = [Delete(key), _certificate_put(record.node, issued, self._clock)]
        if await self._store.commit([Expect(key, entry.revision)], spent) is None:
            raise _refused(node)
        _log.info(
            "agent enrolled",
            extra={"node": record.node, "by": record.by, "serial": f"{issued.serial:x}"},
        )
        return self._credentials(record.node, issued)

    def _holding(self, value: bytes | None, node: str) -> Token | None:
        try:
            record = read(value or b"", Token)
        except BadRecord:
            return None
        holds = record.expires > self._clock.now().timestamp() and node == record.node
        return record if holds else None

    async def _sign(self, node: str, csr: str) -> Issued:
        # Asked of the store itself: a certificate must not come before a revocation just made.
        entry = await self._store.get(REVOKED + node)
        try:
            after = at(read(entry.value, Revocation).at) if entry else None
        except BadRecord:
            after = self._clock.now()
        return self._authority.sign_node(csr.encode(), node, self._life, after=after)

    def _is_development(self, token: str) -> bool:
        return self._development is not None and hmac.compare_digest(
            _digest(token), self._development
        )

    async def _enrol_in_development(self, node: str, csr: str) -> Credentials:
        node_named(node)
        if self._trust.refused_now(node):
            raise _refused(node)
        issued = await self._sign(node, csr)
        put = _certificate_put(node, issued, self._clock)
        await self._store.commit([], [put])
        _log.warning("agent enrolled with the development token", extra={"node": node})
        return self._credentials(node, issued)

    async def renew(self, peer: PeerIdentity, csr: str) -> Credentials:
        """A further certificate, for a node that is believed now. Works while the store is away."""
        self._trust.admit(peer)
        issued = self._authority.sign_node(
            csr.encode(), peer.name, self._life, after=self._trust.revoked_at(peer.name)
        )
        put = _certificate_put(peer.name, issued, self._clock)
        try:
            await self._store.commit([], [put])
        except Unavailable as error:
            # The list will show the one before; the node must not go without.
            _log.warning("renewal not noted", extra={"node": peer.name, "reason": error.message})
        _log.info("certificate renewed", extra={"node": peer.name, "serial": f"{issued.serial:x}"})
        return self._credentials(peer.name, issued)

    def _credentials(self, node: str, issued: Issued) -> Credentials:
        return Credentials(
            cluster=self._authority.cluster,
            node=node,
            certificate=issued.pem.decode(),
            authorities=self._authority.bundle.decode(),
            grant_keys=self._grant_keys,
            replicas=self._replicas(),
            not_after=issued.not_after,
        )


def _certificate_put(node: str, issued: Issued, clock: Clock) -> Put:
    record = Certificate(
        serial=f"{issued.serial:x}",
        issued=clock.now().timestamp(),
        expires=issued.not_after.timestamp(),
    )
    return Put(CERTIFICATE + node, written(record))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _refused(node: str) -> PermissionRefused:
    _log.warning("enrolment refused", extra={"node": node[:64]})
    return PermissionRefused(
        "The enrolment token is not accepted.",
        hint="It may be mistyped, used, expired or another node's. "
        "A new one: lattice admin enrol NODE",
    )
