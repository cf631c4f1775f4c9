"""GPUs that wait for their input: the data loader is the slowest part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Sense, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    findings,
    of_metric,
    pressure,
    shown,
    unseen_of,
)

_IO_STALLED_PERCENT = 20.0
_CORES_BUSY = 0.9
_SINCE_S = 120.0


class DataLoader:
    """Reads GPU utilisation, the load of the job's cores, and I/O stalls."""

    name, title, area, order = "data_loader", "Input of the GPUs", Area.GPU, 250
    explains = frozenset({"gpu_idle", "straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        judged = of_metric(case, "gpu_utilization_percent", partial(_judged, case))
        bound = case.targets.loader_gpu_percent
        template = FindingTemplate(target=bound, sense=Sense.AT_LEAST, unit="%")
        yield from findings(self, case, judged, template)


def _judged(
    case: Case, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Judged]:
    used = _recent(case, node, samples)
    if used >= case.targets.loader_gpu_percent:
        yield Observation(
            subject=Subject(node=node),
            measured=used,
            evidence=f"the cards are used {used:.0f} % and do not wait for input",
        )
        return
    causes = _causes(node, snapshot)
    yield causes if isinstance(causes, MissingObservation) else _seen(node, used, causes)


def _recent(case: Case, node: str, samples: Sequence[Sample]) -> float:
    """Return the mean of the last two minutes if there is a trace, else of now."""
    since = case.now - _SINCE_S
    past = [
        value
        for uuid in ("", *(each.label("gpu_uuid") for each in samples))
        for time, value in case.traces.get((Shown.GPU_UTILIZATION, node, uuid), ())
        if time >= since
    ]
    values = past or [each.value for each in samples]
    return sum(values) / len(values)


def _causes(node: str, snapshot: NodeSnapshot) -> list[str] | MissingObservation:
    """Return what may hold the GPUs up, or why that is unknown."""
    stalled = pressure(snapshot, "io")
    values, why = shown(snapshot, Shown.CPU_UTILIZATION)
    cores = snapshot.now.of("cpu_cores")
    busy = values[0].value / 100.0 / cores[0].value if values and cores and cores[0].value else None
    if busy is None and stalled is None:
        reason = "how busy its cores are is not measured"
        unmeasured = MissingObservation(node=node, reason=reason, lack=Lack.FAILED)
        return unseen_of(node, why) if why else unmeasured
    causes = []
    if busy is not None and busy >= _CORES_BUSY:
        causes.append(f"its {cores[0].value:.0f} cores are {100 * busy:.0f} % busy")
    if stalled is not None and stalled >= _IO_STALLED_PERCENT:
        causes.append(f"it stalls {stalled:.0f} % of the time for storage")
    return causes


def _seen(node: str, used: float, causes: list[str]) -> Observation:
    evidence = f"the cards of {node} are used {used:.0f} %"
    if not causes:
        evidence += ", but neither cores nor storage hold them up"
    return Observation(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if causes else Verdict.OK,
        measured=used,
        evidence=f"{evidence} while {' and '.join(causes)}" if causes else evidence,
        remedy="Give the loader more: `sbatch --cpus-per-task=N` and as many loader workers; or "
        "put the data on local scratch (`sbatch --tmp`), in fewer and larger files.",
    )
