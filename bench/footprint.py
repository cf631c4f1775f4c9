"""What Lattice takes while nothing happens: disk, memory and processor of each process.

    just bench footprint [--rounds 7] [--seconds 20] | tee bench/results/DATE-bench-footprint.jsonl

A lab of its own runs with three nodes, one server and its gate, and no job. Each process counts
with its descendants. Memory is counted as in `bench/agent_memory.py`. Sizes on disk are those of
Lattice and of the libraries of each package of a release, as they are installed here.
`python -m scripts.footprint_page` writes the table of the documents from the newest result.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from bench.agent_memory import Memory, memory_of
from bench.figures import Figure, load, measured
from bench.measuring import Meter, family
from lab.laboratory import Lab
from scripts.packaging.parts import PARTS, Part

ROUNDS = 7
_PACKAGE = "lattice-hpc"
_NODE = "n1"
_MIB = 1 << 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_SETTLE_S = 40.0
"""What follows a start is over: certificates, a look at what was missed, the first samples."""


def normal(name: str) -> str:
    """The name of a distribution as packaging compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted_by(
    requirements: list[str], extras: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names, with their own extras, of what a distribution needs with these extras.

    A name that is for another system or Python is not installed here, and so is left out later.
    """
    for text in requirements:
        found = _REQUIREMENT.match(text)
        if found is None:
            continue
        name, own, marker = found.groups()
        only_for = _EXTRA.findall(marker or "")
        if not only_for or set(only_for) & set(extras):
            yield normal(name), tuple(filter(None, (own or "").replace(" ", "").split(",")))


def libraries(part: Part) -> dict[str, Distribution]:
    """Every distribution that a package of a release has beside Lattice itself, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(normal(_PACKAGE), part.extras), *((normal(each), ()) for each in part.more)]
    seen = set(waiting)
    for name, own in waiting:
        try:
            found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            continue
        for each in wanted_by(found[name].requires or [], own):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    del found[normal(_PACKAGE)]
    return found


def size_bytes(found: Distribution) -> int:
    """Of its files, without what Python compiles."""
    files = (Path(str(each.locate())) for each in found.files or () if each.suffix != ".pyc")
    return sum(each.stat().st_size for each in files if each.is_file())


def own_bytes() -> int:
    """Of the package itself."""
    folder = Path(__file__).parents[1] / "src" / "lattice"
    return sum(
        each.stat().st_size
        for each in folder.rglob("*")
        if each.is_file() and each.suffix not in {".pyc", ".pyi"}
    )


def disk() -> Iterator[tuple[Figure, dict[str, object]]]:
    own = Figure(name="Lattice itself: on disk", value=round(own_bytes() / _MIB, 1), unit="MiB")
    yield own, {}
    for part in PARTS:
        sizes = {name: size_bytes(each) for name, each in libraries(part).items()}
        figure = Figure(
            name=f"{part.name}: libraries on disk",
            value=round(sum(sizes.values()) / _MIB, 1),
            unit="MiB",
        )
        largest = sorted(sizes, key=lambda name: -sizes[name])
        yield figure, {"libraries": {name: round(sizes[name] / _MIB, 2) for name in largest}}


class AtRest:
    """Processor time and memory of each process, by rounds."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.percent: dict[str, list[float]] = {name: [] for name in pids}
        self.memory: dict[str, list[Memory]] = {name: [] for name in pids}

    def run(self, seconds: float) -> None:
        meter = Meter(self._pids)
        time.sleep(seconds)
        took_s = meter.took_s
        for name, used_s in meter.used_s().items():
            self.percent[name].append(used_s / took_s * 100)
            self.memory[name].append(memory_of(family(self._pids[name])))

    def figures(self) -> Iterator[tuple[Figure, dict[str, object]]]:
        for name, taken in self.memory.items():
            facts: dict[str, object] = {"processes": taken[-1].processes}
            for kind in ("pss", "uss", "resident"):
                values = [getattr(each, kind) for each in taken]
                yield measured(f"{name}: {kind} at rest", "MiB", values), facts
            yield measured(f"{name}: processor at rest", "% of a core", self.percent[name]), facts


def standing(lab: Lab) -> dict[str, int]:
    """The processes that run where nobody asks for anything."""
    agent = lab.node(_NODE).agent
    return {
        "server": lab.servers[0].process.pid,
        "gate": lab.gate.process.pid,
        "agent": agent.process.pid,
        "helper": agent.helper.process.pid,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.footprint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7 for a result")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("page frames and the lab need root")
    with Lab("footprint") as lab:
        rest = AtRest(standing(lab))
        time.sleep(_SETTLE_S)
        for _ in range(options.rounds):
            rest.run(options.seconds)
        lab.down(purge=True)
    facts = {"rounds": options.rounds, "seconds": options.seconds, "load": load()}
    for figure, more in (*disk(), *rest.figures()):
        figure.print(**more, **facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
