"""The client's half of a WebSocket: what is written, what is read, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.fast_start.websocket import (
    BadSocket,
    FrameReader,
    Opcode,
    Upgrade,
    masked,
    read_close,
    write_close,
    write_frame,
)

LARGEST = 1000
KEY = b"the sample nonce"


def server_frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    first = opcode | (0x80 if final else 0)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


def accepted(**others: str) -> dict[str, str]:
    """The answer of the RFC's own example."""
    return {
        "upgrade": "websocket",
        "connection": "keep-alive, Upgrade",
        "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "sec-websocket-protocol": "chat",
        **others,
    }


def test_the_answer_of_the_rfc_is_taken() -> None:
    upgrade = Upgrade("chat", key=KEY)
    assert upgrade.headers()["Sec-WebSocket-Key"] == "dGhlIHNhbXBsZSBub25jZQ=="
    upgrade.check(accepted())


@pytest.mark.parametrize(
    "wrong",
    [
        {"upgrade": "h2c"},
        {"connection": "close"},
        {"sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOx="},
        {"sec-websocket-protocol": "other"},
        {"sec-websocket-protocol": ""},
        {"sec-websocket-extensions": "permessage-deflate"},
    ],
)
def test_any_other_answer_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(BadSocket):
        Upgrade("chat", key=KEY).check(accepted(**wrong))


def test_two_questions_have_two_keys() -> None:
    assert Upgrade("x").headers() != Upgrade("x").headers()


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_a_frame_is_masked_and_says_its_length(payload: bytes, mask: bytes) -> None:
    frame = write_frame(Opcode.BINARY, payload, mask=mask)
    head = 2 if len(payload) < 126 else 4 if len(payload) < 65536 else 10
    assert frame[0] == 0x82
    assert frame[1] & 0x80
    assert frame[head : head + 4] == mask
    assert masked(frame[head + 4 :], mask) == payload
    # Byte by byte, as the RFC defines it.
    assert masked(payload[:50], mask) == bytes(
        byte ^ mask[at % 4] for at, byte in enumerate(payload[:50])
    )


def test_a_control_frame_is_short() -> None:
    with pytest.raises(ValueError, match="short"):
        write_frame(Opcode.PING, bytes(126))


def test_a_farewell_is_read_as_it_is_written() -> None:
    frame = write_close(1001, "going")
    assert read_close(masked(frame[6:], frame[2:6])) == (1001, "going")
    assert read_close(b"") == (1005, "")
    with pytest.raises(BadSocket):
        read_close(b"x")


messages = st.lists(
    st.one_of(
        st.tuples(st.just(Opcode.BINARY), st.binary(max_size=LARGEST)),
        st.tuples(st.just(Opcode.TEXT), st.text(max_size=LARGEST // 4).map(str.encode)),
        st.tuples(
            st.sampled_from([Opcode.PING, Opcode.PONG, Opcode.CLOSE]), st.binary(max_size=125)
        ),
    ),
    max_size=8,
)


@given(messages, st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[Opcode, bytes]], data: st.DataObject
) -> None:
    raw = bytearray()
    for opcode, payload in sent:
        if opcode < Opcode.CLOSE and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(payload)))
            raw += server_frame(opcode, payload[:at], final=False)
            raw += server_frame(Opcode.PING, b"between")
            raw += server_frame(Opcode.MORE, payload[at:])
        else:
            raw += server_frame(opcode, payload)
    reader = FrameReader(LARGEST)
    found: list[tuple[Opcode, bytes]] = []
    rest = bytes(raw)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += reader.feed(rest[:size])
        rest = rest[size:]
    assert [each for each in found if each != (Opcode.PING, b"between")] == [
        each for each in sent if each != (Opcode.PING, b"between")
    ]


@pytest.mark.parametrize(
    "raw",
    [
        bytes((0x82, 0x81)) + b"abcd" + b"x",  # masked
        bytes((0xC2, 1)) + b"x",  # a reserved bit
        bytes((0x83, 1)) + b"x",  # an opcode nobody has defined
        bytes((0x09, 0)),  # a ping in parts
        bytes((0x89, 126)) + struct.pack("!H", 126) + bytes(126),  # a long one
        bytes((0x82, 126)) + struct.pack("!H", 5) + bytes(5),  # a length that could be shorter
        bytes((0x82, 127)) + struct.pack("!Q", 300) + bytes(300),
        bytes((0x82, 127)) + struct.pack("!Q", 2**63),  # refused before it comes
        server_frame(Opcode.BINARY, bytes(LARGEST + 1)),
        server_frame(Opcode.MORE, b"x"),  # the rest of nothing
        server_frame(Opcode.BINARY, b"x", final=False) + server_frame(Opcode.TEXT, b"x"),
        server_frame(Opcode.BINARY, bytes(LARGEST), final=False) + server_frame(Opcode.MORE, b"x"),
        server_frame(Opcode.TEXT, b"\xff"),
    ],
)
def test_what_no_server_may_send_ends_it(raw: bytes) -> None:
    with pytest.raises(BadSocket):
        list(FrameReader(LARGEST).feed(raw))


def test_messages_before_a_fault_count_though_they_came_in_one_piece() -> None:
    found = FrameReader(LARGEST).feed(server_frame(Opcode.TEXT, b"good") + b"\xc1\x00")
    assert next(found) == (Opcode.TEXT, b"good")
    with pytest.raises(BadSocket):
        next(found)


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waited_for_and_never_anything_else(noise: bytes) -> None:
    reader = FrameReader(LARGEST)
    try:
        found = list(reader.feed(noise))
    except BadSocket:
        return
    assert sum(len(payload) for _, payload in found) <= len(noise)
