"""The slices of this node: asks their guests, and decides where each job is measured.

A guest is asked when one of its jobs is sampled, and at least every 30 s. Calls that overlap share
one answer. A guest that failed is left alone for 10 s, and its reason repeated. So it delays the
node's other jobs once, and not at every sample.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from lattice.adapters.guest_ssh import GuestUnavailable, SshGuest
from lattice.agent.guest_address import guest_address
from lattice.agent.sections import SliceSection
from lattice.agent.slice_start import StartRecord
from lattice.base.clock import Clock
from lattice.domain.guest_report import (
    BadReport,
    CheckedReport,
    ExpectedCards,
    GuestReport,
    HostSide,
    checked,
    read_report,
    readings_of,
)
from lattice.domain.metric import MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.domain.slices import (
    HostReadings,
    InSlices,
    JobReadings,
    JobSite,
    NodeSlice,
    OnHost,
    SliceCard,
    SliceGpus,
    SliceGuest,
    SliceHost,
    SlicePort,
    SliceState,
    Unplaced,
    nothing_measured,
    site_of,
    without_slice_cards,
)

_log = logging.getLogger(__name__)

EVERY_S = 30.0
REST_S = 10.0
"""After a failure; then the guest is asked again."""
_GIB = 2**30
_MEMORY = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
INVALID = "the guest's report is not valid"


class ReportSource(Protocol):
    """Gets the text of one report, with the facts of the machine if `start`."""

    def __call__(self, *, start: bool) -> Awaitable[bytes]:
        """Raises `GuestUnavailable`."""


@dataclass(frozen=True, slots=True)
class GuestAnswer:
    """The result of one call, and when it was received: a checked report, or the reason."""

    time: float
    report: CheckedReport | None = None
    reason: str = ""
    last_error: str = ""


class Guest:
    """One guest, asked by one call at a time."""

    def __init__(
        self,
        name: str,
        report: ReportSource,
        check: Callable[[GuestReport], CheckedReport],
        clock: Clock,
        start: StartRecord | None = None,
    ) -> None:
        self.name = name
        self.start = start or StartRecord()
        self.last: GuestAnswer | None = None
        """The newest answer; None: it was not asked yet."""
        self._report = report
        self._check = check
        self._clock = clock
        self._asking: asyncio.Task[GuestAnswer] | None = None
        self._again_s = 0.0
        self._was_asked_in_vain = False
        self._asked_s = -EVERY_S

    async def answer(self) -> GuestAnswer:
        """A new answer, or the reason of the last failure while the guest is left alone."""
        if self.last is not None and self._clock.monotonic() < self._again_s:
            return self.last
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name=f"guest of {self.name}")
        # Other callers wait for the same answer: one that is cancelled must not end it.
        return await asyncio.shield(self._asking)

    async def refresh(self) -> None:
        """Ask the guest if nobody has for a while."""
        if self._clock.monotonic() - self._asked_s >= EVERY_S - 1.0:
            await self.answer()

    async def aclose(self) -> None:
        """End the call that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> GuestAnswer:
        self._asked_s = self._clock.monotonic()
        # A guest that is too slow for its facts is still measured, by every other call.
        asked = self.start.is_needed and not self._was_asked_in_vain
        try:
            found = self._check(read_report(await self._report(start=asked)))
            answer = GuestAnswer(self._now(), found)
            if found.report is None:
                answer = GuestAnswer(self._now(), None, found.faults[0])
            else:
                self._note_start(found.report, asked=asked)
        except GuestUnavailable as error:
            answer = GuestAnswer(self._now(), None, error.reason, error.last_error)
        except BadReport as error:
            answer = GuestAnswer(self._now(), None, INVALID, str(error))
        self._was_asked_in_vain = asked and answer.report is None
        if answer.report is None:
            self._again_s = self._clock.monotonic() + REST_S
        if _trouble(answer) != _trouble(self.last):
            _log.info("slice %s: %s", self.name, _trouble(answer) or "its guest reports")
        self.last = answer
        return answer

    def _note_start(self, report: GuestReport, *, asked: bool) -> None:
        took_s = self._clock.monotonic() - self._asked_s
        before = self.last and self.last.report and self.last.report.report
        was_away = self.last is not None and (not before or before.boot_id != report.boot_id)
        self.start.note(report, self._clock.now(), took_s, asked=asked, was_away=was_away)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _trouble(answer: GuestAnswer | None) -> str:
    if answer is None:
        return ""
    faults = answer.report.faults if answer.report is not None else ()
    return "; ".join(filter(None, (answer.reason, answer.last_error, *faults)))


Reads: TypeAlias = Callable[
    [Sequence[NodeJob]], Awaitable[Mapping[JobIdentity, tuple[MetricReading, ...]]]
]


class Slices(Protocol):
    """The slices of a node and their guests."""

    @property
    def slices(self) -> Sequence[SliceGpus]: ...

    @property
    def guests(self) -> Mapping[str, Guest]: ...

    def cards(self) -> frozenset[str]:
        """The UUIDs of GPUs in slices."""


class SliceReader:
    """Reads each job where it runs: on the host by its probes, in slices by their guests."""

    def __init__(
        self, slices: Slices, gpus_of: Callable[[int], tuple[int, ...] | None], host: Reads
    ) -> None:
        """`gpus_of`: a job's GPUs by Slurm's numbers, None if not known yet.

        `host` reads jobs by the probes of the host.
        """
        self._slices = tuple(slices.slices)
        self._guests = dict(slices.guests)
        self._cards = slices.cards
        self._gpus_of = gpus_of
        self._host = host

    def site(self, job_id: int) -> JobSite:
        """Where the job runs."""
        return site_of(self._gpus_of(job_id), self._slices) if self._slices else OnHost()

    def guests_of(self, job_id: int) -> tuple[Guest, ...] | None:
        """The guests of the slices that a job runs in; None if it runs on the host."""
        site = self.site(job_id)
        if isinstance(site, OnHost):
            return None
        names = site.names if isinstance(site, InSlices) else ()
        return tuple(self._guests[name] for name in names)

    async def read(
        self, jobs: Sequence[NodeJob]
    ) -> Mapping[JobIdentity, tuple[MetricReading, ...]]:
        """The readings of each job, each from the one place that can measure it."""
        if not self._slices:
            return await self._host(jobs)
        sites = {job.identity: self.site(job.id) for job in jobs}
        on_host = [job for job in jobs if isinstance(sites[job.identity], OnHost)]
        host, others = await asyncio.gather(
            self._host(on_host) if on_host else _nothing(),
            asyncio.gather(*(self._in_slices(identity, site) for identity, site in sites.items())),
        )
        found: dict[JobIdentity, JobReadings] = {
            identity: readings for each in others for identity, readings in each.items()
        }
        cards = self._cards()
        for identity, readings in host.items():
            found[identity] = HostReadings(tuple(without_slice_cards(readings, cards)), cards)
        return {identity: readings.readings for identity, readings in found.items()}

    async def _in_slices(
        self, identity: JobIdentity, site: JobSite
    ) -> Mapping[JobIdentity, JobReadings]:
        if isinstance(site, OnHost):
            return {}
        if isinstance(site, Unplaced):
            return {identity: nothing_measured(site.reason)}
        answers = await asyncio.gather(*(self._guests[name].answer() for name in site.names))
        for each in answers:
            if each.report is None:
                return {identity: nothing_measured(each.reason, each.last_error)}
        reports = [each.report for each in answers if each.report is not None]
        return {identity: readings_of(reports, min(each.time for each in answers))}


async def _nothing() -> Mapping[JobIdentity, tuple[MetricReading, ...]]:
    return {}


class SliceParts:
    """The guests of this node and their loop."""

    def __init__(
        self,
        sections: Sequence[SliceSection],
        folder: Path,
        held_cards: Callable[[], Iterable[str]],
        clock: Clock,
        *,
        proc: Path = Path("/proc"),
    ) -> None:
        """`folder`: for the files of host keys. `held_cards`: what the host's driver serves."""
        self._held_cards = held_cards
        self._sections = tuple(sections)
        self._host = HostSide(
            boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
            memory_bytes=_memory_bytes(proc),
        )
        self.slices: Sequence[SliceGpus] = tuple(
            SliceGpus(each.name, each.gpus) for each in sections
        )
        self._named_cards = frozenset(card for each in sections for card in each.cards)
        self.guests: Mapping[str, Guest] = {
            each.name: self._guest(each, folder, clock) for each in sections
        }

    def _guest(self, section: SliceSection, folder: Path, clock: Clock) -> Guest:
        memory_gb = section.card_memory_gb
        expected = ExpectedCards(
            count=len(section.gpus),
            uuids=section.cards,
            memory_bytes=None if memory_gb is None else memory_gb * _GIB,
        )

        def check(report: GuestReport) -> CheckedReport:
            held = frozenset(self._held_cards())
            return checked(report, replace(self._host, held_cards=held), expected)

        start = StartRecord(folder / f"{section.name}.start.json")
        return Guest(
            section.name, SshGuest(guest_address(section), folder).report, check, clock, start
        )

    def cards(self) -> frozenset[str]:
        """The UUIDs of GPUs in slices: those that the site names, and those in good reports."""
        found = set(self._named_cards)
        for each in self.guests.values():
            if each.last is not None and each.last.report is not None:
                report, refused = each.last.report.report, each.last.report.refused
                gpus = report.gpus if report is not None else ()
                found.update(gpu.uuid for gpu in gpus if gpu.uuid not in refused)
        return frozenset(found)

    def states(self) -> tuple[NodeSlice, ...]:
        """Every slice as its guest last reported, for the servers."""
        return tuple(
            NodeSlice(
                guest=replace(
                    _slice_guest(each, self.guests[each.name].last),
                    start=self.guests[each.name].start.start,
                ),
                host=_slice_host(each),
            )
            for each in self._sections
        )

    async def run(self) -> None:
        """Ask every guest now and then, until cancelled."""
        try:
            while True:
                await asyncio.gather(*(each.refresh() for each in self.guests.values()))
                await asyncio.sleep(EVERY_S)
        finally:
            await asyncio.gather(*(each.aclose() for each in self.guests.values()))


def _slice_host(section: SliceSection) -> SliceHost:
    return SliceHost(address=section.address, bridge=section.bridge, netdata=section.netdata)


def _slice_guest(section: SliceSection, answer: GuestAnswer | None) -> SliceGuest:
    if answer is None:
        return SliceGuest(name=section.name, gpus=section.gpus)
    found = answer.report
    if found is None or found.report is None:
        return SliceGuest(
            name=section.name,
            gpus=section.gpus,
            state=SliceState.UNAVAILABLE,
            reason=answer.reason,
            last_error=answer.last_error,
        )
    return SliceGuest(
        name=section.name,
        gpus=section.gpus,
        state=SliceState.WARNING if found.faults else SliceState.HEALTHY,
        faults=found.faults,
        cards=tuple(
            SliceCard(uuid=gpu.uuid, name=gpu.name)
            for gpu in found.report.gpus
            if gpu.uuid not in found.refused
        ),
        # Without counters: every change of a node's health is written to the agreed state.
        ports=tuple(
            SlicePort(name=nic.name, kind=nic.kind, up=nic.up, speed_bits=nic.speed_bits)
            for nic in found.report.nics
        ),
    )


def _memory_bytes(proc: Path) -> float:
    found = _MEMORY.search((proc / "meminfo").read_text())
    return float(found[1]) * 1024 if found else float("inf")
