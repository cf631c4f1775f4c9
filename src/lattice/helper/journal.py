"""Writes one JSON line to standard error for every act and every refusal.

A line has the peer, the verb, the user and the outcome. It never has a script, an argument or the
value of an environment variable.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from dataclasses import dataclass

from lattice.base.clock import Clock

_LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, as the kernel reports it."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid)


class HelperJournal:
    """Writes each line with one `write`, below the size that pipes keep together."""

    def __init__(self, clock: Clock, descriptor: int | None = None) -> None:
        self._clock = clock
        self.descriptor = sys.stderr.fileno() if descriptor is None else descriptor

    def note(self, event: str, peer: Peer | None = None, **facts: str | float) -> None:
        line: dict[str, object] = {"time": self._clock.now().isoformat(), "event": event}
        if peer is not None:
            line |= {"peer_pid": peer.pid, "peer_uid": peer.uid}
        line |= {
            name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
            for name, value in facts.items()
        }
        try:
            os.write(self.descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            return  # a full or closed log must not interrupt an act
