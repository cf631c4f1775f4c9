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
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.peer import Issued, PeerIdentity
from lattice.domain.state import Change, Delete, Expect, Put, StateStore
from lattice.features.agents.model import Credentials, Enrolment
from lattice.features.agents.service.bucket import Bucket
from lattice.features.agents.service.generations import (
    is_spent,
    next_generation,
    with_signed,
    with_used,
)
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
from lattice.features.agents.service.trust import TrustedNodes, in_quarantine, node_named

_log = logging.getLogger("lattice.agents")
DEFAULT_LIFE_S = 3600
_SHORTEST_S, _LONGEST_S = 60, 7 * 86400
_TOKEN_BYTES = 32
_LONGEST_TOKEN = 256
_PER_S, _BURST = 20.0, 100
_SWEPT_AT_ONCE = 50
_TRIES = 8


class NodeAuthority(Protocol):
    """What signs for the cluster, and what nodes must believe."""

    @property
    def cluster(self) -> str: ...

    @property
    def bundle(self) -> bytes: ...

    def sign_node(
        self,
        csr_pem: bytes,
        node: str,
        life: timedelta,
        *,
        after: datetime | None = None,
        generation: int = 0,
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
        token_held, spent = Expect(key, entry.revision), Delete(key)
        issued = await self._sign_first(record.node, csr, [token_held], [spent])
        if issued is None:
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

    async def _sign_first(
        self, node: str, csr: str, expect: Sequence[Expect], changes: Sequence[Change]
    ) -> Issued | None:
        """A certificate of the next generation, signed with these changes; None if one is late."""
        key = CERTIFICATE + node
        for _ in range(_TRIES):
            entry = await self._store.get(key)
            try:
                record = read(entry.value, Certificate) if entry else None
            except BadRecord:
                record = None
            after = await self._revoked(node)
            issued, signed = self._sign(node, csr, record, after)
            held = Expect(key, entry.revision if entry else 0)
            if await self._store.commit([*expect, held], [*changes, Put(key, written(signed))]):
                return issued
        return None

    async def _revoked(self, node: str) -> datetime | None:
        # Asked of the store itself: a certificate must not come before a revocation just made.
        entry = await self._store.get(REVOKED + node)
        try:
            return at(read(entry.value, Revocation).at) if entry else None
        except BadRecord:
            return self._clock.now()

    def _sign(
        self,
        node: str,
        csr: str,
        record: Certificate | None,
        after: datetime | None,
        peer: PeerIdentity | None = None,
    ) -> tuple[Issued, Certificate]:
        generation = next_generation(record, peer)
        issued = self._authority.sign_node(
            csr.encode(), node, self._life, after=after, generation=generation
        )
        return issued, with_signed(record, issued, generation, self._clock.now().timestamp())

    def _is_development(self, token: str) -> bool:
        return self._development is not None and hmac.compare_digest(
            _digest(token), self._development
        )

    async def _enrol_in_development(self, node: str, csr: str) -> Credentials:
        node_named(node)
        if self._trust.refused_now(node):
            raise _refused(node)
        issued = await self._sign_first(node, csr, (), ())
        if issued is None:
            raise _elsewhere(node)
        _log.warning("agent enrolled with the development token", extra={"node": node})
        return self._credentials(node, issued)

    async def renew(self, peer: PeerIdentity, csr: str) -> Credentials:
        """A further certificate, for a node that is believed now. Works while the store is away.

        One that is spent gets none, and puts its node in quarantine: two hold certificates of it.
        """
        self._trust.admit(peer)
        node = peer.name
        for _ in range(_TRIES):
            revision, record = await self._trust.certificate(node)
            if record is not None and is_spent(record, peer):
                raise await self._quarantined(peer, record)
            used = with_used(record, peer) or record
            after = self._trust.revoked_at(node)
            issued, signed = self._sign(node, csr, used, after, peer)
            if await self._is_noted(node, revision, signed):
                _log.info(
                    "certificate renewed",
                    extra={"node": node, "serial": signed.serial, "generation": signed.generation},
                )
                return self._credentials(node, issued)
        raise _elsewhere(node)

    async def _is_noted(self, node: str, revision: int | None, signed: Certificate) -> bool:
        """False if the record changed meanwhile: what was signed is thrown away."""
        reason = "the state is away"
        if revision is not None:
            key = CERTIFICATE + node
            put = Put(key, written(signed))
            try:
                return await self._store.commit([Expect(key, revision)], [put]) is not None
            except Unavailable as error:
                reason = error.message
        # The list will show the one before; the node must not go without.
        _log.warning("renewal not noted", extra={"node": node, "reason": reason})
        return True

    async def _quarantined(self, peer: PeerIdentity, record: Certificate) -> PermissionRefused:
        why = f"its certificate {peer.generation} asked for another after {record.used} was used"
        await self._trust.quarantine(peer.name, why, spent=True)
        return in_quarantine(peer.name, spent=True)

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


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _elsewhere(node: str) -> Unavailable:
    return Unavailable(
        f"{node} gets a certificate from another server just now.",
        hint="Try again in a few seconds; an agent does so by itself.",
    )


def _refused(node: str) -> PermissionRefused:
    _log.warning("enrolment refused", extra={"node": node[:64]})
    return PermissionRefused(
        "The enrolment token is not accepted.",
        hint="It may be mistyped, used, expired or another node's. "
        "A new one: lattice admin enrol NODE",
    )
