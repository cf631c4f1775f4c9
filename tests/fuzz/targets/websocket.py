"""A hostile WebSocket server, held against the sans-IO protocol of `websockets`.

Frames: `FrameReader` and `websockets.client.ClientProtocol` read the same bytes. They give the
same messages and the same verdict, whatever the pieces the bytes come in. Handshakes: `Upgrade`
and `ClientProtocol.process_response` judge the same headers.

Where the two differ on purpose, a rule below is named for it.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake
from websockets.frames import Close, Frame
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from lattice.base.fast_start.websocket import BadSocket, FrameReader, Opcode, Upgrade, read_close

LARGEST_BYTES = 200
"""Small, so that the bound is met often."""
_CONTROL = frozenset({Opcode.CLOSE, Opcode.PING, Opcode.PONG})
_HANDSHAKE = 0x80
_KEY = b"the sample nonce"
_ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_PROTOCOL = "chat"
_HEADERS = frozenset({
    "upgrade", "connection", "sec-websocket-accept", "sec-websocket-protocol",
    "sec-websocket-extensions",
})  # fmt: skip
_URI = parse_uri("ws://lattice.example/")
TOKENS = (
    b"\x81\x00", b"\x82\x00", b"\x01\x00", b"\x02\x00", b"\x80\x00", b"\x00\x00", b"\x88\x00",
    b"\x89\x00", b"\x8a\x00", b"\x88\x02\x03\xe8", b"\x7e\x00\x7e", b"\x7e\x00\x80",
    b"\x7f\x00\x00\x00\x00\x00\x01\x00\x00", b"\xe2\x82\xac", b"\xed\xa0\x80",
    b"upgrade", b"websocket", b"connection", b"keep-alive, ", b"sec-websocket-accept",
    _ACCEPT.encode(), b"sec-websocket-protocol", b"chat", b"sec-websocket-extensions", b"\n",
)  # fmt: skip

Message = tuple[Opcode, bytes]


def try_one(data: bytes) -> None:
    """The first byte chooses what is tried and in which pieces; the rest comes from the server."""
    first, raw = (data[0], data[1:]) if data else (0, b"")
    if first & _HANDSHAKE:
        _try_handshake(raw)
    else:
        _try_frames(raw, first % 16 + 1)


def _try_frames(raw: bytes, size: int) -> None:
    ours, refusal = _ours([raw])
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert _ours(pieces) == (ours, refusal), "the pieces make a difference"
    assert sum(len(payload) for _, payload in ours) <= len(raw)
    peer = _Peer()
    peer.feed(raw)
    if refusal:
        _check_refusal(refusal, ours, peer)
    elif ours and ours[-1][0] is Opcode.CLOSE:
        _check_farewell(ours, peer)
    else:
        assert (ours, "") == (peer.found, peer.failure)


def _check_refusal(refusal: str, ours: list[Message], peer: _Peer) -> None:
    """They refuse the same frame, or a rule of ours is stricter.

    Rule SHORTEST_LENGTH: a length must be written as short as it can be (RFC 6455, 5.2), so a
    control frame has no long form. They take any form.
    Rule EARLY_REFUSAL: a frame whose head is wrong is refused at once, so that a server can't
    have us wait for its payload. They judge it when the payload is there.
    """
    assert ours == peer.found[: len(ours)]
    if refusal == "a length that could be shorter":
        return
    for _ in range(LARGEST_BYTES + 10):
        if further := peer.found[len(ours) :]:
            # They checked that it is short and final, so the form of its length is the fault.
            assert refusal == "a control frame that is long or in parts"
            assert further[0][0] in _CONTROL
            return
        if peer.failure:
            return
        peer.feed(b"\0")
    raise AssertionError(f"refused, and the peer waits for nothing: {refusal}")


def _check_farewell(ours: list[Message], peer: _Peer) -> None:
    """Compare code and reason of what ends the connection.

    Rule ANY_FAREWELL: a Close ends the connection whatever its code and reason, also between the
    parts of a message: both are only shown to people. They fail the connection instead.
    """
    *before, (_, payload) = ours
    messages = peer.found[:-1] if peer.close is not None else peer.found
    assert before == messages
    try:
        code, reason = read_close(payload)
    except BadSocket:
        assert peer.failure
        return
    assert 0 <= code <= 0xFFFF
    if peer.close is not None:
        assert (code, reason) == (peer.close.code, peer.close.reason)
    else:
        assert peer.failure


def _ours(pieces: list[bytes]) -> tuple[list[Message], str]:
    """Everything up to a Close, after which the connection is over (`client/wire.py`)."""
    reader = FrameReader(LARGEST_BYTES)
    found: list[Message] = []
    try:
        for piece in pieces:
            for message in reader.feed(piece):
                found.append(message)
                if message[0] is Opcode.CLOSE:
                    return found, ""
    except BadSocket as refusal:
        return found, str(refusal)
    return found, ""


class _Peer:
    """`websockets`, with its frames put together as its connection classes do."""

    def __init__(self) -> None:
        # By fragment: their bound of a message also counts the control frames between its parts.
        self._protocol = ClientProtocol(_URI, state=State.OPEN, max_size=(None, LARGEST_BYTES))
        self._parts: list[Frame] = []
        self.found: list[Message] = []
        self.failure = ""
        self.close: Close | None = None

    def feed(self, raw: bytes) -> None:
        self._protocol.receive_data(raw)
        for event in self._protocol.events_received():
            assert isinstance(event, Frame)
            if not self.failure:
                self._take(event)
        if self._protocol.parser_exc is not None:
            self.failure = self.failure or repr(self._protocol.parser_exc)
        elif not self.failure:
            self.close = self._protocol.close_rcvd

    def _take(self, frame: Frame) -> None:
        if frame.opcode >= Opcode.CLOSE:
            self.found.append((Opcode(frame.opcode), bytes(frame.data)))
            return
        self._parts.append(frame)
        whole = b"".join(bytes(each.data) for each in self._parts)
        if len(whole) > LARGEST_BYTES:
            self.failure = "too large"
            return
        if frame.fin:
            opcode = Opcode(self._parts[0].opcode)
            self._parts = []
            if opcode is Opcode.TEXT:
                try:
                    whole.decode()
                except UnicodeDecodeError as error:
                    self.failure = str(error)
                    return
            self.found.append((opcode, whole))


def _try_handshake(raw: bytes) -> None:
    lines = [line.partition(":") for line in raw.decode("latin-1").split("\n") if ":" in line]
    # Other names, and values with control characters, are for the target `http1`.
    headers = {
        name.lower(): value.strip(" \t")
        for name, _, value in lines
        if name.lower() in _HEADERS and all(each == "\t" or each >= " " for each in value)
    }
    try:
        Upgrade(_PROTOCOL, key=_KEY).check(headers)
        refusal = ""
    except BadSocket as error:
        refusal = str(error)
    protocol = ClientProtocol(_URI, subprotocols=[_PROTOCOL])  # type: ignore[list-item]
    protocol.key = b64encode(_KEY).decode()
    try:
        protocol.process_response(Response(101, "", Headers(headers)))
        failure = ""
    except InvalidHandshake as error:
        failure = repr(error)
    if bool(refusal) is not bool(failure):
        rules = {name for name, holds in _HANDSHAKE_RULES.items() if holds(headers, refusal)}
        assert rules, (refusal, failure)


def _protocol_needed(headers: dict[str, str], refusal: str) -> bool:
    """We offer one protocol and take no other. They also take an answer that names none."""
    return bool(refusal) and "sec-websocket-protocol" not in headers


def _loose_lists(headers: dict[str, str], refusal: str) -> bool:
    """We look for a word in `Connection`. They refuse it where another word is no token.

    The proof that the server means it is in `Sec-WebSocket-Accept`.
    """
    words = [each.strip(" \t") for each in headers.get("connection", "").split(",")]
    return not refusal and not all(map(_is_token, filter(None, words)))


def _no_extension_named(headers: dict[str, str], refusal: str) -> bool:
    """We take an empty list of extensions: it names none."""
    return not refusal and headers.get("sec-websocket-extensions") == ""


def _is_token(word: str) -> bool:
    return all(each.isascii() and (each.isalnum() or each in "!#$%&'*+-.^_`|~") for each in word)


_HANDSHAKE_RULES = {
    "PROTOCOL_NEEDED": _protocol_needed,
    "LOOSE_LISTS": _loose_lists,
    "NO_EXTENSION_NAMED": _no_extension_named,
}


def seeds() -> Iterator[bytes]:
    """One of each kind of frame, and of each way to be wrong."""
    frames = [
        _frame(1, b"text"),
        _frame(2, bytes(126)),
        _frame(1, "€".encode()[:1], final=False) + _frame(0, "€".encode()[1:]),
        _frame(2, b"a", final=False) + _frame(9, b"between") + _frame(0, b"b"),
        _frame(2, bytes(150), final=False) + _frame(9, bytes(100)) + _frame(0, bytes(50)),
        _frame(2, bytes(150), final=False) + _frame(0, bytes(51)),
        _frame(8, struct.pack("!H", 1000) + b"bye") + b"ignored",
        _frame(8, b""),
        _frame(8, b"x"),
        _frame(8, struct.pack("!H", 1005) + b"\xff"),
        _frame(10, b"pong") + _frame(1, b"\xff"),
        _frame(1, b"good") + b"\xc1\x00",
        bytes((0x82, 126)) + struct.pack("!H", 5) + bytes(5),
        bytes((0x82, 127)) + struct.pack("!Q", 1 << 63),
        bytes((0x82, 0x81)) + b"maskx",
        b"\x09\x00",
        b"\x89\x7e",
    ]
    yield b""
    for at, raw in enumerate(frames):
        yield bytes((at % 3,)) + raw
    right = {
        "upgrade": "websocket",
        "connection": "keep-alive, Upgrade",
        "sec-websocket-accept": _ACCEPT,
        "sec-websocket-protocol": _PROTOCOL,
    }
    wrong = (
        {},
        {"upgrade": "h2c"},
        {"connection": "close"},
        {"connection": '"close, upgrade'},
        {"sec-websocket-protocol": "other"},
        {"sec-websocket-extensions": "permessage-deflate"},
        {"sec-websocket-extensions": ""},
    )
    for change in wrong:
        lines = [f"{name}: {value}" for name, value in {**right, **change}.items()]
        yield b"\x80" + "\n".join(lines).encode()


def _frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    first, size = opcode | (0x80 if final else 0), len(payload)
    head = bytes((first, size)) if size < 126 else struct.pack("!BBH", first, 126, size)
    return head + payload
