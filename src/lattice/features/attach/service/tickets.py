"""Tickets for browsers: one opens one WebSocket to one allocation, once, within 30 s.

The state store has them by their hash, so every server accepts them and none twice: deleting the
key uses the ticket. A ticket has the actor of its request, and ends with that caller's token at the
latest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta

import msgspec

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired, RateLimited, Unavailable
from lattice.domain.state import Delete, Entry, Expect, StateStore
from lattice.features.attach.model import TICKET_TTL_S
from lattice.features.attach.sessions import AttachTicket

TICKETS = "attach/tickets/"
_TICKET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_TICKETS = 10_000
_MOST_OF_CALLER = 20
_MOST_SWEPT = 100


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    until: float
    actor: Actor


class AttachTickets:
    """Issues and redeems tickets."""

    def __init__(self, finder: AllocationFinder, state: StateStore, clock: Clock) -> None:
        self._finder = finder
        self._state = state
        self._clock = clock

    async def issue(self, actor: Actor, name: str) -> AttachTicket:
        """A ticket for an allocation of the caller's. Raises as the finder does."""
        await self._finder.find(actor, Permission.ATTACH_ALLOCATION, name)
        await self._sweep(actor)
        ticket = secrets.token_hex(32)
        expires = (self._clock.now() + timedelta(seconds=TICKET_TTL_S)).replace(microsecond=0)
        written = _Written(name=name, until=expires.timestamp(), actor=actor)
        await self._state.put(_key(ticket), msgspec.json.encode(written))
        return AttachTicket(ticket=ticket, expires=expires)

    async def redeem(self, ticket: str, name: str) -> Actor:
        """Use a ticket and return its actor. Raises one `LoginRequired` for every fault."""
        if not _TICKET.fullmatch(ticket):
            raise _refused()
        key = _key(ticket)
        entry = await self._state.get(key)
        if entry is None:
            raise _refused()
        used = await self._state.commit([Expect(key, entry.revision)], [Delete(key)])
        written = _read(entry)
        if written is None:
            raise _refused()
        now = self._clock.now()
        expires = written.actor.expires
        if (
            used is None
            or written.name != name
            or written.until <= now.timestamp()
            or (expires is not None and expires <= now)
        ):
            raise _refused()
        return written.actor

    async def _sweep(self, actor: Actor) -> None:
        """Delete expired tickets. Raises if too many are unused."""
        entries = (await self._state.list(TICKETS)).entries
        now = self._clock.now().timestamp()
        valid, over = [], []
        for entry in entries:
            ticket = _read(entry)
            if ticket is not None and ticket.until > now:
                valid.append(ticket)
            else:
                over.append(entry)
        for entry in over[:_MOST_SWEPT]:
            await self._state.commit([Expect(entry.key, entry.revision)], [Delete(entry.key)])
        if sum(each.actor.sub == actor.sub for each in valid) >= _MOST_OF_CALLER:
            raise RateLimited(
                f"You have {_MOST_OF_CALLER} tickets that were not used.",
                hint="Use one, or wait until they end.",
                retry_after_s=int(TICKET_TTL_S),
            )
        if len(valid) >= _MOST_TICKETS:
            raise Unavailable("Too many tickets are out.", hint="Try again in a minute.")


def _read(entry: Entry) -> _Written | None:
    try:
        return msgspec.json.decode(entry.value, type=_Written)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _key(ticket: str) -> str:
    return TICKETS + hashlib.sha256(ticket.encode()).hexdigest()


def _refused() -> LoginRequired:
    return LoginRequired("The ticket was not accepted.", hint="Ask for a new one.")
