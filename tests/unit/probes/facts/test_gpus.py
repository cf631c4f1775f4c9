"""A job's cards: judged each by itself, and never well because nobody looked."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.domain.jobfacts import FactKind
from lattice.domain.node import NOT_LOOKED, HealthState, NodeHealth
from lattice.probes.facts.gpus import Widths, gpu_facts
from lattice.probes.gpuhealth import CardCondition, GpuReading

GOOD = "GPU-11111111-2222-3333-4444-555555555555"
BAD = "GPU-99999999-2222-3333-4444-555555555555"


@pytest.fixture
def widths(tmp_path: Path) -> Widths:
    card = tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text(
        f"Model: \t\t NVIDIA H100\nGPU UUID: \t {GOOD}\nBus Location: \t 0000:41:00.0\n"
    )
    device = tmp_path / "sys/bus/pci/devices/0000:41:00.0"
    device.mkdir(parents=True)
    (device / "current_link_width").write_text("8\n")
    (device / "max_link_width").write_text("16\n")
    return Widths(tmp_path / "proc", tmp_path / "sys")


@pytest.mark.spec("DIAG-4")
def test_the_width_of_its_way_is_that_of_its_address(widths: Widths) -> None:
    assert widths.of(GOOD) == (8, 16)
    assert widths.of(BAD) == (None, None)


@pytest.mark.spec("DIAG-4")
def test_each_card_is_judged_by_itself(widths: Widths) -> None:
    look = GpuReading(
        time=1.0,
        cards=(
            CardCondition(uuid=GOOD, name="H100", nvlinks=18, nvlink_bytes_s=956e9),
            CardCondition(uuid=BAD, xids={79: 1}),
        ),
    )
    health = NodeHealth(HealthState.FAILURE, (f"{BAD}: XID 79",))
    (good, bad), absences = gpu_facts((GOOD, BAD), look, health, widths)
    assert (good.health, good.words, good.pcie_width) == ("ok", "", 8)
    assert (good.nvlinks, good.nvlink_bytes_s) == (18, 956e9)
    assert (bad.nvlinks, bad.nvlink_bytes_s) == (None, None)
    assert bad.health == "failure"
    assert "79" in bad.words
    assert absences == ()


@pytest.mark.spec("DIAG-4")
def test_what_lasts_of_a_card_in_the_nodes_judgement_is_its_own(widths: Widths) -> None:
    look = GpuReading(time=1.0, cards=(CardCondition(uuid=GOOD),))
    health = NodeHealth(HealthState.WARNING, (f"{GOOD} is slowed down (hw_thermal)",))
    (card,), _ = gpu_facts((GOOD,), look, health, widths)
    assert (card.health, card.words) == ("warning", f"{GOOD} is slowed down (hw_thermal)")


@pytest.mark.spec("DIAG-4")
def test_a_card_that_nobody_saw_is_not_well(widths: Widths) -> None:
    look = GpuReading(time=1.0, cards=(CardCondition(uuid=BAD),))
    (card,), (absence,) = gpu_facts((GOOD,), look, NOT_LOOKED, widths)
    assert card.health == ""
    assert absence.subject == GOOD


@pytest.mark.spec("DIAG-4")
@pytest.mark.parametrize(
    ("uuids", "look"),
    [(None, None), ((GOOD,), None), ((GOOD,), GpuReading(time=1.0, failure="the driver hangs"))],
)
def test_without_a_look_there_is_a_reason(
    widths: Widths, uuids: tuple[str, ...] | None, look: GpuReading | None
) -> None:
    facts, absences = gpu_facts(uuids, look, NOT_LOOKED, widths)
    assert facts == ()
    assert [each.kind for each in absences] == [FactKind.GPUS]
    assert absences[0].reason


@pytest.mark.spec("DIAG-4")
def test_a_job_without_cards_lacks_none(widths: Widths) -> None:
    assert gpu_facts((), None, NOT_LOOKED, widths) == ((), ())
