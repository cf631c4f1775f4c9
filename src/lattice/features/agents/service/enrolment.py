"""Certificates for nodes: the first for a token, later ones for the current certificate.

Everybody who reaches the server can call enrolment. So each address has a rate limit, and all have
one together. An invalid token costs one lookup and gets one answer, whether it is wrong, used,
expired or another node's. The commit that uses a token expects it unused, so of two concurrent
calls one succeeds.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol, TypeAlias

import msgspec

from lattice.access.actor import Actor
from lattice.access.limits import Buckets
from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, RateLimited, Unavailable, UsageError
from lattice.domain.nodeset import NodeSet
from lattice.domain.peer import BadName, Issued, PeerIdentity, checked_name
from lattice.domain.state import Change, Delete, Expect, Put, StateStore
from lattice.features.agents.model import ClusterStatement, Credentials, Enrolment
from lattice.features.agents.service.records import (
    CERTIFICATE,
    ENROLMENTS,
    REVOKED,
    BadTrustRecord,
    Certificate,
    EnrolmentToken,
    Revocation,
    at,
    is_spent,
    next_generation,
    read,
    token_key,
    with_signed,
    with_used,
    written,
)
from lattice.features.agents.service.trust import TrustedNodes, in_quarantine, node_named

_log = logging.getLogger("lattice.agents")
Network: TypeAlias = IPv4Network | IPv6Network
DEFAULT_TTL_S = 3600
_SHORTEST_S, _LONGEST_S = 60, 7 * 86400
_TOKEN_BYTES = 32
_LONGEST_TOKEN = 256
_KIND = "enrol"
_PER_MINUTE = 600
"""For one address: 10 a second, and a minute's worth at once, for nodes behind one gateway."""
_ALL_PER_MINUTE = 12_000
_MOST_ADDRESSES = 20_000
_IPV6_SITE = 64
"""Who has one address of such a network has them all."""
_SWEPT_AT_ONCE = 50
_MOST_NODES = 20_000
_LONGEST_AGAIN_S = 366 * 86400
_TRIES = 8


class EnrolmentPace:
    """Limits enrolments of each network address, and those of all together.

    The first limit is far below the second, so a flood from one address leaves room for others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets = Buckets(_MOST_ADDRESSES)
        self._all = Buckets(1)

    def take(self, address: str) -> None:
        """Permit one enrolment; raises `RateLimited` with the seconds to wait."""
        now = self._clock.monotonic()
        sender = _sender(address)
        own = self._buckets.take(sender, _KIND, _PER_MINUTE, now)
        if not own.granted:
            raise _too_many(f"Too many enrolments from {sender or 'here'}.", own.wait_s)
        overall = self._all.take("", _KIND, _ALL_PER_MINUTE, now)
        if not overall.granted:
            raise _too_many("Too many enrolments at once.", overall.wait_s)


class NodeAuthority(Protocol):
    """Signs certificates for the cluster and has the bundle that nodes trust."""

    @property
    def cluster(self) -> str: ...

    @property
    def bundle(self) -> bytes: ...

    def sign_node(
        self,
        csr_pem: bytes,
        node: str,
        lifetime: timedelta,
        *,
        after: datetime | None = None,
        generation: int = 0,
    ) -> Issued: ...

    def sign_statement(self, statement: bytes) -> bytes: ...


class EnrolmentService:
    """Makes tokens and certificates. `grant_keys` and `replicas` go to each node with them."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        authority: NodeAuthority,
        trust: TrustedNodes,
        store: StateStore,
        clock: Clock,
        *,
        lifetime: timedelta,
        grant_keys: Iterable[bytes],
        replicas: Callable[[], tuple[str, ...]],
        development_token: str | None = None,
        join_key: Callable[[str], str] = lambda _token: "",
    ) -> None:
        """`join_key` returns the line with which a node enrols by a token."""
        self._authority = authority
        self._trust = trust
        self._store = store
        self._clock = clock
        self._lifetime = lifetime
        self._grant_keys = tuple(each.hex() for each in grant_keys)
        self._replicas = replicas
        self._development = _digest(development_token) if development_token else None
        self._join_key = join_key
        self._pace = EnrolmentPace(clock)

    async def create(
        self,
        actor: Actor,
        node: str,
        ttl_s: int = 0,
        *,
        again: bool = False,
        networks: Sequence[str] = (),
    ) -> Enrolment:
        """Make a token for one node, or for each of a set of nodes.

        Each may use it once, with `again` at each boot, from one of `networks` if there are any.
        Only the answer has the token; the store has its digest.
        """
        _check_nodes(node)
        allowed = tuple(str(each) for each in _networks(networks))
        ttl_s = ttl_s or DEFAULT_TTL_S
        longest_s, text = (_LONGEST_AGAIN_S, "a year") if again else (_LONGEST_S, "a week")
        if not _SHORTEST_S <= ttl_s <= longest_s:
            raise UsageError(
                f"Such a token lives from a minute to {text}.", hint="Such as --for 1h."
            )
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        expires = self._clock.now().timestamp() + ttl_s
        record = EnrolmentToken(
            node=node, expires=expires, by=actor.sub, again=again, networks=allowed
        )
        key = token_key(token)
        swept = await self._spent()
        await self._store.commit([Expect(key, 0)], [Put(key, written(record)), *swept])
        _log.info("enrolment made", extra={"node": node, "by": actor.sub, "life_s": ttl_s})
        return Enrolment(
            node=node, token=token, expires=at(expires), join_key=self._join_key(token)
        )

    async def _spent(self) -> list[Delete]:
        """Expired tokens to delete, at most 50; each new token removes some."""
        now = self._clock.now().timestamp()
        gone = []
        for entry in (await self._store.list(ENROLMENTS)).entries:
            try:
                over = read(entry.value, EnrolmentToken).expires <= now
            except BadTrustRecord:
                over = True
            if over:
                gone.append(Delete(entry.key))
        return gone[:_SWEPT_AT_ONCE]

    async def enrol(self, token: str, node: str, csr: str, address: str = "") -> Credentials:
        """Sign a first certificate for a token and delete the token. Raises `PermissionRefused`.

        `address` is the caller's, empty if it is unknown.
        """
        self._pace.take(address)
        if self._is_development(token):
            return await self._enrol_in_development(node, csr)
        key = token_key(token[:_LONGEST_TOKEN])
        entry = await self._store.get(key)
        record = self._holding(entry.value if entry else None, node)
        if entry is None or record is None or not _is_from(address, record.networks):
            raise _refused(node, address)
        expect: list[Expect] = [Expect(key, entry.revision)]
        changes: list[Change] = []
        if record.node == node and not record.again:
            changes.append(Delete(key))
        elif not record.again:
            # The token stays for the other nodes; this one has used it.
            mark = f"{key}/{node}"
            if await self._store.get(mark) is not None:
                raise _refused(node)
            expect.append(Expect(mark, 0))
            changes.append(Put(mark, written(record)))
        issued = await self._sign_first(node, csr, expect, changes)
        if issued is None:
            raise _refused(node)
        _log.info(
            "agent enrolled",
            extra={"node": node, "by": record.by, "serial": f"{issued.serial:x}"},
        )
        return self._credentials(node, issued)

    def _holding(self, value: bytes | None, node: str) -> EnrolmentToken | None:
        try:
            record = read(value or b"", EnrolmentToken)
            checked_name(node)
        except (BadTrustRecord, BadName):
            return None
        if record.expires <= self._clock.now().timestamp():
            return None
        return record if node in _nodes_of(record.node) else None

    async def _sign_first(
        self, node: str, csr: str, expect: Sequence[Expect], changes: Sequence[Change]
    ) -> Issued | None:
        """Sign a certificate and commit it with `changes`; None if all 8 commits fail."""
        key = CERTIFICATE + node
        for _ in range(_TRIES):
            entry = await self._store.get(key)
            try:
                record = read(entry.value, Certificate) if entry else None
            except BadTrustRecord:
                record = None
            after = await self._revoked(node)
            issued, signed = self._sign(node, csr, record, after)
            held = Expect(key, entry.revision if entry else 0)
            if await self._store.commit([*expect, held], [*changes, Put(key, written(signed))]):
                return issued
        return None

    async def _revoked(self, node: str) -> datetime | None:
        # Read from the store itself: the cache may not have a new revocation yet.
        entry = await self._store.get(REVOKED + node)
        try:
            return at(read(entry.value, Revocation).at) if entry else None
        except BadTrustRecord:
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
            csr.encode(), node, self._lifetime, after=after, generation=generation
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
        """Sign a further certificate for a trusted node. Works without the state store.

        A spent certificate is refused and puts its node in quarantine: two parties then hold
        certificates of it.
        """
        self._trust.admit(peer)
        node = peer.name
        if peer.spiffe_id:
            # Its SVID lives for an hour or so; a certificate from here could outlive its entry.
            raise PermissionRefused(
                f"{node} has a SPIFFE ID: SPIRE renews its certificate.",
                hint=f"For one of the cluster's own: lattice admin enrol {node}.",
            )
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

    def describe(self, peer: PeerIdentity, nonce: str) -> tuple[bytes, bytes]:
        """A statement of whom the node should trust, and the authority's signature."""
        self._trust.admit(peer)
        statement = msgspec.json.encode(
            ClusterStatement(
                cluster=self._authority.cluster,
                node=peer.name,
                nonce=nonce,
                authorities=self._authority.bundle.decode(),
                grant_keys=self._grant_keys,
                replicas=self._replicas(),
            )
        )
        return statement, self._authority.sign_statement(statement)

    async def _is_noted(self, node: str, revision: int | None, signed: Certificate) -> bool:
        """False if the record changed meanwhile; the caller then discards the certificate."""
        reason = "the state is away"
        if revision is not None:
            key = CERTIFICATE + node
            put = Put(key, written(signed))
            try:
                return await self._store.commit([Expect(key, revision)], [put]) is not None
            except Unavailable as error:
                reason = error.message
        # The list shows the certificate before; the node must still get its renewal.
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


def _nodes_of(text: str) -> NodeSet:
    try:
        found = NodeSet.parse(text, limit=_MOST_NODES)
    except ValueError as fault:
        raise UsageError(
            f"{text[:80]!r} names no nodes: {fault}.", hint="Such as n[1-500]."
        ) from None
    return found


def _networks(texts: Iterable[str]) -> Iterator[Network]:
    for text in texts:
        try:
            yield ip_network(text)
        except ValueError as fault:
            raise UsageError(
                f"{text[:80]!r} is no network: {str(fault)[:120]}.", hint="Such as 10.1.0.0/16."
            ) from None


def _plain(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address)
    except ValueError:
        return None
    # A listener for both families shows IPv4 in a form of IPv6.
    return getattr(found, "ipv4_mapped", None) or found


def _sender(address: str) -> str:
    """The address, or the network of an IPv6 address; empty if it is unknown."""
    found = _plain(address)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found) >> _IPV6_SITE << _IPV6_SITE, _IPV6_SITE)))
    return str(found or "")


def _too_many(text: str, wait_s: float) -> RateLimited:
    after_s = max(1, math.ceil(wait_s))
    return RateLimited(text, hint=f"Try again in {after_s} s.", retry_after_s=after_s)


def _is_from(address: str, networks: Sequence[str]) -> bool:
    if not networks:
        return True
    plain = _plain(address)
    return plain is not None and any(plain in ip_network(each) for each in networks)


def _check_nodes(text: str) -> None:
    nodes = list(_nodes_of(text))
    if not nodes:
        raise UsageError("No node is named.", hint="Such as n1, or n[1-500].")
    for each in nodes:
        node_named(each)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _elsewhere(node: str) -> Unavailable:
    return Unavailable(
        f"{node} gets a certificate from another server just now.",
        hint="Try again in a few seconds; an agent does so by itself.",
    )


def _refused(node: str, address: str = "") -> PermissionRefused:
    _log.warning("enrolment refused", extra={"node": node[:64], "address": address})
    return PermissionRefused(
        "The enrolment token is not accepted.",
        hint="It may be mistyped, used, expired, another node's or for another network. "
        "A new one: lattice admin enrol NODE",
    )
