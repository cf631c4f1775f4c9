"""Shared by all rules: observations, and findings made of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lattice.domain.alert import Alert, AlertRule, Phase
from lattice.domain.jobfacts import FactKind, NodeFacts
from lattice.domain.measured import FIRST_READING, Shown, ShownValue, shown_of
from lattice.domain.metric import Absence, Provenance, Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.domain.nodeset import NodeSet
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import (
    GRAVITY,
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
_SHORTEST_S = 3.0
Card: TypeAlias = tuple[str, str]
"""The node, and the UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of one subject."""

    subject: Subject
    verdict: Verdict = Verdict.OK
    measured: float | None = None
    target: float | None = None
    """Its own target, if it has one; else the template's."""
    evidence: str = ""
    """A sentence without its full stop."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingObservation:
    """Why nothing is known about a node that answers."""

    node: str
    reason: str
    lack: Lack = Lack.NOT_OFFERED


Judged: TypeAlias = Observation | MissingObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingTemplate:
    """What the findings of one rule have in common."""

    target: float | None = None
    sense: Sense = Sense.AT_MOST
    unit: str = ""
    remedy: str = ""
    nothing: str = "no node told it"
    """The reason if no node answered at all."""


def findings(
    rule: DiagRule, case: Case, judged: Sequence[Judged], template: FindingTemplate
) -> Iterator[Finding]:
    """Yield one line for all faulty subjects, or for all good ones, and one per missing reason."""
    seen = [each for each in judged if isinstance(each, Observation)]
    sick = [each for each in seen if each.verdict.is_sick]
    shown = sorted(sick or seen, key=lambda each: GRAVITY[each.verdict], reverse=True)
    if shown:
        yield _finding(rule, case, shown, template)
    grouped: dict[tuple[str, Lack], list[str]] = {}
    known = {each.subject.node for each in seen}
    for each in judged:
        if isinstance(each, MissingObservation) and each.node not in known:
            grouped.setdefault((each.reason, each.lack), []).append(each.node)
    for (reason, lack), nodes in grouped.items():
        yield unknown(rule, case, reason, lack, nodes)
    if not shown and not grouped:
        yield unknown(rule, case, template.nothing, Lack.SILENT, ())


def unknown(rule: DiagRule, case: Case, reason: str, lack: Lack, nodes: Sequence[str]) -> Finding:
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


def _finding(
    rule: DiagRule, case: Case, shown: Sequence[Observation], template: FindingTemplate
) -> Finding:
    first, verdict = shown[0], worst(each.verdict for each in shown)
    return Finding(
        rule=rule.name,
        title=rule.title,
        area=rule.area,
        verdict=verdict,
        subjects=_subjects(shown, sick=verdict.is_sick),
        measured=first.measured,
        target=template.target if first.target is None else first.target,
        sense=template.sense,
        unit=template.unit,
        source=PROBE,
        evidence=_evidence([each.evidence for each in shown])
        if verdict.is_sick
        else first.evidence,
        remedy=(first.remedy or template.remedy) if verdict.is_sick else "",
        covered=Coverage(len({each.subject.node for each in shown}), len(case.nodes)),
    )


def _subjects(shown: Sequence[Observation], *, sick: bool) -> tuple[Subject, ...]:
    """For a good line the nodes are enough: there may be thousands of GPUs."""
    if sick:
        return tuple(dict.fromkeys(each.subject for each in shown))
    return tuple(Subject(node=node) for node in dict.fromkeys(each.subject.node for each in shown))


def _evidence(given: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(each for each in given if each))
    rest = len(distinct) - _MOST_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(distinct[:_MOST_NAMED]) + more


def folded(nodes: Iterable[str]) -> str:
    """Return names of nodes in Slurm's notation."""
    names = sorted(set(nodes))
    try:
        return NodeSet(names).fold()
    except ValueError:
        return ",".join(names)


def each_snapshot(case: Case) -> Iterator[tuple[str, NodeSnapshot]]:
    """Return the snapshots in the order of the nodes."""
    return ((node, case.sights[node]) for node in case.nodes if node in case.sights)


def each_facts(case: Case) -> Iterator[tuple[str, NodeFacts]]:
    return ((node, case.facts[node]) for node in case.nodes if node in case.facts)


def earlier_facts(case: Case, node: str) -> NodeFacts | None:
    """Return the node's facts of an earlier request, if they are old enough for a rate."""
    earlier = case.earlier.get(node)
    if earlier is None or case.facts[node].time - earlier.time < _SHORTEST_S:
        return None
    return earlier


def increase(before: float | None, now: float | None) -> float | None:
    """Return a counter's increase; None if it was not counted, or began anew."""
    return None if before is None or now is None or now < before else now - before


def firing(snapshot: NodeSnapshot, *rules: AlertRule) -> list[Alert]:
    """Return the node's own alerts of these rules."""
    return [each for each in snapshot.firing if each.rule in rules and each.phase is Phase.FIRING]


def of_metric(
    case: Case,
    metric: str,
    judge: Callable[[str, NodeSnapshot, Sequence[Sample]], Iterable[Judged]],
) -> list[Judged]:
    """Apply a rule to the samples of one metric; nodes without samples become missing."""
    judged: list[Judged] = []
    unseen: list[Judged] = []
    for node, snapshot in each_snapshot(case):
        samples = snapshot.now.of(metric)
        if samples:
            judged += judge(node, snapshot, samples)
        else:
            unseen.append(lacking(node, snapshot, metric))
    return unseen + judged


def largest_first(judged: Iterable[Judged]) -> list[Judged]:
    """Sort by the measured values, so that the line shows the largest."""
    return sorted(judged, key=lambda each: getattr(each, "measured", None) or 0.0, reverse=True)


def lacking(node: str, snapshot: NodeSnapshot, metric: str) -> MissingObservation:
    """Return why a node that answers has no samples of a metric."""
    absence = snapshot.now.absence(metric)
    return unseen_of(node, absence or Absence(metric, "not measured on this node"))


def unseen_of(node: str, absence: Absence) -> MissingObservation:
    reason = absence.reason
    if absence.last_error and absence.last_error not in reason:
        reason = f"{reason} ({absence.last_error})"
    lack = Lack.FAILED if absence.last_error else Lack.NOT_OFFERED
    if absence.reason == FIRST_READING:
        lack = Lack.TOO_EARLY
    return MissingObservation(node=node, reason=reason, lack=lack)


def no_fact(node: str, facts: NodeFacts, kind: FactKind, usual: str) -> MissingObservation:
    """Return why a node that answers has no facts of a kind."""
    absence = facts.absence(kind)
    if absence is None:
        return MissingObservation(node=node, reason=usual)
    if not absence.last_error:
        return MissingObservation(node=node, reason=absence.reason)
    reason = f"{absence.reason} ({absence.last_error})"
    return MissingObservation(node=node, reason=reason, lack=Lack.FAILED)


def shown(snapshot: NodeSnapshot, metric: Shown) -> tuple[list[ShownValue], Absence | None]:
    """Return the values of a displayed metric, and why there are none."""
    found = shown_of(metric, snapshot.before, snapshot.now)
    values = [each for each in found if isinstance(each, ShownValue)]
    return values, next((each for each in found if isinstance(each, Absence)), None)


def grown(snapshot: NodeSnapshot, sample: Sample) -> float | None:
    """Return a counter's increase since the last look; None if unknown."""
    if snapshot.before is None or snapshot.before.identity != snapshot.now.identity:
        return None
    for each in snapshot.before.of(sample.metric):
        if each.labels == sample.labels:
            return increase(each.value, sample.value)
    return None


def passed_s(snapshot: NodeSnapshot) -> float | None:
    """Return the seconds between its two looks."""
    return snapshot.now.time - snapshot.before.time if snapshot.before is not None else None


def per_gpu(snapshot: NodeSnapshot, metric: str) -> dict[str, Sample]:
    return {each.label("gpu_uuid"): each for each in snapshot.now.of(metric)}


def pressure(snapshot: NodeSnapshot, resource: str, share: str = "some") -> float | None:
    """Return the percentage of time in which the job stalled for a resource."""
    for each in snapshot.now.of("pressure_seconds_total"):
        if each.label("resource") == resource and each.label("share") == share:
            more, over_s = grown(snapshot, each), passed_s(snapshot)
            return None if more is None or not over_s else min(100.0, 100.0 * more / over_s)
    return None


def card(uuid: str) -> str:
    """Return a UUID short enough for a sentence."""
    return uuid[:12]


def with_health(case: Case, observation: Observation) -> Observation:
    """Add the health of its GPU, if the node judged it: `ok`, `warning` or `failure`."""
    subject = observation.subject
    facts = case.facts.get(subject.node)
    cards = facts.gpus if facts is not None else ()
    health = next((each.health for each in cards if each.uuid == subject.gpu), "")
    evidence = f"{observation.evidence}; it is judged {health}"
    return replace(observation, evidence=evidence) if health else observation


def format_rate(rate: float) -> str:
    """Format a rate: `12.5 GB/s`."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if rate >= step:
            return f"{rate / step:.3g} {unit}/s"
    return f"{rate:.0f} B/s"
