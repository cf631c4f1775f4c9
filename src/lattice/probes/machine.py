"""Whether a node has the cores and the memory that the site expects.

Read once, from `/proc` and `/sys`: both change only with a restart of the node. A value that can't
be read is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GIB = 1 << 30
_TOLERANCE = 0.1
"""The kernel reserves some memory, and sites write sizes in GB as well as in GiB."""
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExpectedMachine:
    """What the site expects the node to have; None: no expectation."""

    cpu_cores: int | None = None
    memory_gb: int | None = None


def machine_differences(
    expected: ExpectedMachine, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> tuple[str, ...]:
    """One sentence for each difference."""
    return tuple(_differences(expected, proc, sys))


def _differences(expected: ExpectedMachine, proc: Path, sys: Path) -> Iterator[str]:
    if expected.cpu_cores is not None:
        cores, threads = _cores(sys)
        if threads and expected.cpu_cores not in {cores, threads}:
            of = f" with {threads} threads" if threads != cores else ""
            yield f"{cores} cores{of} instead of {expected.cpu_cores}"
    if expected.memory_gb is not None:
        found = _memory_bytes(proc) / _GIB
        if found and abs(found - expected.memory_gb) > _TOLERANCE * expected.memory_gb:
            yield f"{found:.0f} GiB of memory instead of {expected.memory_gb}"


def _cores(sys: Path) -> tuple[int, int]:
    """Online cores and threads; a thread with an unknown core counts as a core."""
    cores, threads = set(), 0
    for folder in (sys / "devices/system/cpu").glob("cpu[0-9]*"):
        topology = folder / "topology"
        # An offline CPU has no topology.
        if not topology.is_dir():
            continue
        threads += 1
        core = (folder.name, "")
        with suppress(OSError):
            package = (topology / "physical_package_id").read_text().strip()
            core = (package, (topology / "core_id").read_text().strip())
        cores.add(core)
    return len(cores), threads


def _memory_bytes(proc: Path) -> int:
    with suppress(OSError):
        if total := _TOTAL.search((proc / "meminfo").read_text()):
            return int(total[1]) * 1024
    return 0
