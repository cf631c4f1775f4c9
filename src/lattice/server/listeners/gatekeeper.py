"""Decides on every call: who the caller is, and whether it may make the call. Default deny.

Which check a token failed is only in the server's log, and never reaches the caller.
"""

from __future__ import annotations

from lattice.access.actor import Actor, ClaimNames, Role, actor_from
from lattice.access.current_actor import set_current_actor
from lattice.access.journal import AccessJournal
from lattice.access.locks import refuse_locked, refuse_unknown
from lattice.access.permission import Permission
from lattice.access.policy import ALLOWED, admits, lacking_scopes
from lattice.access.tokens import TokenRefused, TokenVerifier
from lattice.base.errors import LatticeError, LoginRequired, PermissionRefused
from lattice.domain.lock import Locks

NOBODY = Actor(sub="")


class Gatekeeper:
    """Called by the guard before any handler runs, for REST and gRPC alike."""

    def __init__(
        self,
        verifier: TokenVerifier,
        names: ClaimNames,
        journal: AccessJournal,
        locks: Locks,
    ) -> None:
        self._verifier = verifier
        self.names = names
        self._journal = journal
        self._locks = locks

    async def __call__(self, *, rpc: str, permission: str, authorization: str) -> Actor:
        """The verified caller; `NOBODY` if the call is public. Raises errors of the tree."""
        needed = Permission(permission)
        if needed is Permission.PUBLIC:
            self._journal.admitted(rpc)
            return NOBODY
        actor = await self._identify(rpc, authorization)
        if not admits(actor, needed):
            raise self._not_admitted(rpc, actor, needed)
        self._refuse_locked(actor, rpc, needed)
        self._journal.admitted(rpc)
        set_current_actor(actor)
        return actor

    def _refuse_locked(self, actor: Actor, rpc: str, needed: Permission) -> None:
        try:
            refuse_locked(actor, needed, self._locks)
            refuse_unknown(needed, self._locks)
        except LatticeError as refusal:
            self._journal.refused(rpc, actor.sub, refusal.message)
            raise

    def _not_admitted(self, rpc: str, actor: Actor, needed: Permission) -> PermissionRefused:
        if actor.role not in ALLOWED.get(needed, frozenset()):
            self._journal.refused(rpc, actor.sub, f"role {actor.role} lacks {needed}")
            return PermissionRefused(
                f"Your role {actor.role} does not allow this.", hint=_who_may(needed)
            )
        lacking = " ".join(sorted(lacking_scopes(actor, needed)))
        self._journal.refused(rpc, actor.sub, f"scopes lack {lacking}")
        return PermissionRefused(
            f"Your token does not allow this: it lacks {lacking}.",
            hint="Sign in without `allocations:` scopes, or ask for this one too "
            "(`lattice login --scope`). See `lattice whoami`.",
        )

    async def _identify(self, rpc: str, authorization: str) -> Actor:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            token = ""
        if not token and self._verifier.needs_token:
            self._journal.refused(rpc, "", "no token")
            raise LoginRequired("Not logged in.", hint="Run `lattice login` first.")
        try:
            claims = await self._verifier.verify(token.strip())
        except TokenRefused as refusal:
            self._journal.refused(rpc, "", refusal.reason)
            raise
        return actor_from(claims, self.names)


def _who_may(needed: Permission) -> str:
    if not ALLOWED.get(needed):
        return "It is for certificates of nodes and replicas, on a listener of their own."
    roles = ALLOWED.get(needed, frozenset())
    hint = f"It takes one of these roles: {', '.join(sorted(roles))}. See `lattice whoami`."
    if Role.CLAIMING_USER in roles:
        hint += " `lattice login --scope sensitive:claim` asks for the role that claims nodes."
    return hint
