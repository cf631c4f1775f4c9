"""A file system that does not answer. One line per mount of the job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lattice.base.moment import age
from lattice.domain.jobfacts import FactKind, MountFact
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    PROBE,
    each_facts,
    folded,
    format_rate,
    no_fact,
    unknown,
)
from lattice.features.diag.rules.mounts import (
    answers_within_s,
    disk_rates,
    format_seconds,
    rates,
    target_of,
)


class HungMount:
    """Reads how long a `statvfs` of each mount took, inside the job's own namespace."""

    name, title, area, order = "hung_mount", "Mounts", Area.STORAGE, 170
    explains = frozenset(
        {
            *("job_hang", "gpu_hang", "gpu_idle", "data_loader", "straggler", "buffered_output"),
            *("slow_mount", "io_latency"),
        }
    )

    def judge(self, case: Case) -> Iterator[Finding]:
        mounts: dict[tuple[str, str], list[tuple[str, MountFact]]] = {}
        lacks: dict[tuple[str, Lack], list[str]] = {}
        for node, facts in each_facts(case):
            for each in facts.mounts:
                mounts.setdefault((each.path, each.kind), []).append((node, each))
            if not facts.mounts:
                missing = no_fact(node, facts, FactKind.MOUNTS, "it tells of no mount")
                lacks.setdefault((missing.reason, missing.lack), []).append(node)
        for (path, kind), found in mounts.items():
            yield self._line(case, f"{path} ({kind})", found)
        for (reason, lack), nodes in lacks.items():
            yield unknown(self, case, reason, lack, nodes)
        if not mounts and not lacks:
            yield unknown(self, case, "no node told facts", Lack.SILENT, ())

    def _line(self, case: Case, title: str, found: list[tuple[str, MountFact]]) -> Finding:
        sick = [each for each in found if each[1].answered_s is None or each[1].trouble]
        untold = [each for each in sick if each[1].waited_s is None and not each[1].trouble]
        if untold and len(untold) == len(sick) == len(found):
            nodes = [node for node, _ in found]
            finding = unknown(self, case, "it was not looked at", Lack.FAILED, nodes)
            return replace(finding, title=title)
        sick = [each for each in sick if each not in untold]
        shown = sick or [each for each in found if each not in untold]
        _, mount = max(shown, key=lambda each: each[1].answered_s or 0.0)
        return Finding(
            rule=self.name,
            title=title,
            area=self.area,
            verdict=Verdict.BAD if sick else Verdict.OK,
            subjects=tuple(Subject(node=each, thing=mount.path) for each, _ in shown),
            measured=mount.waited_s if sick else mount.answered_s,
            target=answers_within_s(case, mount.path),
            unit="s",
            source=PROBE,
            evidence=_fault(sick) if sick else _use(case, found),
            remedy=_REMEDY if sick else "",
            covered=Coverage(len({each for each, _ in shown}), len(case.nodes)),
        )


_REMEDY = (
    "Tell the site which server it is. Processes that touch it stay until it answers; work on "
    "another file system, and submit again if it does not come back."
)


def _fault(sick: list[tuple[str, MountFact]]) -> str:
    _, mount = sick[0]
    where = f"on {folded(each for each, _ in sick)}, from {mount.source}"
    if mount.trouble:
        return f"{mount.path} answers with an error {where}: {mount.trouble}"
    waited = f" for {age(mount.waited_s)}" if mount.waited_s and mount.waited_s >= 1 else ""
    return f"{mount.path} has not answered{waited} {where}"


def _use(case: Case, found: list[tuple[str, MountFact]]) -> str:
    """Return what the job reads and writes there, as far as it is counted."""
    slowest = max(mount.answered_s or 0.0 for _, mount in found)
    parts = [f"answers in {format_seconds(slowest)}"]
    target = target_of(case, found[0][1].path)
    counted = [each for node, mount in found if (each := rates(case, node, mount)) is not None]
    if all(mount.counted_by == "eBPF" and not mount.operations for _, mount in found):
        parts.append("the job has read and written nothing there")
        counted = []
    for name in ("read", "write"):
        values = [
            value for each in counted if (value := getattr(each, f"{name}_bytes_s")) is not None
        ]
        if values:
            floor = getattr(target, f"{name}_bytes_s") if target is not None else None
            of = f" (floor {format_rate(floor)} a node)" if floor else ""
            parts.append(f"{format_rate(sum(values))} {name}{of}")
    operations = [each.operations_s for each in counted if each.operations_s is not None]
    if operations:
        parts.append(f"{sum(operations):.0f} operations/s")
    latencies = [each.latency_s for each in counted if each.latency_s is not None]
    latencies = latencies or [mount.latency_s for _, mount in found if mount.latency_s is not None]
    if latencies:
        parts.append(f"{format_seconds(max(latencies))} an operation")
    return ", ".join(parts) + _source(found) + _disk(case, found)


def _source(found: list[tuple[str, MountFact]]) -> str:
    """Return what counted this, or why nothing did."""
    by = sorted({mount.counted_by for _, mount in found if mount.counted_by and mount.operations})
    if by:
        return f" ({_COUNTED.get(by[0], by[0])})"
    reasons = sorted({mount.uncounted for _, mount in found if mount.uncounted})
    return f"; what is read and written there is not known: {reasons[0]}" if reasons else ""


_COUNTED = {
    "eBPF": "the job's own calls, by eBPF",
    "nfs": "the node's NFS client",
    "lustre": "the node's Lustre client",
}


def _disk(case: Case, found: list[tuple[str, MountFact]]) -> str:
    """Return what the busiest disk below it does for all of its node."""
    known = [
        (each.busy, node, mount.disk, each)
        for node, mount in found
        if (each := disk_rates(case, node, mount)) is not None
    ]
    if not known:
        return ""
    _, node, disk, most = max(known, key=lambda each: each[:3])
    parts = [
        f"{format_rate(value)} {name}"
        for name, value in (("read", most.read_bytes_s), ("written", most.write_bytes_s))
        if value is not None
    ]
    if most.latency_s is not None:
        parts.append(f"{format_seconds(most.latency_s)} an operation")
    where = f"disk {disk} of {node}" if len(found) > 1 else f"disk {disk}"
    return f"; {where}: {', '.join(parts)}, busy {100 * most.busy:.0f} %"
