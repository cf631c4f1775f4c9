"""The rules that Lattice brings, in the order of their lines. Pure; nothing registers itself."""

from __future__ import annotations

from lattice.features.diag.model import Rule
from lattice.features.diag.rules.bandwidth import Bandwidth, BetweenNodes, GroupSpan
from lattice.features.diag.rules.buffered_output import BufferedOutput
from lattice.features.diag.rules.clock import Clock
from lattice.features.diag.rules.congestion import Congestion
from lattice.features.diag.rules.data_loader import DataLoader
from lattice.features.diag.rules.gpu_errors import GpuErrors
from lattice.features.diag.rules.gpu_hang import GpuHang
from lattice.features.diag.rules.gpu_health import GpuHealth
from lattice.features.diag.rules.gpu_idle import GpuIdle
from lattice.features.diag.rules.hung_mount import HungMount
from lattice.features.diag.rules.io_latency import IoLatency
from lattice.features.diag.rules.job_hang import JobHang
from lattice.features.diag.rules.link_down import LinkDown
from lattice.features.diag.rules.link_errors import LinkErrors
from lattice.features.diag.rules.link_flapping import LinkFlapping
from lattice.features.diag.rules.link_speed import LinkSpeed
from lattice.features.diag.rules.memory_limit import MemoryLimit
from lattice.features.diag.rules.node_silent import NodeSilent
from lattice.features.diag.rules.nvlink import GpuTraffic
from lattice.features.diag.rules.oom_kill import OomKill
from lattice.features.diag.rules.retransmits import Retransmits
from lattice.features.diag.rules.slow_mount import SlowMount
from lattice.features.diag.rules.straggler import Straggler
from lattice.features.diag.rules.throttle import Throttle


def known_rules() -> tuple[Rule, ...]:
    """One of each."""
    return (
        NodeSilent(),
        JobHang(),
        Straggler(),
        BufferedOutput(),
        Clock(),
        OomKill(),
        MemoryLimit(),
        GroupSpan(),
        LinkDown(),
        LinkFlapping(),
        LinkSpeed(),
        LinkErrors(),
        Retransmits(),
        Congestion(),
        Bandwidth(),
        BetweenNodes(),
        HungMount(),
        SlowMount(),
        IoLatency(),
        GpuErrors(),
        GpuHang(),
        GpuHealth(),
        Throttle(),
        GpuIdle(),
        DataLoader(),
        GpuTraffic(),
    )
