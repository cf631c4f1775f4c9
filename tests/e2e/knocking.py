"""One packet at a helper's door, as the user it serves or as anyone else."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from lab.users import SERVER_USER
from lattice.base import packet
from lattice.domain.privileged import Answer, read_answer
from tests.contract.identities import being


def knock(
    door: Path, body: bytes, descriptors: Sequence[int] = (), user: str = SERVER_USER
) -> Answer:
    """The answer; what was passed is closed here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(20)
        with being(user):
            connection.connect(str(door))
        try:
            socket.send_fds(connection, [body], list(descriptors))
            raw, passed = packet.receive(connection)
        finally:
            packet.close_all(descriptors)
    assert passed == []
    return read_answer(raw)
