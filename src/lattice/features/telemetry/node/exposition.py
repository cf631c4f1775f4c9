"""A node's measurements as a page in the Prometheus text format. Pure.

Each value has the time of its reading, so that a scraper does not take it for newer; stale values
are left out. The page has no owners, because a node does not know them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Labels, Metric, MetricKind, Sample


@dataclass(frozen=True, slots=True)
class ExposedFigure:
    """One of the agent's own metrics."""

    name: str
    kind: MetricKind
    help_text: str
    value: float
    labels: Labels = ()
    """Besides the node. Figures with the same name must be adjacent."""


def page(
    node: str, snapshots: Iterable[JobSnapshot], figures: Iterable[ExposedFigure], now: float
) -> str:
    samples: dict[str, list[tuple[int, Sample]]] = {}
    for snapshot in _newest_runs(snapshots):
        if now - snapshot.time <= 2 * snapshot.resolution_s + 5.0:
            for sample in snapshot.samples:
                samples.setdefault(sample.metric, []).append((snapshot.identity.job_id, sample))
    lines = [line for metric in sorted(samples) for line in _family(node, metric, samples[metric])]
    before = ""
    for figure in figures:
        if figure.name != before:
            lines += _head(figure.name, figure.kind, figure.help_text)
        before = figure.name
        labels = (*figure.labels, ("node", node))
        lines.append(f"{figure.name}{_braces(labels)} {figure.value!r}")
    return "\n".join(lines) + "\n"


def _newest_runs(snapshots: Iterable[JobSnapshot]) -> Iterable[JobSnapshot]:
    newest: dict[int, JobSnapshot] = {}
    for each in snapshots:
        known = newest.get(each.identity.job_id)
        if known is None or known.identity.started < each.identity.started:
            newest[each.identity.job_id] = each
    return newest.values()


def _family(node: str, metric: str, samples: Iterable[tuple[int, Sample]]) -> Iterator[str]:
    known = CATALOGUE[metric]
    yield from _family_head(known)
    for job_id, sample in samples:
        labels = (
            ("alloc", str(job_id)),
            ("node", node),
            *sample.labels,
            ("source", sample.source.value),
        )
        yield f"{known.series}{_braces(labels)} {sample.value!r} {round(sample.time * 1000)}"


def _family_head(metric: Metric) -> tuple[str, str]:
    name = metric.series.removesuffix("_bucket")
    unit = f", in {metric.unit}" if metric.unit and metric.unit not in metric.description else ""
    text = f"{metric.description}{unit}"
    kind = metric.kind.value if name == metric.series else "histogram"
    return f"# HELP {name} {text[0].upper()}{text[1:]}.", f"# TYPE {name} {kind}"


def _head(name: str, kind: MetricKind, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind.value}"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
