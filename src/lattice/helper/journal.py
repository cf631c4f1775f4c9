"""One JSON line on standard error for every act and every refusal.

Who asked, for what, in whose name, and what became of it. Never a script, an argument or the
value of an environment variable.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

from lattice.base.clock import Clock

_LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, by the kernel's word."""

    pid: int
    uid: int


class Journal:
    """Writes lines whole: one `write` each, below the size that pipes keep together."""

    def __init__(self, clock: Clock, descriptor: int | None = None) -> None:
        self._clock = clock
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor

    def note(self, event: str, peer: Peer | None = None, **facts: str | float) -> None:
        line: dict[str, object] = {"time": self._clock.now().isoformat(), "event": event}
        if peer is not None:
            line |= {"peer_pid": peer.pid, "peer_uid": peer.uid}
        line |= {
            name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
            for name, value in facts.items()
        }
        try:
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            return  # a full or closed log must not stop an act half way
