"""Packets: whole or not at all, and no descriptor kept that nobody asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base import packet


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        yield here, there


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@given(st.binary(min_size=1, max_size=2000), st.integers(0, packet.MOST_DESCRIPTORS))
def test_what_is_sent_arrives(body: bytes, count: int) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        sent = [os.memfd_create(str(number)) for number in range(count)]
        packet.send(here, body, sent)
        found, passed = packet.receive(there)
        assert found == body
        assert [_name(each) for each in passed] == [_name(each) for each in sent]
        assert not any(os.get_inheritable(each) for each in passed)
        packet.close_all([*sent, *passed])


def _name(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def test_a_reader_may_expect_more_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    sent = [os.memfd_create(str(number)) for number in range(65)]
    packet.send(pair[0], b"x", sent, most_descriptors=65)
    _, passed = packet.receive(pair[1], most_descriptors=65)
    assert [_name(each) for each in passed] == [_name(each) for each in sent]
    packet.close_all(passed)
    packet.send(pair[0], b"x", sent, most_descriptors=65)
    before = _open()
    with pytest.raises(packet.BadPacket):
        packet.receive(pair[1])
    assert _open() == before
    packet.close_all(sent)


def test_the_end_is_an_empty_packet(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert packet.receive(pair[1]) == (b"", [])


def test_what_is_too_large_is_refused_at_both_ends(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    largest = b"x" * packet.LARGEST_BYTES
    packet.send(pair[0], largest)
    assert packet.receive(pair[1])[0] == largest
    with pytest.raises(packet.BadPacket):
        packet.send(pair[0], largest + b"x")
    before = _open()
    with Path("/dev/null").open() as nothing:
        socket.send_fds(pair[0], [largest + b"x"], [nothing.fileno()])
    with pytest.raises(packet.BadPacket):
        packet.receive(pair[1])
    assert _open() == before


def test_too_many_descriptors_are_refused_and_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    many = [os.memfd_create("x") for _ in range(packet.MOST_DESCRIPTORS + 1)]
    with pytest.raises(packet.BadPacket):
        packet.send(pair[0], b"x", many)
    before = _open()
    socket.send_fds(pair[0], [b"x"], many)
    with pytest.raises(packet.BadPacket):
        packet.receive(pair[1])
    assert _open() == before
    packet.close_all(many)
