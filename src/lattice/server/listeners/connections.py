"""Counts open connections of a listener, in all and by address, and refuses excess ones.

A connection is counted from `accept` to the close of its socket. That includes one that never
finishes its TLS handshake, one that became a WebSocket, and one that failed half-way. Behind a
proxy every connection has the proxy's address.

`lattice.server.listeners.bounded_http` limits how long a connection may be silent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lattice.base.address import Address

_log = logging.getLogger("lattice.connections")

MOST = 8192
"""About 40 KiB each: 320 MiB at worst."""
MOST_PER_ADDRESS = 4096
"""Twice the 2 000 viewers that may share one login node, and half of all."""
_RESERVED_DESCRIPTORS = 512
"""For engines, agents, files and the gRPC listener."""
_REFUSED_AT_ONCE = 64
_ACCEPTED_AT_ONCE = 64
_PAUSE_S = 1.0
_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What the machine lacks when it can't accept; it passes."""
_LOG_EVERY_S = 10.0
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections may be open at once."""

    in_all: int = MOST
    per_address: int = MOST_PER_ADDRESS


class Connections:
    """The connections that are open now. Used by one event loop, so it needs no lock."""

    def __init__(
        self, limits: ConnectionLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._by_address: Counter[str] = Counter()
        self._logged_s = float("-inf")
        self.open = 0
        self.refused_total = 0

    def enter(self, address: str) -> bool:
        """Count one more from this address; False if that exceeds a limit."""
        if self.open >= self._limits.in_all:
            self._refuse(address, "all", self._limits.in_all)
            return False
        if self._by_address[address] >= self._limits.per_address:
            self._refuse(address, "its address", self._limits.per_address)
            return False
        self.open += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """One from this address is closed."""
        self.open -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def of(self, address: str) -> int:
        """The number of open connections of this address."""
        return self._by_address.get(address, 0)

    def _refuse(self, address: str, what: str, limit: int) -> None:
        self.refused_total += 1
        now_s = self._monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            # A line for each would make an attack worse.
            self._logged_s = now_s
            _log.warning(
                "connection refused: the limit of %s is reached",
                what,
                extra={"address": address, "limit": limit, "refused": self.refused_total},
            )


class CountedSocket(socket.socket):
    """An accepted connection that is counted until it is closed."""

    def __init__(self, accepted: socket.socket, address: str, connections: Connections) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self._address = address
        self._connections: Connections | None = connections

    def close(self) -> None:
        """Close it, and uncount it once."""
        super().close()
        self._leave()

    def detach(self) -> int:
        """Uncount it, too: uvloop detaches a socket where asyncio closes it."""
        descriptor = super().detach()
        self._leave()
        return descriptor

    def _leave(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.leave(self._address)


class CountedListener(socket.socket):
    """A listening socket that returns counted connections, and closes excess ones."""

    def __init__(self, address: Address, connections: Connections) -> None:
        """Raises `OSError` if the address can't be used."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection within the limits. Raises `BlockingIOError` if there is none."""
        for _ in range(_REFUSED_AT_ONCE):
            accepted, peer = super().accept()
            host = peer[0] if isinstance(peer, tuple) else ""
            if self._connections.enter(host):
                return CountedSocket(accepted, host, self._connections), peer
            accepted.close()
        # The selector fires again: a flood of connections must not hold the loop.
        raise BlockingIOError


class AcceptingServer:
    """Serves the connections of a listener, from its creation on, until `close`.

    `loop.create_server` of uvloop accepts connections itself, so nobody could count them.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        """`context` makes the TLS of each connection; None: plain text."""
        self._listener = listener
        self._protocol = protocol
        self._context = context
        self._handshake_s = handshake_s if context else None
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _LACKS:
                    raise
                _log.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted), name="accept")
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
            )
        except (OSError, TimeoutError) as error:
            # The loop has closed it. Anybody may fail a handshake as often as they like.
            _log.debug("connection not made: %s", error)

    def close(self) -> None:
        """Accept no more. Open connections stay."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once, as there is nothing to wait for."""


def fitting(limits: ConnectionLimits, others: int = 0) -> ConnectionLimits:
    """The limits that the process can serve; raises its limit of open files where allowed.

    `others` is the number of connections that another listener may have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.in_all + others + _RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = max(16, soft - others - _RESERVED_DESCRIPTORS)
    _log.warning(
        "fewer connections than configured: raise the limit of open files (LimitNOFILE)",
        extra={"connections": most, "open_files": soft},
    )
    return ConnectionLimits(most, min(most, limits.per_address))
