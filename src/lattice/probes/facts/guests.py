"""A job in slices: facts about the GPUs and the network ports of its guests, and none of the host.

The host's links, its PCIe widths and its verdict about a card say nothing about the guest.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.domain.guest_report import CARD_LOST, CheckedReport, GuestGpu, GuestNic
from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact, LinkFact, LinkKind
from lattice.probes.facts.gpus import HEALTH_NAMES
from lattice.probes.gpuhealth import CardCondition, ExpectedGpus, GpuHealthJudge, GpuReading

NOT_IN_GUEST = "the job runs in a slice, whose guest does not report it"
NOT_ASKED = "the guest of the slice was not asked yet"
_CORRECTED, _UNCORRECTED = "gpu_ecc_corrected_total", "gpu_ecc_uncorrected_total"


def guest_gpu_facts(
    reports: Sequence[CheckedReport], time: float
) -> tuple[tuple[GpuFact, ...], tuple[FactAbsence, ...]]:
    """The GPUs of the guests, judged by what the guests report."""
    facts, absences = [], []
    for each in reports:
        for gpu in each.report.gpus if each.report is not None else ():
            if reason := each.refused.get(gpu.uuid):
                absences.append(FactAbsence(FactKind.GPUS, reason, gpu.uuid))
                continue
            facts.append(_gpu_fact(gpu, time))
    return tuple(facts), tuple(absences)


def _gpu_fact(gpu: GuestGpu, time: float) -> GpuFact:
    condition = CardCondition(
        uuid=gpu.uuid,
        name=gpu.name,
        lost=f"{CARD_LOST}: {gpu.lost}" if gpu.lost else "",
        ecc_corrected=_whole(gpu, _CORRECTED),
        ecc_uncorrected=_whole(gpu, _UNCORRECTED),
        throttled=gpu.throttled or (),
    )
    verdict = GpuHealthJudge(ExpectedGpus()).see(GpuReading(time=time, cards=(condition,)))
    return GpuFact(
        uuid=gpu.uuid,
        name=gpu.name,
        health=HEALTH_NAMES.get(verdict.health, ""),
        words="; ".join(verdict.words),
    )


def _whole(gpu: GuestGpu, metric: str) -> int | None:
    value = gpu.figures.get(metric)
    return None if value is None else int(value)


_KINDS = {"ethernet": LinkKind.ETHERNET, "infiniband": LinkKind.INFINIBAND}


def guest_link_facts(reports: Sequence[CheckedReport]) -> tuple[LinkFact, ...]:
    """The network ports of the guests, and the ports of their RDMA devices."""
    return tuple(
        _link_fact(nic)
        for each in reports
        for nic in (each.report.nics if each.report is not None else ())
    )


def _link_fact(nic: GuestNic) -> LinkFact:
    return LinkFact(
        name=nic.name,
        kind=_KINDS.get(nic.kind, LinkKind.INFINIBAND),
        up=nic.up,
        speed_bits=nic.speed_bits,
        rx_bytes=nic.rx_bytes,
        tx_bytes=nic.tx_bytes,
    )
