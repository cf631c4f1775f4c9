"""Classes of reasons, bounds of labels, and the shared counts of ends."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from lattice.domain.allocation import Reason, State
from lattice.features.monitoring.model import (
    MOST_ENDED_ROWS,
    BadCounts,
    EndedCounts,
    PendingClass,
    capped,
    digests,
    end_digest,
    pending_class,
    read_counts,
)
from tests.fakes.cluster import allocation

AT = datetime(2026, 11, 19, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Priority", PendingClass.PRIORITY),
        ("None", PendingClass.PRIORITY),
        ("Resources", PendingClass.RESOURCES),
        ("DependencyNeverSatisfied", PendingClass.DEPENDENCY),
        ("AssocGrpCpuLimit", PendingClass.LIMIT),
        ("QOSMaxGRESPerUser", PendingClass.LIMIT),
        ("MaxJobsPerAccount", PendingClass.LIMIT),
        ("JobArrayTaskLimit", PendingClass.LIMIT),
        ("JobHeldAdmin", PendingClass.HELD),
        ("BeginTime", PendingClass.BEGIN_TIME),
        ("Reservation", PendingClass.RESERVATION),
        ("ReqNodeNotAvail", PendingClass.UNAVAILABLE),
        ("PartitionTimeLimit", PendingClass.REQUEST),
        ("MaxMemPerLimit", PendingClass.REQUEST),
        ("A code of tomorrow", PendingClass.OTHER),
    ],
)
def test_reasons_have_classes(code: str, kind: PendingClass) -> None:
    assert pending_class(Reason(code, "")) is kind


def test_a_job_without_a_reason_waits_for_its_turn() -> None:
    assert pending_class(None) is PendingClass.PRIORITY


def test_labels_beyond_the_bound_are_other() -> None:
    counts = Counter({"a": 5, "b": 1, "c": 3})
    assert capped(counts, 2) == {"a": "a", "c": "c", "b": "other"}
    assert capped(counts, 3)["b"] == "b"


def test_counts_survive_being_written() -> None:
    counts = EndedCounts(12.5)
    for _ in range(2):
        counts.add(("alice", "research", "failed"))
    counts.add(("", "", "completed"))
    again = read_counts(counts.encoded())
    assert again == counts
    assert again.by_outcome() == {"failed": 2, "completed": 1}


def test_users_beyond_the_bound_are_other_and_none_is_lost() -> None:
    counts = EndedCounts(0.0)
    for number in range(MOST_ENDED_ROWS + 5):
        counts.add((f"u{number}", "p", "completed"))
    counts.add(("u0", "p", "completed"))
    assert counts.rows["other", "other", "completed"] == 5
    assert counts.rows["u0", "p", "completed"] == 2
    assert counts.by_outcome()["completed"] == MOST_ENDED_ROWS + 6


@pytest.mark.parametrize("value", [b"", b"{}", b'{"since": 1, "rows": [["a"]]}', b"\xff"])
def test_what_is_no_count_is_refused(value: bytes) -> None:
    with pytest.raises(BadCounts):
        read_counts(value)


def test_one_end_has_one_digest_and_another_use_of_the_id_another() -> None:
    first = allocation(7, "alice", "research", state=State.COMPLETED, ended=AT)
    again = allocation(
        7, "alice", "research", state=State.COMPLETED, ended=AT.replace(minute=1), name="other"
    )
    other = allocation(8, "alice", "research", state=State.COMPLETED, ended=AT)
    found = {end_digest(each) for each in (first, first, again, other)}
    assert len(found) == 3
    assert set(digests(b"".join(found))) == found
