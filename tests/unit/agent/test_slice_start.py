"""What is found when a guest is first reached after its boot, and kept until the next one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lattice.agent.slice_start import NO_FACTS, NOT_SEEN, StartRecord
from lattice.domain.guest_report import GuestReport
from lattice.domain.machine_facts import MachineFact
from lattice.domain.slices import SliceGuest, start_text

BOOT = "00000000-0000-0000-0000-000000000001"
OTHER = "00000000-0000-0000-0000-000000000002"
NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)
FACTS = (MachineFact(name="vcpus", number=8), MachineFact(name="rdma", reason="no device"))


def report(boot_id: str = BOOT, *, uptime_s: float = 41.0, facts: bool = True) -> GuestReport:
    found = FACTS if facts else ()
    return GuestReport(boot_id=boot_id, uptime_s=uptime_s, driver_s=0.25, facts=found)


def values(record: StartRecord) -> dict[str, float | None]:
    assert record.start is not None
    return {each.name: each.number for each in record.start.facts}


@pytest.mark.spec("SLICE-2")
def test_the_times_of_a_start_that_the_agent_waited_for() -> None:
    record = StartRecord()
    assert record.is_needed
    record.note(report(), NOW, 0.5, asked=True, was_away=True)
    assert not record.is_needed
    assert values(record) == {
        "reached_seconds": 41.0, "answer_seconds": 0.5, "driver_seconds": 0.25, "vcpus": 8,
        "rdma": None,
    }  # fmt: skip
    shown = start_text(SliceGuest(name="blue", start=record.start))
    assert "first reached after the boot 41 s; first report took 0.5 s" in shown
    assert shown.endswith("processors 8; not known RDMA ports (no device)")


@pytest.mark.spec("SLICE-2")
def test_a_guest_that_ran_before_the_agent_has_no_time_until_it_was_reached() -> None:
    record = StartRecord()
    record.note(report(uptime_s=1e6), NOW, 0.5, asked=True, was_away=False)
    assert record.start is not None
    (reached,) = [each for each in record.start.facts if each.name == "reached_seconds"]
    assert (reached.number, reached.reason) == (None, NOT_SEEN)


def test_the_first_report_counts_until_the_next_boot(tmp_path: Path) -> None:
    file = tmp_path / "slices" / "blue.start.json"
    record = StartRecord(file)
    record.note(report(), NOW, 0.5, asked=True, was_away=True)
    record.note(report(uptime_s=99.0), NOW, 9.0, asked=False, was_away=True)
    restarted = StartRecord(file)
    assert restarted.start == record.start
    assert not restarted.is_needed
    restarted.note(report(uptime_s=99.0), NOW, 9.0, asked=False, was_away=False)
    assert values(restarted)["reached_seconds"] == 41.0
    restarted.note(report(OTHER, uptime_s=7.0, facts=False), NOW, 1.0, asked=False, was_away=True)
    assert restarted.is_needed, "another boot: the next report has the facts"
    assert values(restarted)["reached_seconds"] == 7.0
    restarted.note(report(OTHER, uptime_s=37.0), NOW, 3.0, asked=True, was_away=False)
    assert values(restarted) == values(record) | {"reached_seconds": 7.0, "answer_seconds": 1.0}


def test_a_guest_with_an_older_program_says_so() -> None:
    record = StartRecord()
    record.note(report(facts=False), NOW, 0.5, asked=True, was_away=True)
    assert record.start is not None
    assert record.start.reason == NO_FACTS
    assert not record.is_needed, "it is not asked at every report"


def test_a_stored_start_that_is_not_valid_counts_as_none(tmp_path: Path) -> None:
    file = tmp_path / "blue.start.json"
    file.write_bytes(b'{"boot_id": 1}')
    assert StartRecord(file).is_needed


def test_long_texts_of_a_guest_are_cut() -> None:
    record = StartRecord()
    long = GuestReport(boot_id=BOOT, facts=(MachineFact(name="network", text="x" * 300),))
    record.note(long, NOW, 0.5, asked=True, was_away=True)
    assert record.start is not None
    assert max(len(each.text) for each in record.start.facts) == 100
