"""How long a call on an object store may take. Numbers only; nothing is enforced here."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BODY_BYTES = 10 * 1024 * 1024
"""What a read is given time for where nobody knows its size before."""


@dataclass(frozen=True, slots=True)
class Limits:
    """One call: `small_s`, longer by its body, in at most `tries` tries within that."""

    small_s: float = 10.0
    slowest_bytes_per_s: float = 512 * 1024
    tries: int = 3
    first_pause_s: float = 0.2
    try_share: float = 0.6
    """How much of the whole one try may take, so that one lost answer leaves time for another."""

    def call_s(self, body_bytes: int = 0) -> float:
        """The whole of a call that carries this much."""
        return self.small_s + body_bytes / self.slowest_bytes_per_s
