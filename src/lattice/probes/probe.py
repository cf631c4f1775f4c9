"""What a probe is. Concurrency, time and failure are the registry's (`lattice.probes.registry`).

A probe only reads and parses, for all jobs of the node at once, in a thread that nothing waits for.
Whatever it raises, and however long it hangs, ends in an `Absence` for its own metrics and touches
no other probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from lattice.domain.metric import Reading
from lattice.domain.nodejobs import JobIdentity, NodeJob

Found: TypeAlias = Mapping[JobIdentity, Sequence[Reading]]


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's files are: captured trees in tests."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")


class ProbeFailed(Exception):
    """Why nothing could be read, in words for people; `last_error` in the failing part's own."""

    def __init__(self, reason: str, last_error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_error = last_error


class Probe(Protocol):
    """One thing a node can measure."""

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> frozenset[str]:
        """Every metric it may tell of, by its name in the catalogue."""

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        """What it can tell of each job now. Blocks; never called again before it has returned.

        Raises `ProbeFailed`, or anything: nothing it raises becomes a number.
        """
