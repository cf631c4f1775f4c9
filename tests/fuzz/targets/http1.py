"""Answers of a hostile HTTP server, held against `h11`.

`Connection.exchange`, `Connection.stream` and h11 read the same bytes to the same status, headers
and body, or all refuse them, whatever the pieces the bytes come in. Nothing but `OSError` is
raised. The answer of a proxy to CONNECT is read without a peer: it only says 200 or not.

Where ours differs on purpose, a rule below is named for it.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import h11

from lattice.base.fast_start.connector import _tunnelled
from lattice.base.fast_start.http1 import Connection

URL = "http://lattice.example/"
_FAR = 1e12
_HEAD_LIMIT_BYTES = 64 * 1024
_METHODS = ("GET", "HEAD", "POST")
TOKENS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 ", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 ", b"204",
    b"304", b"101", b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b"gzip, ", b"\r\n",
    b"\r\n\r\n", b"\r\n ", b"\n\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b";ext=1", b"0x5", b"+5",
    b"1_0", b"Connection: close\r\n", b"\xa0", b"\x0b",
)  # fmt: skip


@dataclass(frozen=True)
class Read:
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """A socket that gives these bytes, in pieces of at most so many, and then ends."""

    def __init__(self, raw: bytes, size: int) -> None:
        self._raw = raw
        self._size = size
        self.at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sendall(self, raw: bytes) -> None:
        pass

    def settimeout(self, left: float) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, most: int) -> bytes:
        piece = self._raw[self.at : self.at + min(self._size, most)]
        self.at += len(piece)
        return piece


def try_one(data: bytes) -> None:
    """The first byte chooses the method and the pieces; the rest comes from the server."""
    first, raw = (data[0], data[1:]) if data else (0, b"")
    method, size = _METHODS[first % 3], first // 3 % 8 + 1
    ours = _exchanged(method, raw, len(raw) + 1)
    assert _exchanged(method, raw, size) == ours, "the pieces make a difference"
    if method == "GET":
        streamed = _streamed(raw, size)
        assert _same(streamed, ours), (streamed, ours)
    _ask_proxy(raw, size)
    theirs = _theirs(method, raw)
    if isinstance(ours, Read) and isinstance(theirs, Read):
        assert ours == theirs
    elif isinstance(ours, Read):
        assert _holds(_LAXER, raw), (ours, theirs)
    elif isinstance(theirs, Read):
        assert _holds(_STRICTER, raw), (ours, theirs)


def _exchanged(method: str, raw: bytes, size: int) -> Read | str:
    wire: Any = Wire(raw, size)
    try:
        found = Connection(URL, wire, _FAR).exchange(method, URL, {})
    except OSError as refusal:
        return str(refusal)
    return Read(found.status, _lowered(found.headers), found.body)


def _streamed(raw: bytes, size: int) -> Read | str:
    wire: Any = Wire(raw, size)
    try:
        with Connection(URL, wire, _FAR).stream(URL, {}, silence_s=1.0) as found:
            return Read(found.status, _lowered(found.headers), b"".join(found.pieces()))
    except OSError as refusal:
        return str(refusal)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """With the coding in lower case, as h11 hands it on."""
    coding = headers.get("transfer-encoding")
    return dict(headers) if coding is None else {**headers, "transfer-encoding": coding.lower()}


def _same(one: Read | str, other: Read | str) -> bool:
    return one == other or (isinstance(one, str) and isinstance(other, str))


def _ask_proxy(raw: bytes, size: int) -> None:
    wire: Any = Wire(raw, size)
    try:
        for _, event in _tunnelled(wire, urlsplit("http://proxy.example:3128"), "lattice.example"):
            assert event == select.POLLIN
    except OSError:
        return


def _theirs(method: str, raw: bytes) -> Read | str:
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT_BYTES)
    peer.send(h11.Request(method=method, target="/", headers=[("Host", "lattice.example")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(raw)
    answer: h11.Response | None = None
    body = b""
    ended = False
    try:
        while True:
            reader = peer._reader
            event = peer.next_event()
            if event is h11.NEED_DATA and not ended:
                peer.receive_data(b"")
                ended = True
            elif isinstance(event, h11.Response):
                answer = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return _read(answer, body)
            elif not isinstance(event, h11.InformationalResponse):
                return f"no answer: {event}"
    except h11.RemoteProtocolError as refusal:
        # Rule UNREAD_TRAILERS: after the last chunk we read no more, because the connection is
        # for one exchange. h11 reads the trailers too and may refuse those.
        trailers = getattr(reader, "_reading_trailer", False)
        return _read(answer, body) if trailers else str(refusal)


def _read(answer: h11.Response | None, body: bytes) -> Read:
    assert answer is not None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return Read(answer.status_code, headers, body)


# The other rules. Each says where the verdicts may differ, and why.


def _line_feed_alone(raw: bytes) -> bool:
    """We end a line by CRLF only; h11 also by LF. Two readers of one head must not disagree."""
    return re.search(rb"(?<!\r)\n", raw) is not None


def _folded(raw: bytes) -> bool:
    """We refuse a header that goes on in the next line (obsolete since RFC 7230); h11 joins it."""
    return re.search(rb"\n[ \t]", raw) is not None


def _other_version(raw: bytes) -> bool:
    """We speak HTTP/1.0 and 1.1; h11 takes any two digits."""
    return re.search(rb"(?:^|\n)HTTP/(?!1\.[01])", raw) is not None


def _listed_length(raw: bytes) -> bool:
    """We refuse a list of equal lengths; h11 takes it. RFC 9110, 8.6, allows both."""
    return re.search(rb"(?i)content-length:[^\n]*,", raw) is not None


def _long_chunk_line(raw: bytes) -> bool:
    """We bound the line before a chunk by 1024 bytes."""
    return any(len(line) > 1024 for line in raw.split(b"\r\n"))


def _space_before_extension(raw: bytes) -> bool:
    """We take spaces before the extension of a chunk, as RFC 9112, 7.1.1, asks; h11 refuses."""
    return re.search(rb"[0-9a-fA-F][ \t]+;", raw) is not None


_Rule = Callable[[bytes], bool]
_STRICTER: dict[str, _Rule] = {
    "LINE_FEED_ALONE": _line_feed_alone,
    "FOLDED": _folded,
    "OTHER_VERSION": _other_version,
    "LISTED_LENGTH": _listed_length,
    "LONG_CHUNK_LINE": _long_chunk_line,
}
_LAXER: dict[str, _Rule] = {"SPACE_BEFORE_EXTENSION": _space_before_extension}


def _holds(rules: dict[str, _Rule], raw: bytes) -> bool:
    return any(rule(raw) for rule in rules.values())


def seeds() -> Iterator[bytes]:
    """Each way to say how long a body is, and each way to get it wrong."""
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = ok + b"Transfer-Encoding: chunked\r\n\r\n"
    answers = [
        ok + b"Content-Length: 5\r\n\r\nhello and more",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 404\r\nA: b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok + b"Content-Length: 2\r\n\r\nok",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n" + ok + b"\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        chunked + b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n",
        chunked + b"5\r\nhelloXX0\r\n\r\n",
        chunked + b"0x5\r\nhello\r\n0\r\n\r\n",
        chunked + b"+5\r\nhello\r\n0\r\n\r\n",
        chunked + b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
        chunked + b"5 ;a\r\nhello\r\n0\r\n\r\n",
        ok + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        ok + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        ok + b"Transfer-Encoding: gzip\r\n\r\nhello",
        ok + b"Content-Length: 5\r\nContent-Length: 2\r\n\r\nhello",
        ok + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        ok + b"Content-Length: 5, 5\r\n\r\nhello",
        ok + b"Content-Length: " + b"1" * 4500 + b"\r\n\r\nhello",
        ok + b"Content-Length: " + b"0" * 30 + b"5\r\n\r\nhello",
        ok + b"Content-Length:\xa05\r\n\r\nhello",
        ok + b"Content-Length : 5\r\n\r\nhello",
        ok + b"A: b\r\n Content-Length: 5\r\n\r\nhello",
        ok + b"A: b\nContent-Length: 5\r\n\r\nhello",
        ok + b"no colon\r\n\r\n",
        ok + b"A: b\0c\r\n\r\n",
        ok + b"A: \x01\xff\r\n\r\nhello",
        b"HTTP/1.1 200 OK\n\nhello",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ]
    yield b""
    for at, raw in enumerate(answers):
        yield bytes((at % 8 * 3,)) + raw
    yield b"\x01" + answers[0]
