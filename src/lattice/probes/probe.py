"""The interface of a probe. The registry (`lattice.probes.registry`) handles threads and failures.

A probe only reads and parses, for all jobs of the node at once, in a separate thread. If it raises
or hangs, its own metrics become an `Absence`, and no other probe is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeAlias

from lattice.base.clock import Clock
from lattice.domain.metric import MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.helper_cache import HelperReadings

Found: TypeAlias = Mapping[JobIdentity, Sequence[MetricReading]]


@dataclass(frozen=True, slots=True)
class ProbeRoots:
    """The roots of the kernel's files; tests use captured trees."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSite:
    """What the probes of one node may use."""

    clock: Clock
    helper: HelperReadings
    uuids_of: Callable[[int], tuple[str, ...] | None]
    """The cards of a job; None if not known yet."""
    dcgm_url: str = ""
    roots: ProbeRoots = ProbeRoots()


class ProbeFailed(Exception):
    """Why nothing could be read, for people; `last_error` is the failing component's own error."""

    def __init__(self, reason: str, last_error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_error = last_error


class Probe(Protocol):
    """Measures one thing on a node."""

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> frozenset[str]:
        """Every metric that it may return, by its name in the catalogue."""

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        """The current readings of each job. Blocks; never called again before it has returned.

        May raise `ProbeFailed` or any exception.
        """


class NodeProbe(Probe, Protocol):
    """A probe that the registry finds by listing this folder."""

    @property
    def own_thread(self) -> bool:
        """True if it may block. The others share a thread."""

    @classmethod
    def on(cls, site: ProbeSite) -> Self:
        """Make the probe of a node."""
