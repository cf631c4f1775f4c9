"""Jobs in slices are measured by their guests, whatever the host's probes would read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.guest_ssh import GuestUnavailable
from lattice.agent.slice_facts import SliceFacts
from lattice.agent.slices import INVALID, REST_S, Guest, SliceReader
from lattice.base.errors import Unavailable
from lattice.domain.guest_report import (
    OF_A_CARD,
    OF_THE_GUEST,
    CheckedReport,
    ExpectedCards,
    GuestReport,
    HostSide,
    checked,
)
from lattice.domain.jobfacts import GpuFact
from lattice.domain.metric import (
    CATALOGUE,
    Absence,
    MetricReading,
    Per,
    Provenance,
    Sample,
    labelled,
)
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.domain.slices import InSlices, OnHost, SliceGpus, site_of
from lattice.probes.facts.guests import guest_gpu_facts
from tests.fakes.manual_clock import RECORDED, ManualClock

TIME = RECORDED.timestamp()
HOST_VALUE, GUEST_VALUE = 77.0, 11.0
HOST_BOOT = "00000000-0000-0000-0000-00000000000f"
CARDS = [f"GPU-{each}000" for each in range(6)]
Indices = tuple[int, ...] | None


def job(number: int) -> NodeJob:
    return NodeJob(identity=JobIdentity("boot", number, number, TIME), started_by=StartSign.FOLDER)


def report_text(cards: Sequence[str], boot_id: str = "") -> bytes:
    boot_id = boot_id or "00000000-0000-0000-0000-000000000001"
    figures = dict.fromkeys(OF_A_CARD, GUEST_VALUE)
    return json.dumps(
        {
            "version": 1,
            "boot_id": boot_id,
            "gpu": {
                "reason": "" if cards else "the guest has no NVIDIA GPU",
                "last_error": "",
                "cards": [{"uuid": each, "figures": figures, "throttled": []} for each in cards],
            },
            "figures": dict.fromkeys(OF_THE_GUEST, GUEST_VALUE),
            "nics": [],
        }
    ).encode()


def host_readings(cards: Sequence[str]) -> tuple[MetricReading, ...]:
    """What the probes of a host would say that still serves every card."""
    found: list[MetricReading] = []
    for name, metric in CATALOGUE.items():
        if metric.labels:
            continue
        labels = [labelled(gpu_uuid=each) for each in cards] if metric.per is Per.GPU else [()]
        found += [Sample(name, HOST_VALUE, TIME, labels=each) for each in labels]
    return tuple(found)


def guest(
    name: str,
    report: Callable[[], bytes],
    *,
    held: Sequence[str] = (),
    cards: Sequence[str] = (),
    clock: ManualClock | None = None,
) -> Guest:
    host = HostSide(boot_id=HOST_BOOT, memory_bytes=1e12, held_cards=frozenset(held))

    async def text(*, start: bool) -> bytes:
        del start
        return report()

    def check(found: GuestReport) -> CheckedReport:
        return checked(found, host, ExpectedCards(uuids=tuple(cards)))

    return Guest(name, text, check, clock or ManualClock())


@dataclass(frozen=True)
class NodeSlices:
    slices: Sequence[SliceGpus]
    guests: Mapping[str, Guest]

    def cards(self) -> frozenset[str]:
        return frozenset(CARDS[number] for each in self.slices for number in each.gpus)


def reader(
    slices: Sequence[SliceGpus], guests: Mapping[str, Guest], gpus: Mapping[int, Indices]
) -> SliceReader:
    async def host(jobs: Sequence[NodeJob]) -> dict[JobIdentity, tuple[MetricReading, ...]]:
        return {each.identity: host_readings(CARDS) for each in jobs}

    return SliceReader(NodeSlices(slices, guests), lambda job_id: gpus[job_id], host)


splits = st.permutations(range(len(CARDS))).flatmap(
    lambda order: st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
        lambda sizes: tuple(
            SliceGpus(f"s{index}", tuple(order[sum(sizes[:index]) : sum(sizes[: index + 1])]))
            for index in range(len(sizes))
            if order[sum(sizes[:index]) : sum(sizes[: index + 1])]
        )
    )
)
faults = st.sampled_from(["none", "silent", "broken", "host", "foreign card", "no card", "garbage"])
some_gpus = st.one_of(
    st.none(), st.sets(st.integers(0, len(CARDS) - 1)).map(lambda found: tuple(sorted(found)))
)


def faulty(fault: str, gpus: tuple[int, ...]) -> Callable[[], bytes]:
    own = [CARDS[each] for each in gpus]

    def report() -> bytes:
        if fault == "silent":
            raise GuestUnavailable("the guest can't be reached")
        if fault == "garbage":
            return b"\xff{"
        if fault == "host":
            return report_text(own, HOST_BOOT)
        return report_text({"foreign card": CARDS, "no card": []}.get(fault, own))

    return report


@pytest.mark.spec("SRC-3", "SRC-2")
@given(
    slices=splits,
    wishes=st.lists(some_gpus, min_size=1, max_size=4),
    faults_of=st.lists(faults, min_size=3, max_size=3),
    held=st.sets(st.sampled_from(CARDS)),
)
def test_no_value_of_the_host_reaches_a_job_in_a_slice(
    slices: tuple[SliceGpus, ...],
    wishes: list[Indices],
    faults_of: list[str],
    held: set[str],
) -> None:
    guests = {
        each.name: guest(
            each.name,
            faulty(fault, each.gpus),
            held=sorted(held),
            cards=[CARDS[number] for number in each.gpus],
        )
        for each, fault in zip(slices, faults_of, strict=False)
    }
    gpus = dict(enumerate(wishes))
    reads = reader(slices, guests, gpus)
    found = asyncio.run(reads.read([job(each) for each in gpus]))
    in_slices = {CARDS[number] for each in slices for number in each.gpus}
    for number, readings in ((identity.job_id, each) for identity, each in found.items()):
        site = site_of(gpus[number], slices)
        samples = [each for each in readings if isinstance(each, Sample)]
        assert {each.metric for each in readings} >= {
            each for each, metric in CATALOGUE.items() if not metric.labels
        }
        if isinstance(site, OnHost):
            assert all(each.value == HOST_VALUE for each in samples)
            assert not in_slices.intersection(each.label("gpu_uuid") for each in samples)
            continue
        assert all(each.source is Provenance.SLICE_GUEST for each in samples)
        assert HOST_VALUE not in {each.value for each in samples}
        if not isinstance(site, InSlices):
            assert not samples
            continue
        own = {CARDS[each] for each in gpus[number] or ()}
        shown = {each.label("gpu_uuid") for each in samples} - {""}
        assert shown <= own - held
        assert facts_of(reads, number) <= own - held


def facts_of(reads: SliceReader, job_id: int) -> set[str]:
    """The other way by which figures of a card reach a person: the facts of a diagnosis."""
    guests = reads.guests_of(job_id)
    assert guests is not None
    reports = [
        each.last.report
        for each in guests
        if each.last is not None and each.last.report is not None
    ]
    facts: tuple[GpuFact, ...] = guest_gpu_facts(reports, TIME)[0]
    assert all(each.pcie_width is None for each in facts)
    return {each.uuid for each in facts}


async def test_callers_share_one_answer() -> None:
    asked: list[int] = []
    ready = asyncio.Event()

    async def report(*, start: bool) -> bytes:
        assert start, "until the facts of its start are known"
        asked.append(1)
        await ready.wait()
        return report_text([CARDS[0]])

    host = HostSide(boot_id=HOST_BOOT)
    shared = Guest("a", report, lambda found: checked(found, host, ExpectedCards()), ManualClock())
    first, second = (asyncio.create_task(shared.answer()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    ready.set()
    answer = await second
    assert answer.report is not None
    assert asked == [1]


@pytest.mark.spec("SLICE-2")
async def test_a_guest_that_is_too_slow_for_its_facts_is_still_measured() -> None:
    clock, asked = ManualClock(), []

    async def report(*, start: bool) -> bytes:
        asked.append(start)
        if start:
            raise GuestUnavailable("the guest took longer than 3 s for its report")
        return report_text([CARDS[0]])

    host = HostSide(boot_id=HOST_BOOT)
    slow = Guest("a", report, lambda found: checked(found, host, ExpectedCards()), clock)
    for _ in range(4):
        await slow.answer()
        clock.advance(REST_S)
    assert asked == [True, False, True, False]
    assert slow.last is not None
    assert slow.last.report is not None


async def test_a_guest_that_failed_is_left_alone_for_a_while() -> None:
    clock, asked = ManualClock(), []

    def report() -> bytes:
        asked.append(1)
        raise GuestUnavailable("why", "the error")

    failing = guest("a", report, clock=clock)
    for _ in range(3):
        assert (await failing.answer()).reason == "why"
    assert len(asked) == 1
    clock.advance(REST_S + 1)
    await failing.answer()
    assert len(asked) == 2


async def test_a_report_that_is_none_is_named() -> None:
    answer = await guest("a", lambda: b"{}").answer()
    assert (answer.reason, answer.last_error) == (INVALID, "of another version")


async def test_a_node_without_slices_reads_as_before() -> None:
    (readings,) = (await reader((), {}, {1: None}).read([job(1)])).values()
    assert readings == host_readings(CARDS)


async def test_two_slices_of_a_job_are_summed_only_if_both_report() -> None:
    slices = (SliceGpus("a", (0,)), SliceGpus("b", (1,)))
    good = {each.name: guest(each.name, faulty("none", each.gpus)) for each in slices}
    (both,) = (await reader(slices, good, {1: (0, 1)}).read([job(1)])).values()
    cpu = [each for each in both if each.metric == "cpu_cores"]
    assert [each.value for each in cpu if isinstance(each, Sample)] == [2 * GUEST_VALUE]
    bad = good | {"b": guest("b", faulty("silent", (1,)))}
    (one,) = (await reader(slices, bad, {1: (0, 1)}).read([job(1)])).values()
    assert all(isinstance(each, Absence) for each in one)


HOST_JOB, SLICE_JOB, PART_JOB = 1, 2, 3


async def test_facts_of_a_job_in_a_slice_are_of_its_guest() -> None:
    slices = (SliceGpus("a", (0, 1)),)
    text = json.loads(report_text([CARDS[0], CARDS[1]]))
    text["nics"] = [{"name": "mlx5_0/1", "kind": "rdma", "up": True, "speed_bits": 4e11}]
    inside = guest("a", lambda: json.dumps(text).encode())
    gpus: dict[int, Indices] = {HOST_JOB: (5,), SLICE_JOB: (0, 1), PART_JOB: (0,)}
    facts = SliceFacts(reader(slices, {"a": inside}, gpus), lambda: TIME)
    assert facts.network(job(HOST_JOB).identity) is None
    assert facts.gpus(job(HOST_JOB).identity) is None
    with pytest.raises(Unavailable, match="was not asked yet"):
        facts.network(job(SLICE_JOB).identity)
    with pytest.raises(Unavailable, match="only some GPUs of the slice a"):
        facts.gpus(job(PART_JOB).identity)
    await inside.answer()
    network, cards = facts.network(job(SLICE_JOB).identity), facts.gpus(job(SLICE_JOB).identity)
    assert network is not None
    assert [(each.name, each.speed_bits) for each in network.links] == [("mlx5_0/1", 4e11)]
    assert network.transport is None
    assert cards is not None
    assert {each.uuid for each in cards.facts} == {CARDS[0], CARDS[1]}
    assert {each.health for each in cards.facts} == {"failure"}, "11 uncorrected errors in each"


async def test_a_guest_that_fails_gives_no_facts_of_the_host() -> None:
    def report() -> bytes:
        raise GuestUnavailable("the guest can't be reached")

    silent = guest("a", report)
    await silent.answer()
    reads = reader((SliceGpus("a", (0,)),), {"a": silent}, {SLICE_JOB: (0,)})
    with pytest.raises(Unavailable, match="can't be reached"):
        SliceFacts(reads, lambda: TIME).network(job(SLICE_JOB).identity)
