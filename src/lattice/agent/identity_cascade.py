"""Gets a node's identity from the first of five steps that has one.

SPIRE               From the SPIFFE Workload API of this node.
own certificate     In the state folder, from an earlier run.
enrolment token     One-time, from an administrator.
bootstrap files     Certificate, key and authorities made elsewhere.
development token   LATTICE_AGENT_TOKEN, which the server accepts only on loopback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lattice.agent.config import AgentSettings
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_spire import SPIRE, SpireIdentity
from lattice.agent.identity_store import (
    MADE_ELSEWHERE,
    IdentityRefused,
    IdentityStore,
    StoredIdentity,
)
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, LatticeError, RateLimited, Unavailable
from lattice.base.moment import age

_log = logging.getLogger("lattice.agent.identity")


class NoIdentity(ConfigurationError):
    """No step gave an identity; `problems` has the reason for each."""


class _Nothing(Exception):
    """This step has no identity; the text is the reason."""


class Cascade:
    """Tries the steps once for each call."""

    def __init__(
        self,
        settings: AgentSettings,
        store: IdentityStore,
        issuer: GrpcIssuer,
        clock: Clock,
        spire: SpireIdentity | None = None,
    ) -> None:
        self.spire = spire
        """The reader for SPIRE, if the node has it."""
        self._settings = settings
        self._store = store
        self._issuer = issuer
        self._clock = clock

    async def obtain(
        self, *, with_tokens_alone: bool = False, from_servers_alone: bool = False
    ) -> StoredIdentity:
        """The first identity; the log has the reasons of the steps before it.

        `with_tokens_alone`: skip what servers have refused. `from_servers_alone`: skip the
        identities on disk. Raises `NoIdentity`, or `Unavailable` if SPIRE or a server that could
        not be reached might help.
        """
        reasons: list[str] = []
        asked_in_vain: LatticeError | None = None
        for name, step in self._steps():
            is_fresh = name.endswith("token") or (from_servers_alone and name == SPIRE)
            if (with_tokens_alone or from_servers_alone) and not is_fresh:
                continue
            try:
                found = await step()
            except _Nothing as nothing:
                reasons.append(f"{name}: {nothing}")
            except (Unavailable, RateLimited) as error:
                asked_in_vain = error
                reasons.append(f"{name}: {error.message}")
            except LatticeError as error:
                reasons.append(f"{name}: {error.message}")
            else:
                _log.info("identity found", extra={"step": name, "not_before_it": reasons})
                return found
        if asked_in_vain is not None:
            raise Unavailable(f"No identity yet: {asked_in_vain.message}", hint=asked_in_vain.hint)
        raise NoIdentity(
            f"{self._settings.node} has no identity.",
            hint=f"admin: lattice admin enrol {self._settings.node}",
            problems=tuple(reasons),
        )

    def _steps(self) -> tuple[tuple[str, Callable[[], Awaitable[StoredIdentity]]], ...]:
        return (
            (SPIRE, self._from_spire),
            ("own certificate", self._own),
            ("enrolment token", self._enrol),
            (MADE_ELSEWHERE, self._bootstrap),
            ("development token", self._development),
        )

    async def _from_spire(self) -> StoredIdentity:
        if self.spire is None:
            raise _Nothing("no SPIRE socket")
        return await self.spire.obtain(self._settings.link_to)

    async def _own(self) -> StoredIdentity:
        stored = await asyncio.to_thread(self._store.load)
        if stored is None:
            raise _Nothing(f"none in {self._store.path.parent}")
        return self._living(stored)

    async def _enrol(self) -> StoredIdentity:
        token = self._settings.enrol_token
        if not token and self._settings.config.enrol_token_file is not None:
            try:
                token = self._settings.config.enrol_token_file.read_text().strip()
            except OSError as error:
                raise _Nothing(f"{error.filename}: {error.strerror}") from None
        if not token and self._settings.join is not None:
            token = self._settings.join.token
        if not token:
            raise _Nothing("none given")
        return await self._with(token, "enrolment token")

    async def _bootstrap(self) -> StoredIdentity:
        named = self._settings.config.bootstrap
        if not (named.cert and named.key and named.ca):
            raise _Nothing("certificate, key and authorities are not all named")
        found = await asyncio.to_thread(
            self._store.held_from_files, named.cert, named.key, named.ca
        )
        return self._living(found)

    async def _development(self) -> StoredIdentity:
        if not self._settings.agent_token:
            raise _Nothing("LATTICE_AGENT_TOKEN is not set")
        _log.warning("LATTICE_AGENT_TOKEN is for development")
        return await self._with(self._settings.agent_token, "development token")

    async def _with(self, token: str, origin: str) -> StoredIdentity:
        # A token is good once, so nothing may fail after it was used.
        await asyncio.to_thread(self._store.check_folder)
        key, csr = await asyncio.to_thread(self._store.new_request)
        given = await self._issuer.enrol(token, self._settings.node, csr)
        found = await asyncio.to_thread(self._store.held, given, key, origin)
        self._store.save(found)
        return found

    def _living(self, found: StoredIdentity) -> StoredIdentity:
        fault = expired(found, self._clock)
        if fault:
            raise IdentityRefused(fault)
        return found


def expired(identity: StoredIdentity, clock: Clock) -> str:
    """The message for an expired certificate, or an empty string."""
    gone_s = (clock.now() - identity.peer.not_after).total_seconds()
    if gone_s < 0:
        return ""
    node = identity.peer.name
    if identity.origin == SPIRE:
        return f"the SVID of {node} expired {age(gone_s)} ago; check SPIRE's agent on this node"
    return f"node certificate expired {age(gone_s)} ago; admin: lattice admin enrol {node}"
