"""Shared by all rules: observations, and findings made of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lattice.domain.jobfacts import FactKind, NodeFacts
from lattice.domain.measured import FIRST_LOOK, Shown, ShownValue, shown_of
from lattice.domain.metric import Absence, Provenance, Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.domain.nodeset import NodeSet
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import (
    Case,
    DiagRule,
    Finding,
    Lack,
    Sense,
    Subject,
    Verdict,
    worst,
)

PROBE = Provenance.HOST_LOCAL_PROBE.value
_MOST_NAMED = 4
_GRAVITY = {each: place for place, each in enumerate(Verdict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of one subject."""

    subject: Subject
    verdict: Verdict = Verdict.OK
    measured: float | None = None
    target: float | None = None
    """Its own target, if it has one; else the line's."""
    words: str = ""
    """The evidence: a sentence without its full stop."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingObservation:
    """Why nothing is known about a node that answers."""

    node: str
    reason: str
    lack: Lack = Lack.NOT_OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingTemplate:
    """What the findings of one rule have in common."""

    target: float | None = None
    sense: Sense = Sense.AT_MOST
    unit: str = ""
    source: str = PROBE
    remedy: str = ""
    nothing: str = "no node told it"
    """The reason if no node answered at all."""


def findings(
    rule: DiagRule,
    case: Case,
    seen: Sequence[Observation],
    unseen: Iterable[MissingObservation],
    line: FindingTemplate,
) -> Iterator[Finding]:
    """Yield one line for all faulty subjects, or for all good ones, and one per missing reason."""
    sick = [each for each in seen if each.verdict.is_sick]
    shown = sorted(sick or seen, key=lambda each: _GRAVITY[each.verdict], reverse=True)
    if shown:
        yield _told(rule, case, shown, line)
    grouped: dict[tuple[str, Lack], list[str]] = {}
    known = {each.subject.node for each in seen}
    for missing in unseen:
        if missing.node not in known:
            grouped.setdefault((missing.reason, missing.lack), []).append(missing.node)
    for (reason, lack), nodes in grouped.items():
        yield unknown(rule, case, reason, lack, nodes)
    if not shown and not grouped:
        yield unknown(rule, case, line.nothing, Lack.SILENT, ())


def unknown(rule: DiagRule, case: Case, reason: str, lack: Lack, nodes: Sequence[str]) -> Finding:
    """Return an unknown line with its reason."""
    return Finding(
        rule=rule.name,
        title=rule.title,
        area=rule.area,
        verdict=Verdict.UNKNOWN,
        subjects=tuple(Subject(node=each) for each in dict.fromkeys(nodes)),
        source=Provenance.UNAVAILABLE.value,
        reason=reason,
        lack=lack,
        covered=Coverage(0, len(case.nodes)),
    )


def _told(
    rule: DiagRule, case: Case, shown: Sequence[Observation], line: FindingTemplate
) -> Finding:
    first, verdict = shown[0], worst(each.verdict for each in shown)
    return Finding(
        rule=rule.name,
        title=rule.title,
        area=rule.area,
        verdict=verdict,
        subjects=_subjects(shown, sick=verdict.is_sick),
        measured=first.measured,
        target=line.target if first.target is None else first.target,
        sense=line.sense,
        unit=line.unit,
        source=line.source,
        evidence=_evidence([each.words for each in shown]) if verdict.is_sick else first.words,
        remedy=(first.remedy or line.remedy) if verdict.is_sick else "",
        covered=Coverage(len({each.subject.node for each in shown}), len(case.nodes)),
    )


def _subjects(shown: Sequence[Observation], *, sick: bool) -> tuple[Subject, ...]:
    """For a good line the nodes are enough: there may be thousands of GPUs."""
    if sick:
        return tuple(dict.fromkeys(each.subject for each in shown))
    return tuple(Subject(node=node) for node in dict.fromkeys(each.subject.node for each in shown))


def _evidence(words: Sequence[str]) -> str:
    told = list(dict.fromkeys(each for each in words if each))
    rest = len(told) - _MOST_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(told[:_MOST_NAMED]) + more


def folded(nodes: Iterable[str]) -> str:
    """Return names of nodes in Slurm's notation."""
    names = sorted(set(nodes))
    try:
        return NodeSet(names).fold()
    except ValueError:
        return ",".join(names)


def each_sight(case: Case) -> Iterator[tuple[str, NodeSnapshot]]:
    """Return the snapshots in the order of the nodes."""
    return ((node, case.sights[node]) for node in case.nodes if node in case.sights)


def each_facts(case: Case) -> Iterator[tuple[str, NodeFacts]]:
    return ((node, case.facts[node]) for node in case.nodes if node in case.facts)


def of_metric(
    case: Case,
    metric: str,
    judge: Callable[[str, NodeSnapshot, Sequence[Sample]], Iterable[Observation]],
) -> tuple[list[Observation], list[MissingObservation]]:
    """Apply a rule to the samples of one metric; nodes without samples become missing."""
    seen: list[Observation] = []
    unseen: list[MissingObservation] = []
    for node, sight in each_sight(case):
        samples = sight.now.of(metric)
        if samples:
            seen += judge(node, sight, samples)
        else:
            unseen.append(lacking(node, sight, metric))
    return seen, unseen


def lacking(node: str, sight: NodeSnapshot, metric: str) -> MissingObservation:
    """Return why a node that answers has no samples of a metric."""
    told = sight.now.absence(metric)
    return unseen_of(node, told or Absence(metric, "not measured on this node"))


def unseen_of(node: str, told: Absence) -> MissingObservation:
    reason = told.reason
    if told.last_error and told.last_error not in reason:
        reason = f"{reason} ({told.last_error})"
    if told.reason == FIRST_LOOK:
        return MissingObservation(node=node, reason=reason, lack=Lack.TOO_EARLY)
    return MissingObservation(
        node=node, reason=reason, lack=Lack.FAILED if told.last_error else Lack.NOT_OFFERED
    )


def no_fact(node: str, facts: NodeFacts, kind: FactKind, usual: str) -> MissingObservation:
    """Return why a node that answers has no facts of a kind."""
    told = facts.absence(kind)
    if told is None:
        return MissingObservation(node=node, reason=usual)
    reason = f"{told.reason} ({told.last_error})" if told.last_error else told.reason
    return MissingObservation(
        node=node, reason=reason, lack=Lack.FAILED if told.last_error else Lack.NOT_OFFERED
    )


def shown(sight: NodeSnapshot, metric: Shown) -> tuple[list[ShownValue], Absence | None]:
    """Return the values of a displayed metric, and why there are none."""
    told = shown_of(metric, sight.before, sight.now)
    values = [each for each in told if isinstance(each, ShownValue)]
    return values, next((each for each in told if isinstance(each, Absence)), None)


def grown(sight: NodeSnapshot, sample: Sample) -> float | None:
    """Return a counter's increase since the last look; None if unknown."""
    if sight.before is None or sight.before.identity != sight.now.identity:
        return None
    for each in sight.before.of(sample.metric):
        if each.labels == sample.labels:
            return sample.value - each.value if sample.value >= each.value else None
    return None


def passed_s(sight: NodeSnapshot) -> float | None:
    """Return the seconds between its two looks."""
    return sight.now.time - sight.before.time if sight.before is not None else None


def per_gpu(sight: NodeSnapshot, metric: str) -> dict[str, Sample]:
    return {each.label("gpu_uuid"): each for each in sight.now.of(metric)}


def pressure(sight: NodeSnapshot, resource: str, share: str = "some") -> float | None:
    """Return the percentage of time in which the job stalled for a resource."""
    for each in sight.now.of("pressure_seconds_total"):
        if each.label("resource") == resource and each.label("share") == share:
            more, over_s = grown(sight, each), passed_s(sight)
            return None if more is None or not over_s else min(100.0, 100.0 * more / over_s)
    return None


def card(uuid: str) -> str:
    """Return a UUID short enough for a sentence."""
    return uuid[:12]
