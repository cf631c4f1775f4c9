"""One sick card is one finding, with how it is judged; another card's trouble is not lost by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lattice.domain.jobfacts import GpuFact
from lattice.features.diag.model import Subject, Verdict
from tests.unit.features.diag.wards import Ward, WardNode, healthy, refact


def judge(node: WardNode, uuid: str, health: str, **more: Any) -> None:
    """One card of the node is judged so."""
    assert node.facts is not None
    told = [
        replace(each, health=health, **more) if each.uuid == uuid else each
        for each in node.facts.gpus
    ]
    refact(node, gpus=tuple(told))


@pytest.fixture
def ward() -> Ward:
    made = healthy(5)
    for node in made.nodes:
        node.throttled = {}
    return made


def _first(node: WardNode) -> str:
    return next(iter(node.cards))


@pytest.mark.spec("DIAG-4")
def test_errors_and_the_failure_that_follows_are_one_finding(ward: Ward) -> None:
    for uuid in ward[2].cards:
        judge(ward[2], uuid, "failure", words="memory errors")
    ward[2].new_ecc = 2.0
    sick = ward.sick()
    assert set(sick) == {"gpu_errors"}
    assert "it is judged failure" in sick["gpu_errors"].evidence
    (health,) = [each for each in ward.judged() if each.rule == "gpu_health"]
    assert health.verdict is Verdict.OK
    assert health.evidence.startswith("12 cards are judged ok")
    assert {each.node for each in health.subjects} == {"n1", "n2", "n4"}


@pytest.mark.spec("DIAG-4")
def test_heat_and_the_warning_that_follows_are_one_finding(ward: Ward) -> None:
    uuid = _first(ward[2])
    ward[2].throttled = {uuid: ("hw_thermal",)}
    judge(ward[2], uuid, "warning", words="slowed down")
    sick = ward.sick()
    assert set(sick) == {"throttle"}
    assert "it is judged warning" in sick["throttle"].evidence


@pytest.mark.spec("DIAG-4")
def test_another_card_that_fails_meanwhile_is_told_of(ward: Ward) -> None:
    hot, lost = _first(ward[2]), _first(ward[1])
    ward[2].throttled = {hot: ("hw_thermal",)}
    judge(ward[2], hot, "warning")
    judge(ward[1], lost, "failure", words="it is lost")
    sick = ward.sick()
    assert set(sick) == {"throttle", "gpu_health"}
    assert sick["gpu_health"].subjects == (Subject(node="n2", gpu=lost),)


@pytest.mark.spec("DIAG-4")
def test_lanes_that_are_missing_are_told_of_beside_heat(ward: Ward) -> None:
    uuid = _first(ward[2])
    ward[2].throttled = {uuid: ("hw_thermal",)}
    judge(ward[2], uuid, "ok", pcie_width=4)
    assert set(ward.sick()) == {"throttle", "gpu_health"}


@pytest.mark.spec("DIAG-4")
def test_once_it_has_passed_the_judgement_alone_stays(ward: Ward) -> None:
    judge(ward[2], _first(ward[2]), "warning", words="slowed down")
    found = ward.sick()["gpu_health"]
    assert found.verdict is Verdict.ATTENTION
    assert found.subjects == (Subject(node="n3", gpu=_first(ward[2])),)


@pytest.mark.spec("DIAG-4")
def test_a_job_whose_every_card_is_told_of_elsewhere_has_no_second_line(ward: Ward) -> None:
    for node in ward.nodes:
        for uuid in node.cards:
            judge(node, uuid, "failure")
        node.new_ecc = 1.0
    assert not [each for each in ward.judged() if each.rule == "gpu_health"]


def test_one_card_is_counted_as_one() -> None:
    ward = healthy(5, nodes=1, ranks=1)
    uuid = _first(ward[0])
    ward[0].cards = {uuid: ward[0].cards[uuid]}
    refact(ward[0], gpus=(GpuFact(uuid=uuid, health="ok"),))
    (health,) = [each for each in ward.judged() if each.rule == "gpu_health"]
    assert health.evidence == "1 card is judged ok"
