"""The section `diag` of the server's configuration: targets, and rules that are off.

`wiring.targets_of` converts it to `Targets`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lattice.base.config import ConfigReport
from lattice.base.setting import required, setting
from lattice.observe.thresholds import Thresholds

_USUAL = Thresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFloor:
    path: str = required("Where it is mounted; what lies below counts too.")
    read_mb_s: float | None = setting(
        None, "What a node can read at least, in MB (1e6 bytes) a second.", least=0, most=1e7
    )
    write_mb_s: float | None = setting(
        None, "What a node can write at least, in MB a second.", least=0, most=1e7
    )
    answers_ms: float | None = setting(
        None, "How long a look at it may take. Not set: `mount_answers_s`.", least=0, most=1e6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFloor:
    name: str = required("Name of the links, as the kernel has it; `*` stands for any letters.")
    gbit_s: float = required("How fast they are to be, in Gbit a second.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagSection:
    mounts: tuple[MountFloor, ...] = setting((), "QoS floors of file systems.")
    links: tuple[LinkFloor, ...] = setting((), "How fast links are to be.")
    without: tuple[str, ...] = setting((), "Names of rules that are not in force.")
    gpu_idle_percent: float = setting(
        _USUAL.gpu_idle_percent, "Below it a GPU counts as idle.", least=0, most=100
    )
    hang_s: float = setting(
        _USUAL.hang_s, "A job of which nothing moved for so long hangs.", least=30, most=86400
    )
    straggler_percent: float = setting(
        _USUAL.straggler_percent,
        "By how much one has to differ from the rest to be a straggler.",
        least=5,
        most=100,
    )
    loader_gpu_percent: float = setting(
        _USUAL.loader_gpu_percent,
        "Below it GPUs may be waiting for their input.",
        least=0,
        most=100,
    )
    memory_percent: float = setting(
        _USUAL.memory_percent, "From here on memory is near its limit.", least=1, most=100
    )
    link_error_percent: float = setting(
        _USUAL.network_error_percent, "Share of packets lost to errors.", least=0, most=100
    )
    retransmit_percent: float = setting(
        _USUAL.retransmit_percent, "Share of TCP segments sent again.", least=0, most=100
    )
    congestion_percent: float = setting(
        _USUAL.congestion_percent,
        "Share of time or packets that waited or were marked.",
        least=0,
        most=100,
    )
    mount_answers_s: float = setting(
        _USUAL.mount_answers_s, "How long a look at a file system may take.", least=0.001, most=60
    )
    io_p99_s: float = setting(
        _USUAL.io_fault_p99_s,
        "How long 99 of 100 reads and writes may take.",
        least=0.0001,
        most=60,
    )
    clock_s: float = setting(
        _USUAL.clock_s, "How far a node's clock may be off.", least=0.01, most=3600
    )
    quiet_s: float = setting(
        _USUAL.quiet_s,
        "A job that works and writes nothing for so long is quiet.",
        least=30,
        most=86400,
    )


def judge_diag(diag: DiagSection, report: ConfigReport) -> None:
    """Check rules between keys."""
    paths = Counter(each.path for each in diag.mounts)
    for index, mount in enumerate(diag.mounts):
        path = f"diag.mounts[{index}].path"
        if not mount.path.startswith("/"):
            report.problem(path, "must be an absolute path")
        elif paths[mount.path] > 1:
            report.problem(path, f"{mount.path} stands more than once")
    for index, link in enumerate(diag.links):
        if not 0 < link.gbit_s <= 1e6:
            report.problem(f"diag.links[{index}].gbit_s", "must be more than 0")
