"""GPUs of the lab's nodes: what their agents find where a driver would be.

Slurm gives out device files (`lab.slurm_config`); behind them is nothing. The agent of n1 has a
`libnvidia-ml.so.1` on its library path that answers from a text file, so that the real binding
runs; n2 has the same library with a driver that is broken; n3 has no driver at all. On n1 the
minor numbers of the device files count down while NVML's index counts up, as on real machines
they may.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.command import run
from lab.layout import Layout
from lab.slurm_config import GPUS

SOURCE = Path(__file__).parents[1] / "tests" / "fakes" / "nvml" / "nvml.c"
LIBRARY = "libnvidia-ml.so.1"
STATE = "NVML_STATE"
"""The variable that names the file which says what the library answers."""
SOUND, BROKEN = "n1", "n2"
DRIVER_NOT_LOADED = 9

_MIB = 2**20
CARD: dict[str, object] = {
    "name": "NVIDIA A100-SXM4-40GB",
    "utilization": 87,
    "memory_total": 40 * 1024 * _MIB,
    "memory_used": 30 * 1024 * _MIB,
    "power": 312_500,
    "power_limit": 400_000,
    "energy": 5_000_000,
    "temperature": 61,
    "clock_sm": 1410,
    "clock_memory": 1215,
    "throttle": 0,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "pcie_tx": 2_000,
    "pcie_rx": 3_000,
    "nvlink_tx": 1_000,
    "nvlink_rx": 500,
    "nvlink_count": 12,
    "nvlink_speed": 25_000,
    "nvlink_up": 1,
    "mig": 0,
}
"""A card at work."""


def uuid_of(card: int) -> str:
    """Of the card with this index of NVML's."""
    return f"GPU-00000000-0000-0000-0000-{card:012d}"


def mig_uuid_of(card: int, instance: int) -> str:
    return f"MIG-00000000-0000-0000-{card:04d}-{instance:012d}"


def build_library(folder: Path) -> Path:
    """The compiled library in this folder; compiled when its source has changed."""
    library = folder / LIBRARY
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        # Several may build at once; each has a file of its own until it is whole.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / LIBRARY
            words = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
            run(["cc", *words, f"-Wl,-soname,{LIBRARY}", "-o", str(made), str(SOURCE)])
            made.chmod(0o755)
            made.rename(library)
    return library


class NvmlState:
    """The file: cards at work, and what differs from that."""

    def __init__(self, file: Path, cards: int = 8) -> None:
        self.file = file
        self._lines: list[str] = []
        self._cards = cards
        self.begin()

    def begin(self) -> None:
        """As at first: the minor number counts down while NVML's index counts up."""
        self._lines = [f"gpus {self._cards}"]
        self._lines += [f"gpu * {key} {value}" for key, value in CARD.items()]
        for card in range(self._cards):
            self._lines.append(f"gpu {card} uuid {uuid_of(card)}")
            self._lines.append(f"gpu {card} minor {self._cards - 1 - card}")
        self._write()

    def cards(self, count: int) -> None:
        """As many as this are there."""
        self._add(f"gpus {count}")

    def init_fails(self, code: int) -> None:
        self._add(f"init {code}")

    def hang(self, seconds: int) -> None:
        """Every call waits so long first."""
        self._add(f"hang {seconds}")

    def init_works(self) -> None:
        self._add("init 0")

    def card(self, card: int | str, **facts: object) -> None:
        """Of one card, or with `*` of all."""
        self._lines += [f"gpu {card} {key} {value}" for key, value in facts.items()]
        self._write()

    def fails(self, card: int | str, key: str, code: int) -> None:
        self._add(f"gpu {card} {key} error:{code}")

    def instance(self, card: int, instance: int, *, used: int, total: int) -> None:
        """A MIG instance; the card is then in MIG mode."""
        where = f"mig {card} {instance}"
        self._lines += [f"gpu {card} mig 1", f"{where} uuid {mig_uuid_of(card, instance)}"]
        self._lines += [f"{where} memory_used {used}", f"{where} memory_total {total}"]
        self._write()

    def xid(self, card: int, number: int) -> None:
        self._add(f"xid {card} {number}")

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._write()

    def _write(self) -> None:
        # As one: the library may look at any moment.
        partial = self.file.with_suffix(".partial")
        partial.write_text("\n".join(self._lines) + "\n")
        partial.chmod(0o644)
        partial.rename(self.file)


class NodeGpus:
    """What the agent of one node finds."""

    def __init__(self, node: str, layout: Layout) -> None:
        self._node = node
        self._folder = layout.state / "gpus"
        self._file = self._folder / f"{node}.state"

    @property
    def environment(self) -> dict[str, str]:
        """Of its agent; empty for a node without a driver."""
        if self._node not in (SOUND, BROKEN):
            return {}
        return {"LD_LIBRARY_PATH": str(self._folder), STATE: str(self._file)}

    def prepare(self) -> None:
        """Before its agent starts. What was changed stays: an agent may start anew meanwhile."""
        if self.environment and shutil.which("cc"):
            build_library(self._folder)
            if not self._file.exists():
                self._begin()

    @contextmanager
    def changed(self) -> Iterator[NvmlState]:
        """The node's cards, to be changed while the context lasts."""
        try:
            yield self._begin()
        finally:
            self._begin()

    def _begin(self) -> NvmlState:
        state = NvmlState(self._file, cards=GPUS)
        for card in range(GPUS):
            # So that a test can tell whose figure it sees.
            watts = 300 + 10 * card
            state.card(card, utilization=80 + card, power=watts * 1000)
            state.card(card, energy=f"~{watts * 1000}", nvlink_tx="~1000", nvlink_rx="~500")
        if self._node == BROKEN:
            state.init_fails(DRIVER_NOT_LOADED)
        return state
