"""Connects to one of several addresses: they are dialled one after another, and the first one wins.

An address that refuses is skipped at once. One that does not answer keeps its chance, but the next
is dialled after a moment. A host that is down drops packets, and the kernel would wait for minutes.
A connection counts once TLS is established, so a frozen process does not win.

All of it happens in one thread that never blocks on one socket. Names are resolved one by one, and
that does block.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from errno import EINPROGRESS
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

STAGGER_S = 0.25
"""How long to wait for an address before the next is dialled too (RFC 8305 has the same)."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEAD_LIMIT_BYTES = 64 * 1024
_STATUS = re.compile(r"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\0\n\v\f\r]*)?")

Steps: TypeAlias = Generator[tuple[socket.socket, int], None, socket.socket]
"""Yields what a connection waits for at each step, and returns the connection."""


class BadReply(OSError):
    """The reply is not HTTP, is cut short or is larger than allowed."""


class Unreached(OSError):
    """No connection could be made, so nothing was sent. `failures` are by address, in order."""

    def __init__(self, failures: Mapping[str, OSError]) -> None:
        super().__init__("; ".join(f"{url}: {reason(each)}" for url, each in failures.items()))
        self.failures = failures

    @property
    def last(self) -> OSError:
        """The failure of the address that failed last."""
        return list(self.failures.values())[-1]


def reason(failure: OSError) -> str:
    if isinstance(failure, ssl.SSLError) and not isinstance(failure, ssl.SSLCertVerificationError):
        if failure.reason in _NO_TLS:
            return "it does not speak TLS on this port"
        why = (failure.reason or "it closed the connection").lower().replace("_", " ")
        return f"the TLS handshake failed ({why}); check the port"
    return failure.strerror or str(failure) or "no answer"


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


class Connector:
    """How to reach servers: which authorities to trust, which proxy to use, how long to wait."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        environment: Mapping[str, str],
        *,
        timeout_s: float,
        stagger_s: float = STAGGER_S,
    ) -> None:
        self._context = context
        self._environment = environment
        self._timeout_s = timeout_s
        self._stagger_s = stagger_s

    def connect(
        self,
        urls: Sequence[str],
        deadline: float,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[str, socket.socket]:
        """The first address that answers, and the connection; raises `Unreached`.

        `meanwhile` is called once, while a server is about to answer. A refused certificate ends
        the race at once, because such a server has not died.
        """
        # A call with a short deadline must not spend all of it on the first address.
        left_s = max(deadline - time.monotonic(), 0.001)
        stagger_s = min(self._stagger_s, left_s / 3)
        race = _Race(self._steps, urls, stagger_s, self._timeout_s, deadline, meanwhile)
        try:
            url, connection = race.run()
        finally:
            race.close()
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        return url, connection

    def _steps(self, url: str, address: _Address | None, more: Callable[..., None]) -> Steps:
        target = urlsplit(url)
        if target.scheme not in {"http", "https"} or not target.hostname:
            raise BadReply(f"{target.geturl()!r} is not an http or https address")
        secure = target.scheme == "https"
        host, port = target.hostname, target.port or (443 if secure else 80)
        proxy = self._proxy(host) if secure else None
        near = urlsplit(proxy) if proxy else target
        if address is None:
            address, *others = _resolved(
                near.hostname or "", (near.port or 3128) if proxy else port
            )
            more(others)
        connection = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            yield from _dialled(connection, address[1])
            if proxy:
                yield from _tunnelled(connection, near, f"{bracketed(host)}:{port}")
            if secure:
                connection = self._context().wrap_socket(
                    connection, server_hostname=ascii_name(host), do_handshake_on_connect=False
                )
                yield from _secured(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _proxy(self, host: str) -> str | None:
        get = self._environment.get
        proxy = get("https_proxy") or get("HTTPS_PROXY")
        if not proxy or host in LOOPBACK:
            return None
        for entry in (get("no_proxy") or get("NO_PROXY") or "").split(","):
            name = entry.strip().lstrip(".")
            if name and (name in {"*", host} or host.endswith("." + name)):
                return None
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        if not proxy.lower().startswith("http://"):
            from lattice.base.errors import ConfigurationError  # noqa: PLC0415 - rarely needed

            # Without the rest of the address, which may have a password.
            kind = proxy.partition("://")[0][:20]
            raise ConfigurationError(
                f"https_proxy names a proxy at {kind}://, and only one at http:// can be used",
                hint="Set https_proxy=http://HOST:PORT. Requests pass through it encrypted. "
                "If no proxy is needed, name the server in no_proxy.",
            )
        return proxy


_Address: TypeAlias = tuple[int, Any]
"""An address family and the argument of `connect` for it."""


class _Attempt(NamedTuple):
    """One address that is being dialled."""

    url: str
    steps: Steps
    deadline: float


class _Race:
    """All attempts for one connection, in one thread."""

    def __init__(
        self,
        steps: Callable[[str, _Address | None, Callable[..., None]], Steps],
        urls: Sequence[str],
        stagger_s: float,
        timeout_s: float,
        deadline: float,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        self._steps = steps
        self._meanwhile = meanwhile
        self._stagger_s = stagger_s
        self._timeout_s = timeout_s
        self._deadline = deadline
        self._waiting: deque[tuple[str, _Address | None]] = deque((url, None) for url in urls)
        self._running: dict[int, _Attempt] = {}
        self._poll = select.poll()
        self._failures: dict[str, OSError] = {}
        self._next_at = 0.0

    def run(self) -> tuple[str, socket.socket]:
        """The winner; raises `Unreached`."""
        while self._waiting or self._running:
            now = time.monotonic()
            self._give_up(now)
            if self._waiting and (not self._running or now >= self._next_at):
                won = self._begin(now)
                if won is not None:
                    return won
                continue
            for descriptor, _ in self._poll.poll(self._wait_ms(now)):
                attempt = self._running.pop(descriptor)
                self._poll.unregister(descriptor)
                connection = self._advance(attempt)
                if connection is not None:
                    return attempt.url, connection
        raise Unreached(self._failures)

    def close(self) -> None:
        """Close all connections that did not win."""
        for attempt in self._running.values():
            attempt.steps.close()

    def _begin(self, now: float) -> tuple[str, socket.socket] | None:
        url, address = self._waiting.popleft()
        self._next_at = now + self._stagger_s

        def more(others: list[_Address]) -> None:
            # Behind the other servers, so that a name with many addresses does not delay them.
            self._waiting.extend((url, each) for each in others)

        steps = self._steps(url, address, more)
        attempt = _Attempt(url, steps, min(now + self._timeout_s, self._deadline))
        connection = self._advance(attempt)
        return None if connection is None else (url, connection)

    def _advance(self, attempt: _Attempt) -> socket.socket | None:
        try:
            connection, events = next(attempt.steps)
        except StopIteration as done:
            found: socket.socket = done.value
            return found
        except OSError as error:
            self._failed(attempt, error)
            if isinstance(error, ssl.SSLCertVerificationError):
                raise Unreached(self._failures) from error
            return None
        self._running[connection.fileno()] = attempt
        self._poll.register(connection.fileno(), events)
        if self._meanwhile is not None and events == select.POLLIN:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return None

    def _failed(self, attempt: _Attempt, error: OSError) -> None:
        self._failures.pop(attempt.url, None)
        self._failures[attempt.url] = error
        self._next_at = 0.0

    def _give_up(self, now: float) -> None:
        for descriptor, attempt in list(self._running.items()):
            if now >= attempt.deadline:
                del self._running[descriptor]
                self._poll.unregister(descriptor)
                attempt.steps.close()
                self._failed(attempt, TimeoutError("timed out"))

    def _wait_ms(self, now: float) -> int:
        moments = [attempt.deadline for attempt in self._running.values()]
        if self._waiting:
            moments.append(self._next_at)
        return max(int((min(moments) - now) * 1000) + 1, 0)


def _resolved(host: str, port: int) -> list[_Address]:
    # Bytes, because text would go through the IDNA codec, which loads large tables.
    found = socket.getaddrinfo(ascii_name(host), port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _dialled(connection: socket.socket, address: Any) -> Iterator[tuple[socket.socket, int]]:
    code = connection.connect_ex(address)
    if code == EINPROGRESS:
        yield connection, select.POLLOUT
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _tunnelled(
    raw: socket.socket, proxy: SplitResult, where: str
) -> Iterator[tuple[socket.socket, int]]:
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if proxy.username:
        from base64 import b64encode  # noqa: PLC0415 - few proxies ask for a name

        secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(secret.encode()).decode()}")
    raw.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        yield raw, select.POLLIN
        try:
            piece = raw.recv(4096)
        except BlockingIOError:
            continue
        head += piece
        if not piece or len(head) > _HEAD_LIMIT_BYTES:
            raise BadReply("the answer is cut short" if not piece else "too long a header")
    status = status_of_line(head.partition(b"\r\n")[0].decode("latin-1"))
    if status != 200:
        raise BadReply(f"the proxy {proxy.hostname} refused the connection ({status})")


def _secured(connection: ssl.SSLSocket) -> Iterator[tuple[socket.socket, int]]:
    while True:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            yield connection, select.POLLIN
        except ssl.SSLWantWriteError:
            yield connection, select.POLLOUT
        else:
            return


def status_of_line(line: str) -> int:
    """The status code in the first line of a reply; raises `BadReply`."""
    found = _STATUS.fullmatch(line)
    if found is None:
        raise BadReply("the answer is not HTTP")
    return int(found[1])


def ascii_name(host: str) -> bytes:
    """The host name in ASCII; IDNA where it has other characters."""
    return host.encode("ascii" if host.isascii() else "idna")


def bracketed(host: str) -> str:
    """The host as a URL writes it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
