"""Captured files of a node's kernel in a folder, the job in them, and a helper that is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lattice.domain.counters import CounterAnswer, CountersUnavailable, Rows
from lattice.domain.metric import Absence, MetricReading, Sample
from lattice.domain.nodejobs import JobFolder, JobIdentity, NodeJob, StartSign
from lattice.probes.probe import ProbeRoots

CAPTURED = Path(__file__).parents[1] / "fixtures/probes"
V1_CONTROLLERS = ("freezer", "memory", "cpuacct", "cpuset", "cpu")
V1_JOB = "slurm_n1/uid_3001/job_8"
V2_JOB = "system.slice/v1_slurmstepd.scope/job_11"
STARTED = 1_794_700_000.0


class Tree:
    """`v1` or `v2`, as captured; a test changes what it likes."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.roots = ProbeRoots(root / "proc", root / "sys", root / "cgroup")
        for part in ("\n" + (CAPTURED / f"{name}.txt").read_text()).split("\n== ")[1:]:
            path, _, text = part.partition("\n")
            self.write(path, text + "\n" if text else "")
        self.job = v1_job(self.roots) if name == "v1" else v2_job(self.roots)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@dataclass
class Line:
    """What the helper tells, or why it does not."""

    told: dict[str, dict[int, Rows]] = field(default_factory=dict)
    fails: CountersUnavailable | None = None
    asked: int = 0
    unread: dict[int, str] = field(default_factory=dict)

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        assert all(job > 0 for job in jobs)
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        told = {kind: dict(self.told.get(kind, {})) for kind in want}
        return CounterAnswer(told, unread=dict(self.unread))


def v1_job(
    roots: ProbeRoots, number: int = 8, controllers: tuple[str, ...] = V1_CONTROLLERS
) -> NodeJob:
    return _job(
        number,
        *(JobFolder(each, f"{roots.cgroup}/{each}/{V1_JOB}") for each in controllers),
    )


def v2_job(roots: ProbeRoots, number: int = 11) -> NodeJob:
    return _job(number, JobFolder("", f"{roots.cgroup}/{V2_JOB}"))


def _job(number: int, *folders: JobFolder) -> NodeJob:
    identity = JobIdentity("boot", number, 1, STARTED)
    return NodeJob(identity=identity, started_by=StartSign.FOLDER, folders=folders)


def values(readings: Sequence[MetricReading]) -> dict[str, float]:
    """By metric and labels."""
    return {_named(each): each.value for each in readings if isinstance(each, Sample)}


def reasons(readings: Sequence[MetricReading]) -> dict[str, str]:
    return {_named(each): each.reason for each in readings if isinstance(each, Absence)}


def _named(each: MetricReading) -> str:
    return " ".join((each.metric, *(value for _, value in each.labels)))
