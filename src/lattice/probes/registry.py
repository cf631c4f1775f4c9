"""The registry: runs probes, each in a thread that is kept, and turns what they do into readings.

Probes that only read files of the kernel share one thread (`together`) and are read one after the
other: a hop between threads costs more than such a look. All others have one of their own.

Law: every metric of every probe is told for every job that was asked for, with a number or with
the reason why there is none. Whatever a probe raises, however long it hangs and whatever it
returns touches its own metrics only, and nothing is raised from here. An answer that comes late is
thrown away: it is of a moment that was told as absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.base.moment import silence
from lattice.base.text import inert
from lattice.domain.metric import Absence, Reading, Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.probe import Found, Probe, ProbeFailed

_LONGEST_WORDS = 200
_Told: TypeAlias = Found | ProbeFailed
_SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


class Registry:
    """The probes of one node. `close` when it is over; a thread that hangs is left behind."""

    def __init__(
        self,
        probes: Sequence[Probe],
        clock: Clock,
        *,
        together: Sequence[Probe] = (),
        patience_s: float = 5.0,
    ) -> None:
        # The order says who is believed where two tell of the same series: the first.
        crews = ([together] if together else []) + [(probe,) for probe in probes]
        self._crews = [_Crew(tuple(each), clock) for each in crews]
        self._patience_s = patience_s
        self._one_at_a_time = asyncio.Lock()

    @property
    def metrics(self) -> frozenset[str]:
        """Everything that is told of each job."""
        probes = (probe for crew in self._crews for probe in crew.probes)
        return frozenset[str]().union(*(probe.metrics for probe in probes))

    async def read(
        self, jobs: Sequence[NodeJob], *, patience_s: float | None = None
    ) -> Mapping[JobIdentity, tuple[Reading, ...]]:
        """What can be told of each job now, within `patience_s`. Never raises."""
        if not jobs:
            return {}
        patient_s = self._patience_s if patience_s is None else patience_s
        async with self._one_at_a_time:
            looks = [crew.begin(jobs) for crew in self._crews]
            under_way = [look.done for look in looks if isinstance(look, _Look)]
            if under_way:
                await asyncio.wait(under_way, timeout=patient_s)
            told = [
                answer
                for crew, look in zip(self._crews, looks, strict=True)
                for answer in crew.answers(look, patient_s)
            ]
        return {job.identity: _of_job(job.identity, told) for job in jobs}

    def close(self) -> None:
        """End the threads that can be ended."""
        for crew in self._crews:
            crew.close()


class _Look:
    """One round of a crew. Written by its thread, read by the loop."""

    __slots__ = ("_loop", "done", "finished", "jobs", "told")

    def __init__(self, jobs: Sequence[NodeJob], loop: asyncio.AbstractEventLoop) -> None:
        self.jobs = jobs
        self.told: list[_Told] = []
        self.finished = False
        self.done: asyncio.Future[None] = loop.create_future()
        self._loop = loop

    def end(self) -> None:
        self.finished = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Hanging:
    """The last round is not over: which probe it stands at, and for how long."""

    __slots__ = ("at", "for_s")

    def __init__(self, at: str, for_s: float) -> None:
        self.at = at
        self.for_s = for_s


class _Crew:
    """Probes that share a thread, which is started with the first look and kept."""

    def __init__(self, probes: tuple[Probe, ...], clock: Clock) -> None:
        self.probes = probes
        self._clock = clock
        self._asked: queue.SimpleQueue[_Look | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._look: _Look | None = None
        self._begun_s = 0.0

    def begin(self, jobs: Sequence[NodeJob]) -> _Look | _Hanging:
        """Ask, unless the thread has not come back from the last time."""
        if self._look is not None and not self._look.finished:
            at = min(len(self._look.told), len(self.probes) - 1)
            return _Hanging(self.probes[at].name, self._clock.monotonic() - self._begun_s)
        self._look = _Look(jobs, asyncio.get_running_loop())
        self._begun_s = self._clock.monotonic()
        if self._thread is None:
            name = "probe " + ", ".join(probe.name for probe in self.probes)
            # A daemon: one that hangs in a driver must not keep the agent from ending.
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._asked.put(self._look)
        return self._look

    def answers(self, look: _Look | _Hanging, patience_s: float) -> list[tuple[Probe, _Told]]:
        if isinstance(look, _Hanging):
            return [(probe, _late(probe.name, look)) for probe in self.probes]
        told = list(look.told)
        late = [
            ProbeFailed(f"{probe.name} did not answer in {patience_s:g} s")
            for probe in self.probes[len(told) :]
        ]
        return list(zip(self.probes, [*told, *late], strict=True))

    def close(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while (look := self._asked.get()) is not None:
            for probe in self.probes:
                look.told.append(_asked(probe, look.jobs))
            look.end()


def _late(name: str, hanging: _Hanging) -> ProbeFailed:
    silent = f"{hanging.at} {silence(hanging.for_s)}"
    if name == hanging.at:
        return ProbeFailed(silent)
    return ProbeFailed(f"{name} waits: {silent}")


def _asked(probe: Probe, jobs: Sequence[NodeJob]) -> _Told:
    try:
        found = probe.read(jobs)
        # Looked through here: what is no mapping of readings fails here and not in the loop.
        return {job.identity: _checked(probe, found.get(job.identity, ())) for job in jobs}
    except ProbeFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - nothing a probe does may end its thread
        return ProbeFailed(f"{probe.name} failed", f"{type(error).__name__}: {error}")


def _checked(probe: Probe, readings: Sequence[Reading]) -> tuple[Reading, ...]:
    checked = tuple(readings)
    for each in checked:
        if not isinstance(each, Sample | Absence) or each.metric not in probe.metrics:
            raise ProbeFailed(f"{probe.name} told what it does not measure")
    return checked


def _of_job(identity: JobIdentity, told: Sequence[tuple[Probe, _Told]]) -> tuple[Reading, ...]:
    """One reading a series, the first; reasons only where there is no number for that."""
    samples: dict[_SeriesKey, Sample] = {}
    absences: dict[_SeriesKey, Absence] = {}
    for probe, answer in told:
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


def _readings(probe: Probe, answer: _Told, identity: JobIdentity) -> list[Reading]:
    if isinstance(answer, ProbeFailed):
        reason, error = _words(answer.reason), _words(answer.last_error)
        return [Absence(metric, reason, error) for metric in sorted(probe.metrics)]
    readings = list(answer[identity])
    untold = probe.metrics.difference(each.metric for each in readings)
    reason = f"{probe.name} told nothing of it"
    return readings + [Absence(metric, reason) for metric in sorted(untold)]


def _words(text: str) -> str:
    return inert(str(text))[:_LONGEST_WORDS]
