"""What all rules share: one subject's part, and findings made of many parts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lattice.domain.jobfacts import FactKind, NodeFacts
from lattice.domain.measured import FIRST_LOOK, Shown, ShownValue, shown_of
from lattice.domain.metric import Absence, Provenance, Sample
from lattice.domain.nodelook import NodeSight
from lattice.domain.nodeset import NodeSet
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Case, Finding, Lack, Rule, Sense, Subject, Verdict, worst

PROBE = Provenance.HOST_LOCAL_PROBE.value
_MOST_NAMED = 4
_GRAVITY = {each: place for place, each in enumerate(Verdict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How it stands with one subject."""

    subject: Subject
    verdict: Verdict = Verdict.OK
    measured: float | None = None
    target: float | None = None
    """Where it has one of its own; else the line's."""
    words: str = ""
    """The evidence: a sentence without its full stop."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Why nothing can be said of a node that answers."""

    node: str
    reason: str
    lack: Lack = Lack.NOT_OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the findings of one rule have in common."""

    target: float | None = None
    sense: Sense = Sense.AT_MOST
    unit: str = ""
    source: str = PROBE
    remedy: str = ""
    nothing: str = "no node told it"
    """Why it is unknown where no node said anything at all."""


def findings(
    rule: Rule, case: Case, seen: Sequence[Seen], unseen: Iterable[Unseen], line: Line
) -> Iterator[Finding]:
    """One line of all sick subjects, or one of all that are well; and one a reason for the rest."""
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


def unknown(rule: Rule, case: Case, reason: str, lack: Lack, nodes: Sequence[str]) -> Finding:
    """A line that says that nothing is known, and why."""
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


def _told(rule: Rule, case: Case, shown: Sequence[Seen], line: Line) -> Finding:
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


def _subjects(shown: Sequence[Seen], *, sick: bool) -> tuple[Subject, ...]:
    """Of what is well the nodes are enough: there may be thousands of cards."""
    if sick:
        return tuple(dict.fromkeys(each.subject for each in shown))
    return tuple(Subject(node=node) for node in dict.fromkeys(each.subject.node for each in shown))


def _evidence(words: Sequence[str]) -> str:
    told = list(dict.fromkeys(each for each in words if each))
    rest = len(told) - _MOST_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(told[:_MOST_NAMED]) + more


def folded(nodes: Iterable[str]) -> str:
    """Names of nodes in Slurm's notation."""
    names = sorted(set(nodes))
    try:
        return NodeSet(names).fold()
    except ValueError:
        return ",".join(names)


def each_sight(case: Case) -> Iterator[tuple[str, NodeSight]]:
    """What nodes measured, in the order of the nodes."""
    return ((node, case.sights[node]) for node in case.nodes if node in case.sights)


def each_facts(case: Case) -> Iterator[tuple[str, NodeFacts]]:
    return ((node, case.facts[node]) for node in case.nodes if node in case.facts)


def of_metric(
    case: Case,
    metric: str,
    judge: Callable[[str, NodeSight, Sequence[Sample]], Iterable[Seen]],
) -> tuple[list[Seen], list[Unseen]]:
    """A rule over the samples of one metric: those who have some are judged, the others lack it."""
    seen: list[Seen] = []
    unseen: list[Unseen] = []
    for node, sight in each_sight(case):
        samples = sight.now.of(metric)
        if samples:
            seen += judge(node, sight, samples)
        else:
            unseen.append(lacking(node, sight, metric))
    return seen, unseen


def lacking(node: str, sight: NodeSight, metric: str) -> Unseen:
    """Why a node that answers has no samples of a metric."""
    told = sight.now.absence(metric)
    return unseen_of(node, told or Absence(metric, "not measured on this node"))


def unseen_of(node: str, told: Absence) -> Unseen:
    reason = told.reason
    if told.last_error and told.last_error not in reason:
        reason = f"{reason} ({told.last_error})"
    if told.reason == FIRST_LOOK:
        return Unseen(node=node, reason=reason, lack=Lack.TOO_EARLY)
    return Unseen(
        node=node, reason=reason, lack=Lack.FAILED if told.last_error else Lack.NOT_OFFERED
    )


def no_fact(node: str, facts: NodeFacts, kind: FactKind, usual: str) -> Unseen:
    """Why a node that answers has no facts of a kind."""
    told = facts.absence(kind)
    if told is None:
        return Unseen(node=node, reason=usual)
    reason = f"{told.reason} ({told.last_error})" if told.last_error else told.reason
    return Unseen(
        node=node, reason=reason, lack=Lack.FAILED if told.last_error else Lack.NOT_OFFERED
    )


def shown(sight: NodeSight, metric: Shown) -> tuple[list[ShownValue], Absence | None]:
    """The values of a shown metric, and why there are none."""
    told = shown_of(metric, sight.before, sight.now)
    values = [each for each in told if isinstance(each, ShownValue)]
    return values, next((each for each in told if isinstance(each, Absence)), None)


def grown(sight: NodeSight, sample: Sample) -> float | None:
    """How much a counter has grown since the look before; None where that can't be told."""
    if sight.before is None or sight.before.identity != sight.now.identity:
        return None
    for each in sight.before.of(sample.metric):
        if each.labels == sample.labels:
            return sample.value - each.value if sample.value >= each.value else None
    return None


def passed_s(sight: NodeSight) -> float | None:
    """The time between its two looks."""
    return sight.now.time - sight.before.time if sight.before is not None else None


def per_gpu(sight: NodeSight, metric: str) -> dict[str, Sample]:
    return {each.label("gpu_uuid"): each for each in sight.now.of(metric)}


def pressure(sight: NodeSight, resource: str, share: str = "some") -> float | None:
    """Percent of the time between two looks in which the job stalled for want of a resource."""
    for each in sight.now.of("pressure_seconds_total"):
        if each.label("resource") == resource and each.label("share") == share:
            more, over_s = grown(sight, each), passed_s(sight)
            return None if more is None or not over_s else min(100.0, 100.0 * more / over_s)
    return None


def card(uuid: str) -> str:
    """Short enough for a sentence."""
    return uuid[:12]
