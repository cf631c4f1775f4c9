"""Whom the cluster believes: asked before every call of a node, changed by administrators.

Reading is from a cached copy of the agreed state, so that it costs nothing and goes on while the
store is away: a revocation can't be made in that time, so none is missed. Before there is a first
copy nobody is admitted. A replica can't be revoked: it holds the authority's key, so what ends
its trust is another authority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.moment import age
from lattice.domain.node import AgentLink
from lattice.domain.peer import BadName, PeerIdentity, PeerKind, checked_name
from lattice.domain.presence import PresenceReading, Presences
from lattice.domain.state import Delete, Expect, Put, StateStore, StateView
from lattice.features.agents.model import Agent, AgentList
from lattice.features.agents.service.records import (
    CERTIFICATE,
    QUARANTINE,
    REVOKED,
    TRUST,
    BadRecord,
    Certificate,
    Quarantine,
    R,
    Revocation,
    at,
    read,
    written,
)

_log = logging.getLogger("lattice.agents")
_LONGEST_REASON = 200
_REMEMBERED_S = 600.0


def node_named(name: str) -> str:
    """The name if a certificate can carry it; raises `UsageError`."""
    try:
        return checked_name(name)
    except BadName as fault:
        raise UsageError(f"{fault}.", hint="`lattice nodes` lists the nodes.") from None


class TrustedNodes:
    """Says who may speak. `view` is a copy of the keys under `trust/`."""

    def __init__(
        self,
        cluster: str,
        store: StateStore,
        view: StateView,
        clock: Clock,
        presences: Presences | None = None,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._view = view
        self._clock = clock
        self._presences = presences
        self._suspects: dict[str, tuple[float, str]] = {}

    def admit(self, peer: PeerIdentity) -> None:
        """Return if this certificate is believed now, else raise `PermissionRefused`.

        TLS has shown that the authority signed it and that it was valid when the connection was
        made; this looks again at each call. Streams that are open outlive their certificate: what
        ends them is `watch`.
        """
        if peer.cluster != self._cluster:
            raise PermissionRefused("The certificate is that of another cluster.")
        gone_s = (self._clock.now() - peer.not_after).total_seconds()
        if gone_s > 0:
            raise PermissionRefused(
                f"{peer.kind.value} certificate expired {age(gone_s)} ago; "
                f"admin: lattice admin enrol {peer.name}"
            )
        if peer.kind is PeerKind.NODE:
            self._admit_node(peer)

    def _admit_node(self, peer: PeerIdentity) -> None:
        revoked = self.revoked_at(peer.name)
        if revoked is not None and peer.not_before <= revoked:
            raise PermissionRefused(
                f"node certificate revoked; admin: lattice admin enrol {peer.name}"
            )
        if self._in_quarantine(peer.name):
            raise PermissionRefused(
                f"{peer.name} is in quarantine; admin: lattice admin restore {peer.name}"
            )

    def revoked_at(self, node: str) -> datetime | None:
        """Up to when its certificates are refused, as last read. Raises `Unavailable`."""
        record = self._record(REVOKED + node, Revocation)
        return at(record.at) if record else None

    def _in_quarantine(self, node: str) -> bool:
        since_s, _ = self._suspects.get(node, (-_REMEMBERED_S, ""))
        if self._clock.monotonic() - since_s < _REMEMBERED_S:
            return True
        return QUARANTINE + node in self._view.entries

    def refused_now(self, node: str) -> bool:
        """True if the node was revoked or is in quarantine, whatever its certificate."""
        return self.revoked_at(node) is not None or self._in_quarantine(node)

    async def quarantine(self, node: str, why: str) -> None:
        """Believe the node no more until an administrator has looked. Does not raise.

        Where the store is away, this replica remembers by itself for a while.
        """
        _log.warning("node in quarantine", extra={"node": node, "reason": why})
        self._suspects[node] = (self._clock.monotonic(), why)
        record = Quarantine(at=self._clock.now().timestamp(), why=why[:_LONGEST_REASON])
        key = QUARANTINE + node
        try:
            await self._store.commit([Expect(key, 0)], [Put(key, written(record))])
            await self._view.refresh()
        except Unavailable as error:
            _log.error("quarantine not agreed", extra={"node": node, "reason": error.message})
            return
        del self._suspects[node]

    async def watch(self, lost: Callable[[str], None]) -> None:
        """Tell of each node as it is revoked or put in quarantine, until cancelled.

        Its open links and streams are to end; one with a newer certificate dials again at once.
        """
        async with self._view.changes() as batches:
            async for batch in batches:
                for change in batch:
                    _, kind, node = change.key.split("/", 2)
                    if change.entry is not None and f"{TRUST}{kind}/" in {REVOKED, QUARANTINE}:
                        lost(node)

    async def revoke(self, actor: Actor, node: str, reason: str) -> Agent:
        """Refuse every certificate the node has now; a new enrolment is needed."""
        node_named(node)
        if not reason.strip():
            raise UsageError("A revocation needs a reason.", hint="Add --reason TEXT.")
        now = self._clock.now()
        record = Revocation(at=now.timestamp(), by=actor.sub, reason=reason[:_LONGEST_REASON])
        await self._store.put(REVOKED + node, written(record))
        _log.warning("agent revoked", extra={"node": node, "by": actor.sub, "reason": reason})
        await self._view.refresh()
        return self._agent(node, self._reading())

    async def restore(self, actor: Actor, node: str) -> Agent:
        """Take back a revocation and a quarantine: certificates that still live hold again."""
        node_named(node)
        keys = (REVOKED + node, QUARANTINE + node)
        if node not in self._suspects and not [k for k in keys if await self._store.get(k)]:
            raise NotFound(f"{node} is neither revoked nor in quarantine.")
        await self._store.commit([], [Delete(each) for each in keys])
        self._suspects.pop(node, None)
        _log.warning("agent restored", extra={"node": node, "by": actor.sub})
        await self._view.refresh()
        return self._agent(node, self._reading())

    async def agents(self) -> AgentList:
        """Every node that was ever certified, seen or refused."""
        reading = self._reading()
        names = {
            key.removeprefix(prefix)
            for key in self._view.entries
            for prefix in (REVOKED, QUARANTINE, CERTIFICATE)
            if key.startswith(prefix)
        }
        names |= self._suspects.keys() | (reading.records.keys() if reading else set())
        sources = (self._view.source, *((reading.source,) if reading else ()))
        agents = tuple(self._agent(name, reading) for name in sorted(names))
        return AgentList(agents=agents, sources=tuple(dict.fromkeys(sources)))

    def _reading(self) -> PresenceReading | None:
        return self._presences.presences() if self._presences else None

    def _agent(self, node: str, reading: PresenceReading | None) -> Agent:
        revoked = self._record(REVOKED + node, Revocation)
        quarantine = self._record(QUARANTINE + node, Quarantine)
        certificate = self._record(CERTIFICATE + node, Certificate)
        presence = reading.records.get(node) if reading else None
        link = reading.links.get(node) if reading else None
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
            quarantined=at(quarantine.at) if quarantine else None,
            quarantine=quarantine.why if quarantine else self._suspects.get(node, (0, ""))[1],
        )

    def _record(self, key: str, kind: type[R]) -> R | None:
        entry = self._view.entries.get(key)
        if entry is None:
            return None
        try:
            return read(entry.value, kind)
        except BadRecord:
            # What can't be read must not become a reason to believe: it stands as if made now.
            _log.error("record can't be read", extra={"key": key})
            now = self._clock.now().timestamp()
            if kind is Revocation:
                return kind(at=now, by="", reason="the record can't be read")
            return None
