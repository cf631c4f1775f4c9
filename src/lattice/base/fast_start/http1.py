"""One HTTP/1.1 exchange on its own connection, for short commands that make one or two.

It is not a general client. It follows no redirects, keeps no connections and asks for no
compression. Everything it reads is bounded in size and time. `http.client` would do the same, but
it imports the whole e-mail parser, which takes longer than the exchange.

The grammar is strict where two parsers could disagree: a proxy on the way may have read the same
bytes differently. So it allows no folded lines, no lone line feeds, no second length and no codings
that were not requested. It is fuzzed against h11 (`tests/fuzz/targets/http1.py`).
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias
from urllib.parse import SplitResult, urlsplit

from lattice.base.errors import ConfigurationError
from lattice.base.fast_start.connector import (
    BadReply,
    Connector,
    Unreached,
    ascii_name,
    bracketed,
    status_of_line,
)

BodyLength: TypeAlias = int | Literal["chunked", "until the end"]
_BREAK = re.compile(r"[\0\n\v\f\r]")
_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
# A longer number is no real length, and Python refuses to convert thousands of digits.
_LENGTH = re.compile(r"[0-9]{1,20}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,20})[ \t]*(?:;[^\n]*)?")
_HEAD_LIMIT_BYTES = 64 * 1024
_CHUNK_LINE_LIMIT_BYTES = 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 64 * 1024
CONNECT_S = 3.0
"""How long to wait for one address."""


class Reply(NamedTuple):
    """A complete reply. Header names are in lower case; the last of repeated headers counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamedReply:
    """A reply with a body that is read as it comes. `with` closes the connection."""

    def __init__(
        self, status: int, headers: Mapping[str, str], stream: _Stream, connection: socket.socket
    ) -> None:
        self.status = status
        self.headers = headers
        self._stream = stream
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises `BadReply` if it is cut short, `TimeoutError` after a long silence."""
        yield from _pieces(self._stream, body_length("GET", self.status, self.headers))

    def taken_over(self) -> tuple[socket.socket, bytes]:
        """The connection itself, for another protocol, and its bytes that were already read."""
        return self._connection, self._stream.left()

    def body(self) -> bytes:
        """A short body, such as that of an error; at most about 64 KiB of it."""
        pieces, size = [], 0
        for piece in self.pieces():
            size += len(piece)
            if size > _HEAD_LIMIT_BYTES:
                break
            pieces.append(piece)
        return b"".join(pieces)


class TrustContext(ssl.SSLContext):
    """A context that may trust the system's authorities by their folder alone."""

    bundle_unread = False
    """True if the system's bundle was not read. It has 130 authorities, which takes 60 ms."""

    def trust_system(self) -> None:
        """Trust the folder if it is indexed: OpenSSL then reads only the authority it needs."""
        folder = ssl.get_default_verify_paths().capath
        if folder and not os.environ.get("SSL_CERT_FILE") and _is_indexed(folder):
            self.load_verify_locations(capath=folder)
            self.bundle_unread = True
        else:
            self.load_default_certs()

    def read_bundle(self) -> bool:
        """Trust the bundle too, which a site may have changed alone. False if it did already."""
        if not self.bundle_unread:
            return False
        self.bundle_unread = False
        self.load_default_certs()
        return True


def _is_indexed(folder: str) -> bool:
    """True if it has a file that is named by the hash of an authority."""
    try:
        with os.scandir(folder) as files:
            return any(each.name[8:9] == "." and each.name[9:].isdigit() for each in files)
    except OSError:
        return False


def tls_context(
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    *,
    system_too: bool = False,
    whole: bool = False,
) -> TrustContext:
    """A context that always verifies: by `ca` alone if given, unless `system_too`.

    `whole` reads the system's bundle at once, for callers that do not use `HttpTarget`.
    """
    context = TrustContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca:
            context.load_verify_locations(cafile=ca)
        if not ca or system_too:
            context.trust_system()
        if whole:
            context.read_bundle()
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        what = f"client certificate {cert}" if ca is None or cert else f"certificates in {ca}"
        raise ConfigurationError(
            f"Can't read the {what}: {error.strerror or error}",
            hint="Set `ca`, `client_cert` and `client_key` to readable PEM files.",
        ) from None
    return context


class HttpTarget:
    """How to reach servers: which authorities to trust, which proxy to use, how long to wait."""

    def __init__(
        self,
        *,
        context: TrustContext | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = CONNECT_S,
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._connector = Connector(self._trust, environment or {}, timeout_s=connect_timeout_s)

    def connect(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Connection:
        """A connection to the first of several servers that answers, for one request.

        `meanwhile` is called once, while a server is about to answer. If this raises `Unreached`,
        nothing was sent to any of them.
        """
        deadline = time.monotonic() + (timeout_s or self._timeout_s)
        try:
            url, connection = self._connector.connect(urls, deadline, meanwhile=meanwhile)
        except Unreached as error:
            is_untrusted = isinstance(error.last, ssl.SSLCertVerificationError)
            if not is_untrusted or self._context is None or not self._context.read_bundle():
                raise
            url, connection = self._connector.connect(urls, deadline)
        return Connection(url, connection, deadline)

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        most_bytes: int = BODY_LIMIT_BYTES,
    ) -> Reply:
        """Send one request and read the whole reply; raises any kind of `OSError`.

        A body of more than `most_bytes` raises `BadReply`.
        """
        try:
            connection = self.connect((url,))
        except Unreached as error:
            raise error.last from None
        return connection.exchange(method, url, headers, body, most_bytes=most_bytes)

    def _trust(self) -> TrustContext:
        if self._context is None:
            self._context = tls_context()
        return self._context


class Connection:
    """A connection to one server, for one request. The caller uses it or closes it."""

    def __init__(self, url: str, raw: socket.socket, deadline: float) -> None:
        self.url = url
        """Which of the servers it is, as the caller named it."""
        self._raw = raw
        self._deadline = deadline

    def close(self) -> None:
        """Close the connection without a request."""
        self._raw.close()

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        most_bytes: int = BODY_LIMIT_BYTES,
    ) -> Reply:
        """Send the request and read the whole reply; raises any kind of `OSError`."""
        with self._raw:
            self._raw.sendall(_request(method, urlsplit(url), headers, body))
            return _read(_Stream(self._raw, self._deadline), method, most_bytes)

    def stream(self, url: str, headers: Mapping[str, str], *, silence_s: float) -> StreamedReply:
        """The head must come before the deadline; later a silence of `silence_s` is allowed."""
        reply, stream = self._begin(url, headers)
        stream.allow(silence_s)
        return reply

    def upgrade(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> StreamedReply:
        """Request another protocol. `meanwhile` is called after the request was sent.

        The caller takes the connection over if the status is 101, and closes it otherwise.
        """
        return self._begin(url, headers, switching=True, meanwhile=meanwhile)[0]

    def _begin(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        switching: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[StreamedReply, _Stream]:
        try:
            self._raw.sendall(_request("GET", urlsplit(url), headers, b""))
            if meanwhile is not None:
                meanwhile()
            stream = _Stream(self._raw, self._deadline)
            status, found = stream.head(switching=switching)
        except BaseException:
            self._raw.close()
            raise
        return StreamedReply(status, found, stream, self._raw), stream


def _request(method: str, target: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    host = bracketed(ascii_name(target.hostname or "").decode())
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}:{target.port}" if target.port else f"Host: {host}",
        *(["Accept: application/json"] if "Accept" not in headers else []),
        "Accept-Encoding: identity",
        *(["Connection: close"] if "Connection" not in headers else []),
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise BadReply("a header holds a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class _Stream:
    """The bytes of a connection, read in pieces and never past the deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._silence_s: float | None = None
        self._held = b""

    def allow(self, silence_s: float) -> None:
        """From now on only a silence ends it, and no deadline."""
        self._silence_s = silence_s

    def left(self) -> bytes:
        """Bytes that were read but not consumed. Reads nothing."""
        held, self._held = self._held, b""
        return held

    def more(self) -> bytes:
        """Bytes that were read but not consumed, or else the next piece; empty at the end."""
        if self._held:
            held, self._held = self._held, b""
            return held
        left = self._silence_s or self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no complete answer in time")
        self._connection.settimeout(left)
        try:
            return self._connection.recv(_PIECE_BYTES)
        except ssl.SSLEOFError:
            # Closed without a TLS close_notify. The framing decides whether the reply is cut short.
            return b""

    def until(self, mark: bytes, limit: int) -> bytes:
        """Everything before the mark. Raises `BadReply` if that is longer than `limit`."""
        held = b""
        while mark not in held:
            piece = self.more()
            held += piece
            if not piece:
                raise BadReply("the answer is cut short")
            if len(held) >= limit + len(mark) and mark not in held:
                break
        found, _, self._held = held.partition(mark)
        if len(found) > limit:
            raise BadReply("too long a header")
        return found

    def rest(self) -> Iterator[bytes]:
        """Everything, until the server closes the connection."""
        while piece := self.more():
            yield piece

    def exactly(self, size: int) -> Iterator[bytes]:
        """Exactly `size` bytes. Raises `BadReply` if the connection ends before."""
        while size:
            piece = self.more()
            if not piece:
                raise BadReply("the answer is cut short")
            if len(piece) > size:
                piece, self._held = piece[:size], piece[size:]
            size -= len(piece)
            yield piece

    def head(self, *, switching: bool = False) -> tuple[int, dict[str, str]]:
        """Status and headers of the next final reply; 100 to 199 are skipped.

        If another protocol was requested, 101 is final too.
        """
        while True:
            status, headers = read_head(
                self.until(b"\r\n\r\n", _HEAD_LIMIT_BYTES).decode("latin-1")
            )
            if status == 101 and not switching:
                raise BadReply("the server switched to a protocol that was not asked for")
            if status == 101 or status >= 200:
                return status, headers

    def chunks(self) -> Iterator[int]:
        """The size of each chunk. The caller consumes its bytes before it asks for the next."""
        while size := chunk_size(self.until(b"\r\n", _CHUNK_LINE_LIMIT_BYTES)):
            yield size
            if b"".join(self.exactly(2)) != b"\r\n":
                raise BadReply("the answer has a chunk that does not end")


def _read(stream: _Stream, method: str, most_bytes: int) -> Reply:
    status, headers = stream.head()
    length = body_length(method, status, headers)
    if isinstance(length, int) and length > most_bytes:
        raise BadReply("the answer has no sensible length")
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(stream, length):
        size += len(piece)
        if size > most_bytes:
            raise BadReply("the answer is too large")
        pieces.append(piece)
    return Reply(status, headers, b"".join(pieces))


def _pieces(stream: _Stream, length: BodyLength) -> Iterator[bytes]:
    if length == "chunked":
        for size in stream.chunks():
            yield from stream.exactly(size)
    elif length == "until the end":
        yield from stream.rest()
    else:
        yield from stream.exactly(length)


def read_head(text: str) -> tuple[int, dict[str, str]]:
    """Status and headers. Names are in lower case; the last of repeated headers counts.

    Headers that set the length of the body are checked even if they are not used.
    """
    first, *lines = text.split("\r\n")
    status = status_of_line(first)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _BREAK.search(value):
            raise BadReply("the answer has a line that is no header")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length":
            if not _LENGTH.fullmatch(value) or headers.get(name, value) != value:
                raise BadReply("the answer has no sensible length")
        elif name == "transfer-encoding" and (name in headers or value.lower() != "chunked"):
            raise BadReply("the answer has an encoding that was not asked for")
        headers[name] = value
    return status, headers


def body_length(method: str, status: int, headers: Mapping[str, str]) -> BodyLength:
    """The length of the body that follows this head."""
    if method == "HEAD" or status in {204, 304}:
        return 0
    if "transfer-encoding" in headers:
        return "chunked"
    length = headers.get("content-length")
    return "until the end" if length is None else int(length)


def chunk_size(line: bytes) -> int:
    """The size in the line before a chunk; extensions are ignored."""
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise BadReply("the answer has a chunk of no sensible length")
    return int(found[1], 16)
