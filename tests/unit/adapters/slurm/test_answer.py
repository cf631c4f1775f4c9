from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.answer import SlurmAnswer, SlurmRefused, checked, read_answer
from lattice.base.errors import Unavailable
from tests.fakes.recorded_slurm import recording
from tests.nesting import DEEP


def test_records_come_out_raw_and_one_by_one() -> None:
    answer = read_answer(recording("jobs"), "jobs")
    assert len(answer.records) == 15
    assert answer.problems == ()
    assert checked(answer, 200, "/jobs") is answer


@pytest.mark.parametrize(
    ("name", "key", "status", "words"),
    [
        ("slurmdbd-down", "accounts", 500, "Failed connecting to slurmdbd"),
        ("slurmctld-down", "jobs", 500, "Failed while looking for jobs"),
        ("job-unknown", "jobs", 500, "Invalid job id specified"),
        ("slurmdbd-down", "accounts", 200, "Unable to connect to database"),
    ],
)
def test_an_error_is_one_whatever_the_status(name: str, key: str, status: int, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        checked(read_answer(recording(name), key), status, "/it")


def test_the_hint_names_the_daemon_that_is_away() -> None:
    with pytest.raises(SlurmRefused) as caught:
        checked(read_answer(recording("slurmdbd-down"), "accounts"), 500, "/accounts")
    assert caught.value.hint is not None
    assert "slurmdbd" in caught.value.hint
    with pytest.raises(SlurmRefused) as caught:
        checked(read_answer(recording("slurmctld-down"), "jobs"), 500, "/jobs")
    assert caught.value.hint is not None
    assert "slurmctld" in caught.value.hint


def test_nothing_found_is_an_empty_answer_and_no_error() -> None:
    answer = checked(read_answer(recording("past-nothing-found"), "jobs"), 200, "/jobs")
    assert answer.records == ()


@pytest.mark.parametrize("status", [401, 500, 404])
def test_a_bare_status_is_an_error_too(status: int) -> None:
    with pytest.raises(Unavailable, match=str(status)):
        checked(SlurmAnswer(), status, "/jobs")


def test_an_answer_without_the_list_is_not_an_empty_list() -> None:
    answer = read_answer(b'{"errors": [], "warnings": [{"description": "No job changes"}]}', "jobs")
    assert answer.unchanged
    with pytest.raises(Unavailable, match="without the list"):
        checked(answer, 200, "/jobs")


def test_no_change_as_an_error_number_is_no_change() -> None:
    assert read_answer(recording("nodes-unchanged", "v0.0.44"), "nodes").unchanged
    assert read_answer(recording("jobs-unchanged", "v0.0.40"), "jobs").unchanged
    assert not read_answer(recording("slurmctld-down"), "jobs").unchanged
    assert not read_answer(recording("jobs"), "jobs").unchanged


@pytest.mark.spec("ALLOC-1")
@pytest.mark.parametrize(
    "name",
    [
        b'"b\xffd\x80name"',
        b'"\xed\xa0\x80"',
        b'"a\nb"',
        b'"\\ud800"',
        b"NaN",
        b"Infinity",
        b"1e999",
    ],
)
def test_what_json_c_writes_and_json_forbids_is_read(name: bytes) -> None:
    body = b'{"errors": [], "jobs": [{"job_id": 1, "name": ' + name + b'}, {"job_id": 2}]}'
    assert len(read_answer(body, "jobs").records) == 2


def test_last_update_is_read_in_either_shape() -> None:
    assert read_answer(b'{"jobs": [], "last_update": 17}', "jobs").last_update == 17
    number = b'{"jobs": [], "last_update": {"set": true, "infinite": false, "number": 17}}'
    assert read_answer(number, "jobs").last_update == 17
    unset = b'{"jobs": [], "last_update": {"set": false, "infinite": false, "number": 0}}'
    assert read_answer(unset, "jobs").last_update is None


@pytest.mark.parametrize(
    "body", [b"", b"Unable to parse query.", b"[]", b"3", b"null", b"[" * 100_000, b'{"jobs": ']
)
def test_what_is_no_answer_is_unavailable_and_not_a_crash(body: bytes) -> None:
    with pytest.raises(Unavailable, match="can't be read"):
        read_answer(body, "jobs")


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_an_answer_or_unavailable(body: bytes) -> None:
    try:
        checked(read_answer(body, "jobs"), 200, "/jobs")
    except Unavailable:
        return


@pytest.mark.parametrize("field", ["errors", "last_update"])
@pytest.mark.parametrize("value", [DEEP, b"[" + b"9" * 5000 + b"]"])
def test_a_field_that_python_can_not_hold_is_an_answer_that_can_not_be_read(
    field: str, value: bytes
) -> None:
    with pytest.raises(SlurmRefused, match="can't be read"):
        read_answer(b'{"jobs":[],"%s":%s}' % (field.encode(), value), "jobs")
