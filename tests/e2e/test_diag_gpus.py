"""Cards that fall ill: the right rule names the node and the card, and no other cries.

What NVML says is made here (`lab.gpus`); everything from the binding on is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.gpus import NvmlState, uuid_of
from lab.laboratory import Lab
from tests.e2e.diagnosed import PAUSE_S, line, page, sick, telling
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, agents, linked
from tests.e2e.topped import debugged, top
from tests.eventually import PATIENCE_S, eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

NODE = "n1"
PRINTS = "while :; do echo on; sleep 0.2; done"
SPINS = "while :; do :; done"
HW_THERMAL, SW_POWER_CAP = 0x40, 0x04
HANG_S = 4.0
SOON_S = 15.0
"""Two samples of a second each, and what a page or two take."""


@contextmanager
def hang_is_told_soon(lab: Lab) -> Iterator[None]:
    """An agent that calls it a hang after a few seconds, and not after a minute."""
    agent, olga = lab.node(NODE).agent, administrator(lab)
    agent.changes["alerts"] = {"gpu_hang_s": HANG_S}
    try:
        agent.process.restart()
        eventually(lambda: set(linked(olga)), lambda seen: NODE in seen)
        yield
    finally:
        agent.changes.clear()
        agent.process.restart()
        eventually(lambda: set(linked(olga)), lambda seen: NODE in seen)


class Cards:
    """The two cards of a job, and what NVML says of them."""

    def __init__(self, state: NvmlState, uuids: list[str]) -> None:
        self._state = state
        self.first, self.second = uuids

    def becomes(self, uuid: str, **facts: object) -> None:
        index = next(each for each in range(64) if uuid_of(each) == uuid)
        self._state.card(index, **facts)


def _uuids(alice: Person, job: int) -> list[str]:
    rows = top(alice, job, "--per-gpu").get("rows", ())
    return sorted({each["gpu_uuid"] for each in rows if each.get("gpu_uuid")})


@contextmanager
def two_cards(lab: Lab, alice: Person, wrap: str) -> Iterator[tuple[int, Cards]]:
    """A job with two cards that are well. Afterwards none is broken; a warning stays a while."""
    with (
        lab.node(NODE).agent.gpus.changed() as state,
        debugged(lab, alice, "-w", NODE, "--gres=gpu:2", wrap=wrap) as job,
    ):
        uuids = eventually(lambda: _uuids(alice, job), lambda seen: len(seen) == 2)
        _node_is(lab, "healthy")
        well = eventually(
            lambda: page(alice, job), lambda seen: _judged_ok(seen) == 2, pause_s=PAUSE_S
        )
        assert sick(well) == {}
        yield job, Cards(state, uuids)
    _node_is(lab, "healthy", "warning")


def _judged_ok(answer: dict[str, object]) -> int:
    """How many cards are judged to be ok."""
    (told,) = _lines(answer, "gpu_health")
    first, _, rest = str(told["evidence"]).partition(" ")
    return int(first) if told["verdict"] == "ok" and "judged ok" in rest else 0


def _node_is(lab: Lab, *health: str) -> None:
    """Waits for the node's own judgement; asked for as often as one likes, unlike a page.

    Cards are looked at twice a minute; what comes and goes has to be seen twice.
    """
    olga = administrator(lab)
    eventually(lambda: agents(olga)[NODE]["health"], lambda seen: seen in health)


def _lines(answer: dict[str, object], rule: str) -> list[dict[str, object]]:
    findings = answer["findings"]
    assert isinstance(findings, list)
    return [each for each in findings if each["rule"] == rule]


def _cards(answer: dict[str, object], rule: str) -> set[tuple[str, str]]:
    subjects = line(answer, rule)["subjects"]
    return {(each["node"], each["gpu"]) for each in subjects}


@pytest.fixture(
    params=[
        pytest.param(PATIENCE_S, id="at all"),
        pytest.param(SOON_S, id="soon", marks=pytest.mark.timing),
    ]
)
def patience_s(request: pytest.FixtureRequest) -> float:
    """For how long a finding may be waited for."""
    return float(request.param)


@pytest.mark.story
@pytest.mark.spec("DIAG-4")
def test_heat_that_slows_a_card_down(lab: Lab, alice: Person, patience_s: float) -> None:
    with two_cards(lab, alice, PRINTS) as (job, cards):
        # At its own power limit a card is at work: that alone is no finding.
        cards.becomes(cards.second, throttle=SW_POWER_CAP, power=399_000)
        cards.becomes(cards.first, throttle=HW_THERMAL, temperature=93)
        answer = telling(alice, job, "throttle", patience_s)
        assert sick(answer) == {"throttle": {NODE}}
        assert _cards(answer, "throttle") == {(NODE, cards.first)}
        assert "93 °C (hw_thermal)" in line(answer, "throttle")["evidence"]
        cards.becomes(cards.first, throttle=0, temperature=61)
        eventually(
            lambda: sick(page(alice, job)),
            lambda found: not found,
            patience_s=patience_s,
            pause_s=PAUSE_S,
        )


@pytest.mark.spec("DIAG-4")
@pytest.mark.long
def test_a_memory_error_that_could_not_be_corrected_and_how_the_card_is_judged(
    lab: Lab, bob: Person, patience_s: float
) -> None:
    with two_cards(lab, bob, PRINTS) as (job, cards):
        cards.becomes(cards.second, ecc_uncorrected=2)
        answer = telling(bob, job, "gpu_errors", patience_s)
        assert sick(answer) == {"gpu_errors": {NODE}}
        assert _cards(answer, "gpu_errors") == {(NODE, cards.second)}
        _node_is(lab, "failure")
        judged = page(bob, job)
        assert sick(judged) == {"gpu_errors": {NODE}}
        assert "it is judged failure" in line(judged, "gpu_errors")["evidence"]
        assert _judged_ok(judged) == 1
        assert "--exclude=n1" in bob.tries("diag", str(job), "--gpu").out


@pytest.mark.spec("DIAG-4")
def test_full_use_at_idle_power_without_progress(
    lab: Lab, carol: Person, patience_s: float
) -> None:
    """The host spins as it does in a collective, so its processor time is no sign of progress."""
    with hang_is_told_soon(lab), two_cards(lab, carol, SPINS) as (job, cards):
        cards.becomes(cards.first, utilization=100, power=62_000)
        answer = telling(carol, job, "gpu_hang", patience_s + HANG_S)
        assert sick(answer) == {"gpu_hang": {NODE}}
        assert _cards(answer, "gpu_hang") == {(NODE, cards.first)}
        evidence = line(answer, "gpu_hang")["evidence"]
        assert "is used 100 % and draws 62 W of 400 W" in evidence


@pytest.mark.spec("DIAG-4")
@pytest.mark.long
def test_a_card_is_judged_ok_then_a_warning_then_a_failure(lab: Lab, alice: Person) -> None:
    with two_cards(lab, alice, PRINTS) as (job, cards):
        cards.becomes(cards.first, ecc_corrected="~100")
        _node_is(lab, "warning")
        warned = page(alice, job)
        assert sick(warned) == {"gpu_health": {NODE}}
        assert _cards(warned, "gpu_health") == {(NODE, cards.first)}
        told = line(warned, "gpu_health")
        assert told["verdict"] == "attention"
        assert "is judged warning" in told["evidence"]
        assert "storm of corrected memory errors" in told["evidence"]

        cards.becomes(cards.second, lost=1)
        _node_is(lab, "failure")
        failed = page(alice, job)
        assert _cards(failed, "gpu_health") == {(NODE, cards.first), (NODE, cards.second)}
        told = line(failed, "gpu_health")
        assert told["verdict"] == "bad"
        assert f"{cards.second[:12]} on {NODE} is judged failure" in told["evidence"]
