"""Laws that hold for every rule and for the test of who is unlike the rest."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import LinkFact, MountFact, NodeFacts, TaskFact
from lattice.domain.metric import CATALOGUE, Absence
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.features.diag.model import Verdict
from lattice.features.diag.rules.engine import known_rules, run_rules, verdict_of
from lattice.features.diag.rules.straggler import outliers
from tests.unit.features.diag.wards import Ward, WardNode, healthy

ALIKE = st.lists(st.floats(80.0, 85.0), min_size=3, max_size=30)


@given(ALIKE, st.floats(0.0, 40.0), st.data())
def test_one_that_is_far_below_is_found_wherever_it_stands(
    alike: list[float], low: float, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(alike)))
    values = dict(enumerate([*alike[:place], low, *alike[place:]]))
    assert set(outliers(values, least_percent=25.0, floor=1.0)) == {place}


@given(st.lists(st.floats(0.0, 1000.0), max_size=30))
def test_never_more_than_a_third_are_unlike_the_rest(values: list[float]) -> None:
    found = outliers(dict(enumerate(values)), least_percent=25.0, floor=1.0)
    assert len(found) * 3 <= len(values)


@given(ALIKE)
def test_who_are_alike_are_not_told_apart(alike: list[float]) -> None:
    assert not outliers(dict(enumerate(alike)), least_percent=25.0, floor=1.0)


# A number below 1e-300 may become 0 in another unit, and no metric is that small.
MEASURED = st.one_of(st.just(0.0), st.floats(1e-9, 1000.0))


@given(st.lists(MEASURED, min_size=3, max_size=12), st.floats(0.1, 100.0))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    one = outliers(dict(enumerate(values)), least_percent=25.0, floor=0.0)
    scaled = {place: value * factor for place, value in enumerate(values)}
    other = outliers(scaled, least_percent=25.0, floor=0.0)
    borders = [abs(each) for each in (*one.values(), *other.values())]
    assert set(one) == set(other) or any(each < 26.0 or each > 1e6 for each in borders)


def test_of_two_nobody_can_say_which() -> None:
    assert not outliers({"a": 100.0, "b": 1.0}, least_percent=25.0, floor=1.0)


def _torn(ward: Ward, chance: random.Random) -> None:
    """Parts of what is told are missing, as they may be on any node."""
    for node in ward.nodes:
        if chance.random() < 0.1:
            node.silence = NodeUnreachable(node.name, "its agent is lost")
        for metric in CATALOGUE:
            if chance.random() < 0.2:
                node.absences[metric] = Absence(metric, "not here", "ENOENT" * chance.randint(0, 1))
        if chance.random() < 0.2:
            node.progress = None
        if chance.random() < 0.2:
            node.facts = None
        if chance.random() < 0.3:
            node.earlier = None
        _tear_facts(node, chance)
    if chance.random() < 0.3:
        ward.no_traces = "the metric store does not answer"


def _tear_facts(node: WardNode, chance: random.Random) -> None:
    for which in ("facts", "earlier"):
        facts: NodeFacts | None = getattr(node, which)
        if facts is None:
            continue
        for kind in ("links", "mounts", "tasks"):
            torn = tuple(_bare(each, chance) for each in getattr(facts, kind))
            facts = replace(facts, **{kind: torn if chance.random() < 0.8 else ()})
        if chance.random() < 0.3:
            facts = replace(facts, transport=None, clock_ahead_s=None, last_output=None)
        setattr(node, which, facts)


def _bare(
    fact: LinkFact | MountFact | TaskFact, chance: random.Random
) -> LinkFact | MountFact | TaskFact:
    """Without some of what may be None."""
    lost = {
        each.name: None for each in fields(fact) if each.default is None and chance.random() < 0.3
    }
    return replace(fact, **lost)  # type: ignore[arg-type]


@pytest.mark.spec("SRC-2", "DIAG-5")
def test_whatever_is_missing_no_rule_fails_and_none_is_well_without_a_measurement() -> None:
    for seed in range(120):
        ward = healthy(seed, nodes=1 + seed % 5)
        _torn(ward, random.Random(seed))
        case = ward.case
        found = run_rules(known_rules(), case)
        assert not [each for each in found if "the rule failed" in each.reason], seed
        for each in found:
            told = {subject.node for subject in each.subjects if subject.node}
            if each.verdict is Verdict.OK and each.rule != "group_span":
                assert told <= case.sights.keys() | case.facts.keys(), (seed, each.rule)
            if each.verdict is Verdict.UNKNOWN:
                assert each.reason, (seed, each.rule)
                assert each.measured is None
                assert each.lack is not None
        if case.silences:
            assert verdict_of(found) is not Verdict.OK, seed
