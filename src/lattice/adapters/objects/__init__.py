"""Object stores behind the port `ObjectStore`.

    S3ObjectStore      any S3 with put-if-absent (`If-None-Match: *`), by obstore
    FolderObjectStore  a folder of one server, `lattice-server --single`

Limits: 10 s a call, and a second more for every half megabyte; three tries within that. After that
the caller gets `Unavailable`, and the call is abandoned.

Once: `put_new` writes or finds that the key exists. If the answer of a try was lost, the existing
object is compared with the sent one, and an equal one counts as written.

Not here: the meaning of keys, retention, encryption. Those belong to the features.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BODY_BYTES = 10 * 1024 * 1024
"""The size that a read gets time for if its size is not known."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """One call: `small_s` plus time for its body, with at most `tries` tries within that."""

    small_s: float = 10.0
    slowest_bytes_per_s: float = 512 * 1024
    tries: int = 3
    first_pause_s: float = 0.2
    try_share: float = 0.6
    """The fraction of the whole that one try may take, so that there is time for another."""

    def call_s(self, body_bytes: int = 0) -> float:
        """The time limit of a call that carries this much."""
        return self.small_s + body_bytes / self.slowest_bytes_per_s
