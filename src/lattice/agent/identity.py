"""The node's identity while the agent runs: it is renewed in time, without interruption.

Each dial requests the credentials again. So new connections use a new certificate, and open ones
continue with theirs. Each renewal uses a new key, which never leaves the node.

A new certificate is used only after it is on disk. Its first use makes the previous one invalid. An
agent that restarted with an invalid one would put its node in quarantine.

An identity from SPIRE is never on disk, and SPIRE rotates it. Servers are asked once an hour whom
to trust, so that the authority and the keys of grants can be exchanged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import grpc

from lattice.access.grants import GrantChecker
from lattice.agent.identity_cascade import Cascade, expired
from lattice.agent.identity_issuer import GrpcIssuer, dial_terms
from lattice.agent.identity_spire import SPIRE, SpireIdentity
from lattice.agent.identity_store import (
    MADE_ELSEWHERE,
    IdentityRefused,
    IdentityStore,
    StoredIdentity,
)
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.domain.peer import server_name
from lattice.wire.lane import LaneIdentity

_log = logging.getLogger("lattice.agent.identity")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0
_CHECK_EVERY_S = 30.0
_JITTER = 0.1
_DESCRIBE_EVERY_S = 3600.0
_LATE = 5 / 6
"""SPIRE renews a certificate at half of its life. So much later it does not any more."""
_NOT_STORED = (MADE_ELSEWHERE, SPIRE)


class AgentIdentity:
    """The identity of this node. `checker` gets the grant keys that come with a certificate.

    `replicas` are the configured listeners for agents; those that a server named come first.
    """

    def __init__(
        self,
        cascade: Cascade,
        store: IdentityStore,
        issuer: GrpcIssuer,
        clock: Clock,
        *,
        checker: GrantChecker | None = None,
        replicas: Sequence[str] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._cascade = cascade
        self._store = store
        self._issuer = issuer
        self._clock = clock
        self._checker = checker
        self._replicas = tuple(replicas)
        self._spire = cascade.spire
        self._sleep = sleep
        self._chance = chance
        self._held: StoredIdentity | None = None
        self._stamp = store.stamp()
        self._renew_at: datetime | None = None
        self._changed = asyncio.Event()
        self._reload: asyncio.Task[bool] | None = None
        self.generation = 0
        """Increases with each new certificate."""

    @property
    def held(self) -> StoredIdentity:
        """The identity in force. Available after `obtain` has returned."""
        assert self._held is not None, "no identity was obtained yet"
        return self._held

    @property
    def replicas(self) -> tuple[str, ...]:
        """The addresses of the listeners for agents, preferred ones first."""
        return tuple(dict.fromkeys((*self.held.replicas, *self._replicas)))

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one dial."""
        return dial_terms(self.held)[0]

    def channel_options(self) -> tuple[tuple[str, str], ...]:
        """The name that the other end must prove: that of a replica of this cluster."""
        return dial_terms(self.held)[1]

    def lane_identity(self) -> LaneIdentity:
        """For one dial of a lane."""
        found = self.held
        return LaneIdentity(
            found.key.encode(), found.certificate.encode(), found.authorities.encode()
        )

    def server_name(self) -> str:
        """The same name, for a dial without gRPC."""
        return server_name(self.held.peer.cluster)

    async def wait_changed(self) -> None:
        """Return at the next change of the identity, or of the data that comes with it."""
        await self._changed.wait()

    async def obtain(self) -> None:
        """Try the cascade until it gives an identity. Raises `NoIdentity`.

        Waits without a limit if only a server's answer is missing.
        """
        pause_s, logged = _FIRST_PAUSE_S, ""
        while True:
            try:
                found = await self._cascade.obtain()
            except Unavailable as error:
                # A server may be away for hours: the same reason is one line.
                if logged != error.message:
                    todo = {"hint": error.hint} if error.hint else {}
                    _log.warning("no identity yet", extra={"reason": error.message, **todo})
                logged = error.message
            else:
                self._adopt(found)
                return
            await self._sleep(pause_s * (1 + self._chance()))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def learned(self, replicas: Iterable[str]) -> None:
        """Store the replicas that a server named at the start of a link.

        Grant keys are not taken from there: a replica's certificate alone must not be able to set
        them.
        """
        news = replace(self.held, replicas=tuple(replicas) or self.held.replicas)
        if news != self._held:
            if news.origin not in _NOT_STORED:
                # A bootstrap identity has no grant keys: stored as our own, it would never get
                # them. One of SPIRE is not ours to store.
                self._keep(news)
            self._adopt(news, same_certificate=True)

    def doubt(self) -> None:
        """A server refused the certificate: request another now, with a token if one was given."""
        self._renew_at = self._clock.now()

    def reload_soon(self) -> None:
        """Read the file again, as after SIGHUP."""
        if self._reload is None or self._reload.done():
            self._reload = asyncio.ensure_future(self.reload())

    async def reload(self) -> bool:
        """Read the file again; False if it can't be used."""
        if self._held is None:
            return False
        if self._held.origin == SPIRE:
            self.doubt()
            return True
        stamp = self._stamp = self._store.stamp()
        try:
            found = await asyncio.to_thread(self._store.load)
            fault = expired(found, self._clock) if found else "there is none"
        except (IdentityRefused, Unavailable) as error:
            found, fault = None, error.message
        if self._stamp != stamp:
            # A renewal came meanwhile, and what was read may be older.
            return True
        if found is None or fault:
            _log.error("identity not read again, the old stays", extra={"reason": fault})
            return False
        if found.certificate != self.held.certificate:
            self._adopt(found)
        return True

    async def run(self) -> None:
        """Renew in time, and reload the file when it changes, until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            due_s = self._due_s()
            if due_s > 0:
                await self._sleep(min(due_s, _CHECK_EVERY_S))
                if self._store.stamp() != self._stamp and self.held.origin != SPIRE:
                    await self.reload()
                continue
            if await self._renewed():
                pause_s = _FIRST_PAUSE_S
                continue
            await self._sleep(pause_s * (1 + self._chance()))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def follow_spire(self) -> None:
        """Use each certificate that SPIRE makes, until cancelled. Returns if there is no SPIRE."""
        if self._spire is None:
            return
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for found in self._spire.updates():
                    await self._rotated(self._spire, found)
                    self._spire.note_success()
                    pause_s = _FIRST_PAUSE_S
            except LatticeError as error:
                self._spire.note_failure(error)
            await self._sleep(pause_s * (1 + self._chance()))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _rotated(self, spire: SpireIdentity, found: StoredIdentity) -> None:
        held = self.held
        if found.certificate == held.certificate:
            return
        if held.origin == SPIRE and held.peer.spiffe_id == found.peer.spiffe_id:
            self._adopt(_with_facts(found, held))
        else:
            # Servers may refuse this one: what works now stays until they accept it.
            self._adopt(await spire.described(found, self.replicas))
        _log.info("certificate from SPIRE", extra={"until": found.peer.not_after.isoformat()})

    def _due_s(self) -> float:
        assert self._renew_at is not None
        return (self._renew_at - self._clock.now()).total_seconds()

    async def _renewed(self) -> bool:
        fault = expired(self.held, self._clock)
        try:
            if fault:
                _log.error(fault)
                # It can't be renewed any more; there may be a new token or new files.
                self._adopt(await self._cascade.obtain())
                return True
            if self._spire is not None and self.held.origin == SPIRE:
                await self._describe(self._spire)
                return True
            key, csr = await asyncio.to_thread(self._store.new_request)
            found = await self._asked(key, csr)
        except LatticeError as error:
            _log.warning("certificate not renewed", extra={"reason": error.message})
            return False
        if not self._keep(found):
            # Using it would invalidate the one on disk, which a restart would load.
            return False
        self._adopt(found)
        _log.info("certificate renewed", extra={"until": found.peer.not_after.isoformat()})
        return True

    async def _describe(self, spire: SpireIdentity) -> None:
        """Ask a server whom to trust; if SPIRE is late or it refuses, use the cascade."""
        asked = self.held
        peer = asked.peer
        late = peer.not_before + (peer.not_after - peer.not_before) * _LATE
        if self._clock.now() >= late:
            self._adopt(await self._cascade.obtain())
            return
        try:
            found = await spire.described(asked, self.replicas)
        except PermissionRefused as refusal:
            _log.error("certificate refused", extra={"reason": refusal.message})
            self._adopt(await self._cascade.obtain(with_tokens_alone=True))
            return
        # SPIRE may have rotated the certificate meanwhile.
        self._adopt(_with_facts(self.held, found) if self.held.origin == SPIRE else self.held)

    async def _asked(self, key: str, csr: str) -> StoredIdentity:
        try:
            given = await self._issuer.renew(self.held, self.replicas, csr)
        except PermissionRefused as refusal:
            _log.error("certificate refused", extra={"reason": refusal.message})
            return await self._cascade.obtain(with_tokens_alone=True)
        known = self.held.authorities
        return await asyncio.to_thread(self._store.held, given, key, "renewal", believed=known)

    def _keep(self, found: StoredIdentity) -> bool:
        try:
            self._store.save(found)
        except IdentityRefused as error:
            _log.error("identity not kept, the old stays", extra={"reason": error.message})
            return False
        finally:
            self._stamp = self._store.stamp()
        return True

    def _adopt(self, found: StoredIdentity, *, same_certificate: bool = False) -> None:
        if self._held is None or self._held.certificate != found.certificate:
            self.generation += 1
        self._held = found
        self._stamp = self._store.stamp()
        self._believe(found.grant_keys)
        if not same_certificate:
            self._renew_at = self._moment_to_renew(found)
        self._changed.set()
        self._changed = asyncio.Event()

    def _believe(self, grant_keys: tuple[bytes, ...]) -> None:
        if self._checker is None or not grant_keys:
            return
        try:
            self._checker.trust(grant_keys)
        except ValueError:
            _log.error("keys of grants can't be read, the old stay")

    def _moment_to_renew(self, found: StoredIdentity) -> datetime:
        now = self._clock.now()
        if found.origin == MADE_ELSEWHERE:
            # It may be valid for years and shared by all nodes, so get our own soon.
            return now + timedelta(seconds=5 * self._chance())
        lifetime = found.peer.not_after - found.peer.not_before
        if found.origin == SPIRE:
            late_s = (found.peer.not_before + lifetime * _LATE - now).total_seconds()
            wait_s = min(_DESCRIBE_EVERY_S * (1 - _JITTER * self._chance()), late_s)
            return now + timedelta(seconds=max(wait_s, _CHECK_EVERY_S))
        return found.peer.not_before + lifetime * (2 / 3 - _JITTER * self._chance())


def _with_facts(identity: StoredIdentity, source: StoredIdentity) -> StoredIdentity:
    """The identity with what the other one has of the cluster."""
    return replace(
        identity,
        authorities=source.authorities,
        grant_keys=source.grant_keys,
        replicas=source.replicas,
    )
