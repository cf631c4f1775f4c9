"""GPUs that wait for their input: the data loader is the slowest part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Sense, Subject, Verdict
from lattice.features.diag.rules.saying import (
    FindingTemplate,
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
        lacks: list[MissingObservation] = []
        bound = case.targets.loader_gpu_percent

        def judged(
            node: str, sight: NodeSnapshot, samples: Sequence[Sample]
        ) -> Iterator[Observation]:
            used = _recent(case, node, samples)
            if used >= bound:
                yield Observation(
                    subject=Subject(node=node),
                    measured=used,
                    words=f"the cards are used {used:.0f} % and do not wait for input",
                )
                return
            causes, known = _causes(node, sight, lacks)
            if known:
                yield _seen(node, used, causes)

        seen, unseen = of_metric(case, "gpu_utilization_percent", judged)
        yield from findings(
            self,
            case,
            seen,
            [*unseen, *lacks],
            FindingTemplate(target=bound, sense=Sense.AT_LEAST, unit="%"),
        )


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


def _causes(
    node: str, sight: NodeSnapshot, lacks: list[MissingObservation]
) -> tuple[list[str], bool]:
    stalled = pressure(sight, "io")
    values, why = shown(sight, Shown.CPU_UTILIZATION)
    cores = sight.now.of("cpu_cores")
    busy = values[0].value / 100.0 / cores[0].value if values and cores and cores[0].value else None
    causes = []
    if busy is not None and busy >= _CORES_BUSY:
        causes.append(f"its {cores[0].value:.0f} cores are {100 * busy:.0f} % busy")
    if stalled is not None and stalled >= _IO_STALLED_PERCENT:
        causes.append(f"it stalls {stalled:.0f} % of the time for storage")
    if busy is None and stalled is None:
        lacks.append(
            unseen_of(node, why)
            if why
            else MissingObservation(
                node=node, reason="how busy its cores are is not measured", lack=Lack.FAILED
            )
        )
    return causes, busy is not None or stalled is not None


def _seen(node: str, used: float, causes: list[str]) -> Observation:
    words = f"the cards of {node} are used {used:.0f} %"
    if not causes:
        words += ", but neither cores nor storage hold them up"
    return Observation(
        subject=Subject(node=node),
        verdict=Verdict.ATTENTION if causes else Verdict.OK,
        measured=used,
        words=f"{words} while {' and '.join(causes)}" if causes else words,
        remedy="Give the loader more: `sbatch --cpus-per-task=N` and as many loader workers; or "
        "put the data on local scratch (`sbatch --tmp`), in fewer and larger files.",
    )
