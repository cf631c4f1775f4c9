"""What a node measured, as a page in Prometheus' text format. Pure.

Each value has the moment it was read, so that whoever scrapes takes none for newer than it is; what
is stale is left out. Whose a job is stands nowhere: a node does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Kind, Labels, Sample


@dataclass(frozen=True, slots=True)
class Figure:
    """What the agent counts of itself."""

    name: str
    kind: Kind
    words: str
    value: float
    labels: Labels = ()
    """Besides the node. Figures of one name stand together."""


def page(node: str, snapshots: Iterable[JobSnapshot], figures: Iterable[Figure], now: float) -> str:
    """The whole page."""
    samples: dict[str, list[tuple[int, Sample]]] = {}
    for snapshot in _newest_lives(snapshots):
        if now - snapshot.time <= 2 * snapshot.resolution_s + 5.0:
            for sample in snapshot.samples:
                samples.setdefault(sample.metric, []).append((snapshot.identity.job_id, sample))
    lines = [line for metric in sorted(samples) for line in _family(node, metric, samples[metric])]
    before = ""
    for figure in figures:
        if figure.name != before:
            lines += _head(figure.name, figure.kind, figure.words)
        before = figure.name
        labels = (*figure.labels, ("node", node))
        lines.append(f"{figure.name}{_braces(labels)} {figure.value!r}")
    return "\n".join(lines) + "\n"


def _newest_lives(snapshots: Iterable[JobSnapshot]) -> Iterable[JobSnapshot]:
    newest: dict[int, JobSnapshot] = {}
    for each in snapshots:
        known = newest.get(each.identity.job_id)
        if known is None or known.identity.started < each.identity.started:
            newest[each.identity.job_id] = each
    return newest.values()


def _family(node: str, metric: str, samples: Iterable[tuple[int, Sample]]) -> Iterator[str]:
    known = CATALOGUE[metric]
    yield from _head(known.series, known.kind, known.words)
    for job_id, sample in samples:
        labels = (
            ("alloc", str(job_id)),
            ("node", node),
            *sample.labels,
            ("source", sample.source.value),
        )
        yield f"{known.series}{_braces(labels)} {sample.value!r} {round(sample.time * 1000)}"


def _head(name: str, kind: Kind, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind.value}"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
