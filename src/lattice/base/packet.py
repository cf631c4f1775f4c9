"""One message on a local sequenced-packet socket, with descriptors beside it, strictly bounded.

A packet arrives whole or not at all, so there is no framing to get wrong. Whatever is larger than
agreed, and every descriptor that came with it, is dropped.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable, Sequence

LARGEST_BYTES = 64 * 1024
MOST_DESCRIPTORS = 4
"""With a question. An answer may bring more, where its reader says so."""


class BadPacket(Exception):
    """Too large, cut, or with more descriptors than allowed; nothing of it is kept."""


def send(
    connection: socket.socket,
    body: bytes,
    descriptors: Sequence[int] = (),
    *,
    most_descriptors: int = MOST_DESCRIPTORS,
) -> None:
    """Send one packet. Raises `BlockingIOError` where the socket would have to wait."""
    if len(body) > LARGEST_BYTES or len(descriptors) > most_descriptors:
        raise BadPacket("larger than the protocol allows")
    socket.send_fds(connection, [body], list(descriptors))


def receive(
    connection: socket.socket, *, most_descriptors: int = MOST_DESCRIPTORS
) -> tuple[bytes, list[int]]:
    """The next packet, empty at the end. The descriptors are the caller's to close."""
    room = socket.CMSG_SPACE(most_descriptors * array.array("i").itemsize)
    body, beside, flags, _ = connection.recvmsg(LARGEST_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            descriptors.extend(numbers)
    if len(body) > LARGEST_BYTES or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise BadPacket("larger than the protocol allows")
    return body, descriptors


def close_all(descriptors: Iterable[int]) -> None:
    """Let go of descriptors nobody wants."""
    for each in descriptors:
        os.close(each)
