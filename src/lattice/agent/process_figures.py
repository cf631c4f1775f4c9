"""Metrics of the agent's own process. What can't be read is left out."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from lattice import __version__
from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import Supervisor
from lattice.domain.metric import MetricKind
from lattice.features.telemetry.node.exposition import ExposedFigure

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_PROC = Path("/proc")


class OwnProcess:
    """Memory, files and start of this process, from `/proc`."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc

    def figures(self) -> Iterator[ExposedFigure]:
        yield ExposedFigure(
            "lattice_agent_build_info",
            _GAUGE,
            "Always 1; the versions are labels.",
            1.0,
            (("version", __version__), ("python", platform.python_version())),
        )
        for name, text, value in (
            ("resident_memory_bytes", "Resident memory of the agent.", self._memory_bytes()),
            ("open_files", "Open files and sockets of the agent.", self._open_files()),
            (
                "start_time_seconds",
                "When the agent started, in seconds since 1970.",
                self._started(),
            ),
        ):
            if value is not None:
                yield ExposedFigure(f"lattice_agent_{name}", _GAUGE, text, value)

    def _memory_bytes(self) -> float | None:
        try:
            pages = int((self._proc / "self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return float(pages * resource.getpagesize())

    def _open_files(self) -> float | None:
        try:
            return float(len(os.listdir(self._proc / "self/fd")))  # noqa: PTH208 - their number
        except OSError:
            return None

    def _started(self) -> float | None:
        try:
            # The name of a program may have spaces and brackets in it.
            after_name = (self._proc / "self/stat").read_text().rpartition(")")[2].split()
            lines = (self._proc / "stat").read_text().splitlines()
            booted = next(float(each.split()[1]) for each in lines if each.startswith("btime "))
            return booted + int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, StopIteration):
            return None


def process_figures(
    process: OwnProcess, supervisor: Supervisor, pauses: LoopPauses
) -> Iterator[ExposedFigure]:
    """Metrics of the process, read at each scrape."""
    yield from process.figures()
    for name, count in supervisor.failures.items():
        yield ExposedFigure(
            "lattice_loop_failures_total",
            _COUNTER,
            "Failures of a background loop since the agent started. Each is a defect.",
            float(count),
            (("loop", name),),
        )
    for name, kind, text, value in (
        (
            "longest_pause_seconds",
            _GAUGE,
            "Longest turn of the event loop in the last one to two minutes.",
            pauses.longest_s,
        ),
        (
            "busy_seconds_total",
            _COUNTER,
            "Time that turns of the event loop took.",
            pauses.busy_s,
        ),
        (
            "turns_total",
            _COUNTER,
            "Turns of the event loop. Absent on uvloop, where they can't be counted.",
            pauses.turns,
        ),
    ):
        if value is not None:
            yield ExposedFigure(f"lattice_event_loop_{name}", kind, text, float(value))
