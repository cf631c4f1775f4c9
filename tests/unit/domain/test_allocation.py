from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.allocation import (
    Allocation,
    Array,
    BadReference,
    ExitCode,
    Heterogeneous,
    Reference,
    State,
    parse_reference,
)

NOON = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
JOB = Allocation(
    cluster="lab",
    id="12",
    job_id=12,
    name="train",
    user="alice",
    account="research",
    tenant="physics",
    partition="batch",
    qos="normal",
    vcluster=None,
    state=State.RUNNING,
    submitted=NOON,
    first_submitted=NOON,
    started=NOON,
)
TASK = replace(JOB, id="2_1", array=Array(2, 1))
PART = replace(JOB, id="14+1", job_id=15, heterogeneous=Heterogeneous(14, 1))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("12345", Reference(12345)),
        (" 12345 ", Reference(12345)),
        ("12345_7", Reference(12345, task_id=7)),
        ("12345_0", Reference(12345, task_id=0)),
        ("12345+1", Reference(12345, offset=1)),
        ("12@1793534400", Reference(12, submitted=NOON)),
        ("12_7@2026-11-01T12:00:00Z", Reference(12, task_id=7, submitted=NOON)),
        ("12@2026-11-01T13:00:00+01:00", Reference(12, submitted=NOON)),
        ("12@2026-11-01T12:00:00", Reference(12, submitted=NOON)),
    ],
)
def test_every_way_people_write_an_id_is_read(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "abc",
        "12_",
        "_7",
        "12+",
        "12_7+1",
        "12@",
        "12@soon",
        "1e3",
        "٣",
        "12345678901",
        "4294967296",
        "12.0",
        "../12",
        "12\n13",
        "12@99999999999999",
        "12@-5",
        "12@0001-01-01T00:00:00+14:00",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text)


@given(
    st.builds(
        Reference,
        st.integers(1, 999_999_999),
        task_id=st.none() | st.integers(0, 999_999_999),
        submitted=st.none()
        | st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
            lambda moment: moment.replace(tzinfo=UTC, microsecond=0)
        ),
    )
)
def test_a_reference_survives_being_written_and_read(reference: Reference) -> None:
    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=30))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except BadReference:
        return
    assert reference.job_id > 0


@pytest.mark.parametrize(
    ("text", "allocation", "meant"),
    [
        ("12", JOB, True),
        ("13", JOB, False),
        ("12@1793534400", JOB, True),
        ("12@1793534401", JOB, False),
        ("2", TASK, True),
        ("12", TASK, True),
        ("2_1", TASK, True),
        ("2_2", TASK, False),
        ("2_1", JOB, False),
        ("14", PART, True),
        ("14+1", PART, True),
        ("14+0", PART, False),
        ("15", PART, True),
    ],
)
def test_a_name_means_what_slurm_means_by_it(
    text: str, allocation: Allocation, meant: bool
) -> None:
    assert parse_reference(text).matches(allocation) is meant


def test_the_reference_of_an_allocation_names_it_and_only_its_use_of_the_id() -> None:
    older = replace(JOB, first_submitted=NOON - timedelta(days=300))
    assert parse_reference(JOB.ref).matches(JOB)
    assert not parse_reference(JOB.ref).matches(older)
    assert replace(JOB, first_submitted=None).ref == "12"


def test_elapsed_counts_on_while_it_runs_and_stands_when_told() -> None:
    later = NOON + timedelta(seconds=90)
    assert JOB.elapsed_at(later) == 90
    assert replace(JOB, suspended_s=30).elapsed_at(later) == 60
    assert replace(JOB, elapsed_s=5).elapsed_at(later) == 5
    assert replace(JOB, ended=NOON + timedelta(seconds=7)).elapsed_at(later) == 7
    assert replace(JOB, started=None).elapsed_at(later) is None
    assert JOB.elapsed_at(NOON - timedelta(seconds=3)) == 0


def test_every_state_is_finished_or_waiting_or_neither_but_never_both() -> None:
    assert not [state for state in State if state.finished and state.waiting]
    assert State.REQUEUED.waiting
    assert State.PREEMPTED.finished


def test_exit_codes_read_as_slurm_writes_them() -> None:
    assert str(ExitCode(3)) == "3:0"
    assert str(ExitCode(0, 9)) == "0:9"
