"""What seals the output of one sensitive job on its nodes. Pure.

A server gives it to the agents of the job's nodes. Agents have it in memory only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lattice.domain.sealed import DataKey, binding


@dataclass(frozen=True, slots=True)
class JobSeal:
    """The key of an allocation, and what every sealing names."""

    key: DataKey
    cluster: str
    allocation: str
    """Its identity: the id with the time of its first submit."""

    def stream(self, node: str, kind: str, source: str) -> SealedStream:
        """The name of one of its streams."""
        return SealedStream(self.cluster, self.allocation, node, kind, source)


@dataclass(frozen=True, slots=True)
class SealedStream:
    """What the parts and chunks of a stream are bound to."""

    cluster: str
    allocation: str
    node: str
    kind: str
    source: str

    def chunk(self, number: int) -> bytes:
        """Of a chunk on its way to the server; `number` is the node's own."""
        return self._bound("chunk", number)

    def text(self, offset: int, time_ms: int, *, late: bool) -> bytes:
        """Of text that was just read."""
        return self._bound("text", offset, time_ms, int(late))

    def frame(self, offset: int, entry: bytes) -> bytes:
        """Of a frame; `entry` is how the index describes it."""
        return self._bound("frame", offset, entry.hex())

    def _bound(self, *parts: str | int) -> bytes:
        return binding(
            "log", self.cluster, self.allocation, self.node, self.kind, self.source, *parts
        )


class JobSeals(Protocol):
    """The seals of this node's sensitive jobs, as far as servers have given them."""

    def key_of(self, allocation: str) -> DataKey | None:
        """The key of an allocation that runs here; None if it is not known, or not sensitive."""

    async def ask(self, job_id: int, started: float) -> JobSeal | None:
        """The seal of a job that began here then; None if the job is not sensitive.

        Raises `Unavailable` while no server or key service answers, and `DataUnavailable` once the
        key was destroyed.
        """
