"""The registry: runs probes in persistent threads, and turns their results into readings.

Probes that only read kernel files share one thread (`together`) and run one after the other. A
switch between threads costs more than such a reading. Each other probe has its own thread.

Invariant: every metric of every probe has a value or a reason for every requested job. A probe that
raises, hangs or returns bad data affects only its own metrics, and nothing is raised from here. A
late answer is discarded: its metrics were already reported as absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lattice import probes as folder
from lattice.base.clock import Clock
from lattice.base.discovery import classes_in
from lattice.base.moment import silence
from lattice.base.text import inert
from lattice.domain.metric import Absence, MetricReading, Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.probe import Found, NodeProbe, Probe, ProbeFailed, ProbeSite

_LONGEST_TEXT = 200
_Result: TypeAlias = Found | ProbeFailed
_SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


def known_probes(site: ProbeSite) -> tuple[NodeProbe, ...]:
    """Make the probes of this folder: each public class with `on`."""
    return tuple(each.on(site) for each in classes_in(folder, "on"))


class Registry:
    """The probes of one node. Call `close` at the end; a thread that hangs is abandoned."""

    def __init__(
        self,
        probes: Sequence[Probe],
        clock: Clock,
        *,
        together: Sequence[Probe] = (),
        patience_s: float = 5.0,
    ) -> None:
        # If two probes return the same series, the first one counts.
        crews = ([together] if together else []) + [(probe,) for probe in probes]
        self._crews = [_Crew(tuple(each), clock) for each in crews]
        self._patience_s = patience_s
        self._one_at_a_time = asyncio.Lock()

    @property
    def metrics(self) -> frozenset[str]:
        """All metrics that a job gets."""
        probes = (probe for crew in self._crews for probe in crew.probes)
        return frozenset[str]().union(*(probe.metrics for probe in probes))

    async def read(
        self, jobs: Sequence[NodeJob], *, patience_s: float | None = None
    ) -> Mapping[JobIdentity, tuple[MetricReading, ...]]:
        """The readings of each job, within `patience_s`. Never raises."""
        if not jobs:
            return {}
        patient_s = self._patience_s if patience_s is None else patience_s
        async with self._one_at_a_time:
            rounds = [crew.begin(jobs) for crew in self._crews]
            pending = [begun.done for begun in rounds if isinstance(begun, _Round)]
            if pending:
                await asyncio.wait(pending, timeout=patient_s)
            results = [
                answer
                for crew, begun in zip(self._crews, rounds, strict=True)
                for answer in crew.answers(begun, patient_s)
            ]
        return {job.identity: _of_job(job.identity, results) for job in jobs}

    def close(self) -> None:
        """End the threads that can be ended."""
        for crew in self._crews:
            crew.close()


class _Round:
    """One round of a crew. Its thread writes it, the event loop reads it."""

    __slots__ = ("_loop", "done", "finished", "jobs", "results")

    def __init__(self, jobs: Sequence[NodeJob], loop: asyncio.AbstractEventLoop) -> None:
        self.jobs = jobs
        self.results: list[_Result] = []
        self.finished = False
        self.done: asyncio.Future[None] = loop.create_future()
        self._loop = loop

    def end(self) -> None:
        self.finished = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class _Hanging:
    """The last round is not over: at which probe it hangs, and for how long."""

    at: str
    for_s: float


class _Crew:
    """Probes that share a thread, which starts with the first round."""

    def __init__(self, probes: tuple[Probe, ...], clock: Clock) -> None:
        self.probes = probes
        self._clock = clock
        self._asked: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._round: _Round | None = None
        self._begun_s = 0.0

    def begin(self, jobs: Sequence[NodeJob]) -> _Round | _Hanging:
        """Start a round, unless the last one is not finished."""
        if self._round is not None and not self._round.finished:
            at = min(len(self._round.results), len(self.probes) - 1)
            return _Hanging(self.probes[at].name, self._clock.monotonic() - self._begun_s)
        self._round = _Round(jobs, asyncio.get_running_loop())
        self._begun_s = self._clock.monotonic()
        if self._thread is None:
            name = "probe " + ", ".join(probe.name for probe in self.probes)
            # A daemon: one that hangs in a driver must not keep the agent from ending.
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._asked.put(self._round)
        return self._round

    def answers(self, begun: _Round | _Hanging, patience_s: float) -> list[tuple[Probe, _Result]]:
        if isinstance(begun, _Hanging):
            return [(probe, _late(probe.name, begun)) for probe in self.probes]
        results = list(begun.results)
        late = [
            ProbeFailed(f"{probe.name} did not answer in {patience_s:g} s")
            for probe in self.probes[len(results) :]
        ]
        return list(zip(self.probes, [*results, *late], strict=True))

    def close(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while (begun := self._asked.get()) is not None:
            for probe in self.probes:
                begun.results.append(_asked(probe, begun.jobs))
            begun.end()


def _late(name: str, hanging: _Hanging) -> ProbeFailed:
    silent = f"{hanging.at} {silence(hanging.for_s)}"
    if name == hanging.at:
        return ProbeFailed(silent)
    return ProbeFailed(f"{name} waits: {silent}")


def _asked(probe: Probe, jobs: Sequence[NodeJob]) -> _Result:
    try:
        found = probe.read(jobs)
        # Checked in the thread: bad data fails here and not in the event loop.
        return {job.identity: _checked(probe, found.get(job.identity, ())) for job in jobs}
    except ProbeFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - nothing a probe does may end its thread
        return ProbeFailed(f"{probe.name} failed", f"{type(error).__name__}: {error}")


def _checked(probe: Probe, readings: Sequence[MetricReading]) -> tuple[MetricReading, ...]:
    checked = tuple(readings)
    for each in checked:
        if not isinstance(each, Sample | Absence) or each.metric not in probe.metrics:
            raise ProbeFailed(f"{probe.name} told what it does not measure")
    return checked


def _of_job(
    identity: JobIdentity, results: Sequence[tuple[Probe, _Result]]
) -> tuple[MetricReading, ...]:
    """One reading a series, the first; absences only for series without a sample."""
    samples: dict[_SeriesKey, Sample] = {}
    absences: dict[_SeriesKey, Absence] = {}
    for probe, answer in results:
        for each in _readings(probe, answer, identity):
            if isinstance(each, Sample):
                samples.setdefault((each.metric, each.labels), each)
            else:
                absences.setdefault((each.metric, each.labels), each)
    measured = {metric for metric, _ in samples}
    reasons = [
        absence
        for (metric, labels), absence in absences.items()
        if ((metric, labels) not in samples if labels else metric not in measured)
    ]
    return (*samples.values(), *reasons)


def _readings(probe: Probe, answer: _Result, identity: JobIdentity) -> list[MetricReading]:
    if isinstance(answer, ProbeFailed):
        reason, error = _short(answer.reason), _short(answer.last_error)
        return [Absence(metric, reason, error) for metric in sorted(probe.metrics)]
    readings = list(answer[identity])
    missing = probe.metrics.difference(each.metric for each in readings)
    reason = f"{probe.name} told nothing of it"
    return readings + [Absence(metric, reason) for metric in sorted(missing)]


def _short(text: str) -> str:
    return inert(str(text))[:_LONGEST_TEXT]
