"""One message on a local sequenced-packet socket, with descriptors, strictly bounded.

A packet arrives whole or not at all, so no framing is needed. A packet over the limit is dropped
with all its descriptors.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable, Sequence

LARGEST_BYTES = 64 * 1024
MOST_DESCRIPTORS = 4
"""With a question. The reader of an answer may allow more."""


class BadPacket(Exception):
    """Too large, cut, or with too many descriptors. Nothing of it is kept."""


def send(
    connection: socket.socket,
    body: bytes,
    descriptors: Sequence[int] = (),
    *,
    most_descriptors: int = MOST_DESCRIPTORS,
) -> None:
    """Send one packet. Raises `BadPacket`, and `BlockingIOError` if the socket would block."""
    if len(body) > LARGEST_BYTES or len(descriptors) > most_descriptors:
        raise BadPacket("larger than the protocol allows")
    socket.send_fds(connection, [body], list(descriptors))


def receive(
    connection: socket.socket, *, most_descriptors: int = MOST_DESCRIPTORS
) -> tuple[bytes, list[int]]:
    """The next packet, empty at the end. The caller closes the descriptors. Raises `BadPacket`."""
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
    """Close descriptors that are not needed."""
    for each in descriptors:
        os.close(each)
