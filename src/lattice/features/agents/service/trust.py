"""Which nodes the cluster trusts: checked before every call of a node.

Checks read a cached snapshot of the state store, so they cost little and work while the store is
away. Nobody can revoke a node in that time, so no revocation is missed. Without a first snapshot no
node is admitted. A replica can't be revoked: it holds the authority's key, so only another
authority ends its trust.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from lattice import __version__
from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.moment import age
from lattice.domain.node import UNREPORTED, AgentLink
from lattice.domain.peer import BadName, PeerIdentity, PeerKind, checked_name
from lattice.domain.presence import Presence, PresenceReading, Presences, lacks_of
from lattice.domain.release import agent_fault
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore, StateView
from lattice.features.agents.model import Agent, AgentList
from lattice.features.agents.service.records import (
    CERTIFICATE,
    QUARANTINE,
    REVOKED,
    BadTrustRecord,
    Certificate,
    Quarantine,
    R,
    Revocation,
    at,
    read,
    with_used,
    written,
)

_log = logging.getLogger("lattice.agents")
_LONGEST_REASON = 200
_REMEMBERED_S = 600.0
_TRIES = 5
_NOTE_S = 1.0
_NOTE_AGAIN_S = 10.0
"""A call waits at most 1 s to record a first use; after a failure, 10 s pass before a retry."""


def node_named(name: str) -> str:
    """The name if a certificate can carry it; raises `UsageError`."""
    try:
        return checked_name(name)
    except BadName as fault:
        raise UsageError(f"{fault}.", hint="`lattice nodes` lists the nodes.") from None


def in_quarantine(node: str, *, spent: bool = False) -> PermissionRefused:
    """The error for a node in quarantine, with the commands that end it."""
    text = f"{node} is in quarantine; admin: lattice admin reinstate {node}"
    return PermissionRefused(f"{text}, then lattice admin enrol {node}" if spent else text)


class TrustedNodes:
    """Admits or refuses nodes. `view` is a snapshot of the keys under `trust/`."""

    def __init__(
        self,
        cluster: str,
        store: StateStore,
        view: StateView,
        clock: Clock,
        presences: Presences,
        *,
        version: str = __version__,
    ) -> None:
        """`version` is this server's."""
        self._cluster = cluster
        self._store = store
        self._view = view
        self._clock = clock
        self._presences = presences
        self._version = version
        self._suspects: dict[str, tuple[float, Quarantine]] = {}
        self._noted: dict[str, int] = {}
        """Serials of uses that this replica recorded; its snapshot may not have them yet."""
        self._unnoted: dict[str, tuple[float, PeerIdentity]] = {}
        """Uses that could not be recorded, with the time of the last try."""

    def admit(self, peer: PeerIdentity) -> None:
        """Return if this certificate is trusted now, else raise `PermissionRefused`.

        TLS verified the signature and the dates when the connection began; each call checks again.
        Open streams outlive their certificate; `watch` ends them.
        """
        if peer.cluster != self._cluster:
            raise PermissionRefused("The certificate is that of another cluster.")
        gone_s = (self._clock.now() - peer.not_after).total_seconds()
        if gone_s > 0 and peer.spiffe_id:
            raise PermissionRefused(
                f"the SVID of {peer.name} expired {age(gone_s)} ago",
                hint=f"Check SPIRE's agent on {peer.name}.",
            )
        if gone_s > 0:
            raise PermissionRefused(
                f"{peer.kind.value} certificate expired {age(gone_s)} ago; "
                f"admin: lattice admin enrol {peer.name}"
            )
        if peer.kind is PeerKind.NODE:
            self._admit_node(peer)

    def _admit_node(self, peer: PeerIdentity) -> None:
        revoked = self.revoked_at(peer.name)
        if revoked is not None and peer.spiffe_id:
            # SPIRE makes a new one every half an hour, so their dates end no revocation.
            raise PermissionRefused(
                f"node certificate revoked; admin: lattice admin reinstate {peer.name}"
            )
        if revoked is not None and peer.not_before <= revoked:
            raise PermissionRefused(
                f"node certificate revoked; admin: lattice admin enrol {peer.name}"
            )
        quarantine = self._quarantine_of(peer.name)
        if quarantine is not None:
            raise in_quarantine(peer.name, spent=quarantine.spent)

    def revoked_at(self, node: str) -> datetime | None:
        """Certificates up to this time are refused, by the snapshot. Raises `Unavailable`."""
        record = self._record(REVOKED + node, Revocation)
        return at(record.at) if record else None

    def _quarantine_of(self, node: str) -> Quarantine | None:
        suspect = self._suspects.get(node)
        if suspect is not None and self._clock.monotonic() - suspect[0] < _REMEMBERED_S:
            return suspect[1]
        return self._record(QUARANTINE + node, Quarantine)

    def refused_now(self, node: str) -> bool:
        """True if the node is revoked or in quarantine, for any certificate."""
        return self.revoked_at(node) is not None or self._quarantine_of(node) is not None

    async def certificate(self, node: str) -> tuple[int | None, Certificate | None]:
        """The node's record and its revision, from the store. Raises `PermissionRefused`.

        While the store is away the revision is None. The record then comes from the snapshot, with
        the uses that this replica saw since.
        """
        key = CERTIFICATE + node
        try:
            entry = await self._store.get(key)
        except Unavailable:
            record = self._record(key, Certificate)
            unnoted = self._unnoted.get(node)
            return None, (with_used(record, unnoted[1]) or record) if unnoted else record
        try:
            return (entry.revision, read(entry.value, Certificate)) if entry else (0, None)
        except BadTrustRecord:
            raise PermissionRefused(
                f"the record of {node}'s certificates can't be read; "
                f"admin: lattice admin enrol {node}"
            ) from None

    async def note_use(self, peer: PeerIdentity) -> None:
        """Record that this certificate was used, so that those before it are spent.

        Returns at once if the use is known. Does not raise: while the store is away the node
        continues, and a later call records the use.
        """
        if peer.kind is not PeerKind.NODE or not self._is_first_use(peer):
            return
        try:
            async with asyncio.timeout(_NOTE_S):
                await self._note_use(peer)
        except (Unavailable, PermissionRefused, TimeoutError) as error:
            _, held = self._unnoted.get(peer.name, (0.0, peer))
            newest = max(held, peer, key=lambda each: each.generation)
            self._unnoted[peer.name] = (self._clock.monotonic(), newest)
            _log.warning("use not noted", extra={"node": peer.name, "reason": str(error)})

    def _is_first_use(self, peer: PeerIdentity) -> bool:
        if self._noted.get(peer.name) == peer.serial:
            return False
        if with_used(self._record(CERTIFICATE + peer.name, Certificate), peer) is None:
            return False
        tried_s, _ = self._unnoted.get(peer.name, (-_NOTE_AGAIN_S, peer))
        return self._clock.monotonic() - tried_s >= _NOTE_AGAIN_S

    async def _note_use(self, peer: PeerIdentity) -> None:
        key = CERTIFICATE + peer.name
        for _ in range(_TRIES):
            revision, record = await self.certificate(peer.name)
            if revision is None:
                raise Unavailable("The state is away.")
            news = with_used(record, peer)
            if news is None or await self._store.commit(
                [Expect(key, revision)], [Put(key, written(news))]
            ):
                self._noted[peer.name] = peer.serial
                self._unnoted.pop(peer.name, None)
                return
        raise Unavailable("The record changed at every try.")

    async def quarantine(self, node: str, why: str, *, spent: bool = False) -> None:
        """Refuse the node until an administrator restores it. Does not raise.

        Without the store this replica alone remembers it, for 10 minutes. `spent`: two parties hold
        certificates of the node, so it has to enrol again.
        """
        _log.warning("node in quarantine", extra={"node": node, "reason": why})
        record = Quarantine(
            at=self._clock.now().timestamp(), why=why[:_LONGEST_REASON], spent=spent
        )
        self._suspects[node] = (self._clock.monotonic(), record)
        key = QUARANTINE + node
        try:
            await self._store.commit([Expect(key, 0)], [Put(key, written(record))])
            await self._view.refresh()
        except Unavailable as error:
            _log.error("quarantine not agreed", extra={"node": node, "reason": error.message})
            return
        del self._suspects[node]

    async def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` for each node that is revoked or put in quarantine, until cancelled.

        The caller ends the node's links and streams. An agent with a newer certificate reconnects
        at once.
        """
        async with self._view.changes() as batches:
            async for batch in batches:
                for change in batch:
                    # Ignore other keys: they must not end the watch.
                    for prefix in (REVOKED, QUARANTINE):
                        if change.entry is not None and change.key.startswith(prefix):
                            lost(change.key.removeprefix(prefix))

    async def revoke(self, actor: Actor, node: str, reason: str) -> Agent:
        """Refuse every certificate that the node has now. It must enrol again."""
        node_named(node)
        if not reason.strip():
            raise UsageError("A revocation needs a reason.", hint="Add --reason TEXT.")
        now = self._clock.now()
        record = Revocation(at=now.timestamp(), by=actor.sub, reason=reason[:_LONGEST_REASON])
        await self._store.put(REVOKED + node, written(record))
        _log.warning("agent revoked", extra={"node": node, "by": actor.sub, "reason": reason})
        await self._view.refresh()
        return self._agent(node, self._presences.presences())

    async def restore(self, actor: Actor, node: str, *, repeated: bool = False) -> Agent:
        """Remove a revocation and a quarantine; certificates that did not expire are valid again.

        After a spent certificate was used, nobody can tell which one was stolen. Then the
        quarantine becomes a revocation, and the node enrols again.

        `repeated`: an earlier answer was lost, so there may be nothing to remove.
        """
        node_named(node)
        revoked = await self._store.get(REVOKED + node)
        held = await self._store.get(QUARANTINE + node)
        refused = node in self._suspects or revoked is not None or held is not None
        if not refused and not repeated:
            raise NotFound(f"{node} is neither revoked nor in quarantine.")
        changes: list[Change] = [Delete(QUARANTINE + node), Delete(REVOKED + node)]
        if self._is_spent(node, held):
            reason = f"a spent certificate was used; next: lattice admin enrol {node}"
            record = Revocation(at=self._clock.now().timestamp(), by=actor.sub, reason=reason)
            changes[1] = Put(REVOKED + node, written(record))
        await self._store.commit([], changes)
        self._suspects.pop(node, None)
        _log.warning("agent restored", extra={"node": node, "by": actor.sub})
        await self._view.refresh()
        return self._agent(node, self._presences.presences())

    def _is_spent(self, node: str, held: Entry | None) -> bool:
        if held is None:
            return node in self._suspects and self._suspects[node][1].spent
        try:
            return read(held.value, Quarantine).spent
        except BadTrustRecord:
            return False

    def refused_nodes(self) -> tuple[int, int]:
        """How many nodes are revoked, and how many are in quarantine. Raises `Unavailable`."""
        keys = self._view.entries
        held = {key.removeprefix(QUARANTINE) for key in keys if key.startswith(QUARANTINE)}
        revoked = sum(key.startswith(REVOKED) for key in keys)
        return revoked, len(held | self._suspects.keys())

    def soonest_expiry(self) -> float | None:
        """When the first certificate of a linked node expires. Raises `Unavailable`."""
        records = self._presences.presences().records
        linked = (node for node, each in records.items() if each.linked)
        found = (self._record(CERTIFICATE + node, Certificate) for node in linked)
        return min((each.expires for each in found if each is not None), default=None)

    @property
    def is_current(self) -> bool:
        """True if the snapshot of the agreed state is current."""
        return self._view.source.ok

    async def agents(self) -> AgentList:
        """Every node that ever had a certificate, a link or a refusal."""
        reading = self._presences.presences()
        names = {
            key.removeprefix(prefix)
            for key in self._view.entries
            for prefix in (REVOKED, QUARANTINE, CERTIFICATE)
            if key.startswith(prefix)
        }
        names |= self._suspects.keys() | reading.records.keys()
        agents = tuple(self._agent(name, reading) for name in sorted(names))
        return AgentList(
            agents=agents, sources=tuple(dict.fromkeys((self._view.source, reading.source)))
        )

    def _agent(self, node: str, reading: PresenceReading) -> Agent:
        revoked = self._record(REVOKED + node, Revocation)
        agreed = self._record(QUARANTINE + node, Quarantine)
        quarantine = agreed or self._suspects.get(node, (0.0, None))[1]
        certificate = self._record(CERTIFICATE + node, Certificate)
        presence, link = reading.records.get(node), reading.links.get(node)
        linked = presence is not None and presence.linked
        seen = AgentLink.LINKED if linked else AgentLink.LOST
        return Agent(
            node=node,
            link=seen if presence else AgentLink.NEVER,
            replica=link.replica if link and linked else "",
            since=at(presence.since) if presence else None,
            version=presence.agent_version if presence else "",
            certificate_expires=at(certificate.expires) if certificate else None,
            revoked=at(revoked.at) if revoked else None,
            revoked_by=revoked.by if revoked else "",
            revoked_reason=revoked.reason if revoked else "",
            quarantined=at(agreed.at) if agreed else None,
            quarantine=quarantine.why if quarantine else "",
            lacks=self._lacks(presence, reading) if presence else (),
            facts=presence.health.agent if presence is not None and linked else UNREPORTED,
        )

    def _lacks(self, presence: Presence, reading: PresenceReading) -> tuple[str, ...]:
        found = lacks_of(presence, reading)
        fault = agent_fault(presence.agent_version, self._version) if presence.linked else ""
        return (*found, fault) if fault else found

    def _record(self, key: str, kind: type[R]) -> R | None:
        entry = self._view.get(key)
        if entry is None:
            return None
        try:
            return read(entry.value, kind)
        except BadTrustRecord:
            # An unreadable revocation or quarantine must not restore trust, so it counts as made
            # now.
            _log.error("record can't be read", extra={"key": key})
            now = self._clock.now().timestamp()
            if kind is Revocation:
                return kind(at=now, by="", reason="the record can't be read")
            if kind is Quarantine:
                return kind(at=now, why="the record can't be read")
            return None
