"""How GPUs are judged: what fails, what warns, and what must not flap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.node import HealthState, NodeHealth
from lattice.probes.amd_table import HEAT
from lattice.probes.gpuhealth import (
    FATAL_XIDS,
    HELD_S,
    CardCondition,
    ExpectedGpus,
    GpuHealthJudge,
    GpuReading,
)
from lattice.probes.nvidia_card import THROTTLE_BITS

T = 1_794_702_411.0
SOUND = CardCondition(uuid="GPU-a", name="NVIDIA A100", ecc_corrected=0, ecc_uncorrected=0)


def judge(count: int | None = None, kind: str = "") -> GpuHealthJudge:
    return GpuHealthJudge(ExpectedGpus(count, kind))


def look(*cards: CardCondition, at: float = 0, nothing: str = "", failure: str = "") -> GpuReading:
    return GpuReading(time=T + at, cards=cards, nothing=nothing, failure=failure)


def card(**facts: object) -> CardCondition:
    told = {"uuid": "GPU-a", "name": "NVIDIA A100", "ecc_corrected": 0, "ecc_uncorrected": 0}
    return CardCondition(**{**told, **facts})  # type: ignore[arg-type]


@pytest.mark.spec("OPS-10")
def test_sound_cards_are_healthy_and_no_cards_are_not_known() -> None:
    assert judge().see(look(SOUND)) == NodeHealth(HealthState.HEALTHY)
    nobody = judge().see(look(nothing="this node has no NVIDIA driver"))
    assert nobody == NodeHealth(HealthState.UNKNOWN), "what nobody looked at is not healthy"


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (card(lost="GPU is lost"), "GPU-a is lost (GPU is lost)"),
        (card(ecc_uncorrected=2), "GPU-a has 2 memory errors that could not be corrected"),
        (card(xids={79: 1}), "GPU-a reported XID 79: the card fell off the bus"),
        (card(xids={48: 3}), "GPU-a reported XID 48: memory error that could not be corrected"),
        (card(uuid="", lost="GPU is lost"), "a GPU is lost (GPU is lost)"),
    ],
)
def test_what_no_card_recovers_from_is_a_failure(sick: CardCondition, words: str) -> None:
    found = judge().see(look(SOUND, sick))
    assert found.health is HealthState.FAILURE
    assert words in found.words


@pytest.mark.spec("OPS-10")
def test_a_broken_driver_is_a_failure_in_its_own_words() -> None:
    words = "Failed to initialize NVML: Driver Not Loaded"
    assert judge(8).see(look(failure=words)) == NodeHealth(HealthState.FAILURE, (words,))


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_what_a_program_did_wrong_is_not_the_cards_fault(xid: int) -> None:
    assert judge().see(look(card(xids={xid: 5}))).health is HealthState.HEALTHY


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize("xid", [63, 74, 92, 94])
def test_what_may_be_the_beginning_is_a_warning(xid: int) -> None:
    found = judge().see(look(card(xids={xid: 1})))
    assert found.health is HealthState.WARNING
    assert f"XID {xid}" in found.words[0]


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize(
    ("expected", "cards", "words"),
    [
        (2, (SOUND,), "1 GPUs instead of 2"),
        (0, (SOUND,), "1 GPUs instead of 0"),
        (2, (SOUND, card(uuid="GPU-b", lost="GPU is lost")), "1 GPUs instead of 2"),
    ],
)
def test_another_count_than_expected_is_a_warning(
    expected: int, cards: tuple[CardCondition, ...], words: str
) -> None:
    found = judge(expected).see(look(*cards))
    assert found.health is not HealthState.HEALTHY
    assert words in found.words


@pytest.mark.spec("OPS-10")
def test_expected_cards_without_a_driver_are_missed() -> None:
    found = judge(8).see(look(nothing="this node has no NVIDIA driver"))
    assert found.health is HealthState.WARNING
    assert found.words == ("0 GPUs instead of 8: this node has no NVIDIA driver",)


@pytest.mark.spec("OPS-10")
def test_another_kind_than_expected_is_a_warning() -> None:
    assert judge(kind="a100").see(look(SOUND)).health is HealthState.HEALTHY
    assert judge(kind="H100").see(look(SOUND)).health is HealthState.WARNING


@pytest.mark.spec("OPS-10")
def test_a_throttle_warns_once_it_lasts_and_is_held_a_while() -> None:
    one, hot = judge(), card(throttled=("hw_thermal",))
    assert [one.see(look(hot, at=at)).health for at in (0, 30, 60)] == [
        HealthState.HEALTHY,
        HealthState.HEALTHY,
        HealthState.WARNING,
    ]
    assert one.see(look(SOUND, at=90)).health is HealthState.WARNING, "it does not flap"
    assert one.see(look(SOUND, at=61 + HELD_S)).health is HealthState.HEALTHY


@pytest.mark.spec("OPS-10")
def test_a_card_at_its_power_limit_is_at_work_and_not_sick() -> None:
    one = judge()
    for at in range(0, 300, 30):
        found = one.see(look(card(throttled=("sw_power_cap",)), at=at))
        assert found.health is HealthState.HEALTHY


@pytest.mark.spec("OPS-10")
def test_a_storm_of_corrected_errors_warns_and_a_few_do_not() -> None:
    few, storm = judge(), judge()
    few.see(look(card(ecc_corrected=5)))
    assert few.see(look(card(ecc_corrected=10), at=60)).health is HealthState.HEALTHY
    storm.see(look(card(ecc_corrected=5)))
    found = storm.see(look(card(ecc_corrected=500), at=60))
    assert found.health is HealthState.WARNING
    assert "storm" in found.words[0]


@pytest.mark.spec("OPS-10")
def test_a_counter_begun_anew_and_a_clock_set_back_are_no_storm() -> None:
    one = judge()
    one.see(look(card(ecc_corrected=900)))
    assert one.see(look(card(ecc_corrected=0), at=60)).health is HealthState.HEALTHY
    assert one.see(look(card(ecc_corrected=800), at=-60)).health is HealthState.HEALTHY


CARDS = st.builds(
    CardCondition,
    uuid=st.sampled_from(["GPU-a", "GPU-b", ""]),
    name=st.text(max_size=10),
    lost=st.sampled_from(["", "GPU is lost", "\x1b[31m"]),
    ecc_corrected=st.none() | st.integers(0, 10**6),
    ecc_uncorrected=st.none() | st.integers(0, 3),
    throttled=st.lists(st.sampled_from([*sorted(HEAT), *sorted(THROTTLE_BITS)])).map(tuple),
    xids=st.dictionaries(st.integers(0, 200), st.integers(1, 3), max_size=3),
)


@pytest.mark.spec("OPS-10")
@given(looks=st.lists(st.lists(CARDS, max_size=3), min_size=1, max_size=6))
def test_laws_of_every_judgement(looks: list[list[CardCondition]]) -> None:
    one = judge()
    for number, cards in enumerate(looks):
        found = one.see(look(*cards, at=30.0 * number))
        # Bad news has words, and words are safe to show and few.
        assert bool(found.words) == (found.health in {HealthState.WARNING, HealthState.FAILURE})
        assert all(each.isprintable() and len(each) <= 160 for each in found.words)
        assert len(found.words) <= 8
        fatal = any(
            each.lost or each.ecc_uncorrected or FATAL_XIDS.keys() & each.xids.keys()
            for each in cards
        )
        assert fatal == (found.health is HealthState.FAILURE)


@pytest.mark.spec("OPS-10")
def test_what_else_the_node_lacks_stands_beside_its_cards() -> None:
    judge = GpuHealthJudge(ExpectedGpus(), ("64 cores instead of 72",))
    nothing = judge.see(GpuReading(time=1.0, nothing="no GPUs"))
    assert nothing == NodeHealth(HealthState.WARNING, ("64 cores instead of 72",))
    broken = judge.see(GpuReading(time=2.0, failure="driver broken"))
    assert broken.health is HealthState.FAILURE
    assert broken.words[-1] == "64 cores instead of 72"
