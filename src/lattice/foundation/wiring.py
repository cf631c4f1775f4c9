"""What a feature offers on the listeners of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from grpc import aio

from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding
from lattice.base.reload import Reload
from lattice.base.supervisor import Loop
from lattice.wire.guard import GuardedRoutes


def _nothing(*_: Any) -> None:
    """Offers nothing."""


async def _at_once() -> None:
    """There is nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Operations, and what is no plain operation: WebSockets, byte streams and texts."""

    bindings: tuple[AnyBinding, ...] = ()
    offer: Callable[[GuardedRoutes[Actor], aio.Server], None] = _nothing
    """Adds the feature's own routes and rpcs on the listeners for people."""
    offer_agents: Callable[[aio.Server], None] = _nothing
    """Adds the feature's rpcs on the listener for agents."""
    reloads: tuple[Reload, ...] = ()
    """Called when a section of the configuration has changed at run time."""
    loops: tuple[Loop, ...] = ()
    """Background loops that run while the feature is offered."""
    close: Callable[[], Awaitable[None]] = _at_once
    """Called when the feature is no longer offered."""
