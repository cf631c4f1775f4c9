from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.reasons import ending_reason, reason_of
from tests.fakes.recorded_slurm import FIXTURES

CODES = (FIXTURES / "reason-codes.txt").read_text().split()


@pytest.mark.spec("ALLOC-2")
@pytest.mark.parametrize("code", CODES)
def test_every_code_of_slurm_has_words_of_its_own(code: str) -> None:
    reason = reason_of(code)
    assert reason is not None
    assert reason.code == code
    assert code not in reason.words
    assert len(reason.words.split()) >= 3


@pytest.mark.spec("ALLOC-2")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Resources", "waiting for enough free resources; it is next in line for them"),
        ("JobHeldUser", "held by its owner; release it to let it start"),
        ("AssocGrpCpuLimit", "all jobs under its account together have reached their limit: CPUs"),
        (
            "QOSMaxGRESPerUser",
            "the limit of the QOS is reached: GPUs or other generic resources for one user",
        ),
        (
            "AssocGrpMemRunMinutes",
            (
                "all jobs under its account together have reached their limit: "
                "minutes of memory of running jobs"
            ),
        ),
        ("MaxJobsPerAccount", "the limit of the QOS is reached: running jobs for one account"),
        ("QOSMinGRES", "it asks for less than the QOS demands: GPUs or other generic resources"),
    ],
)
def test_words_say_what_holds_it_back(code: str, words: str) -> None:
    reason = reason_of(code)
    assert reason is not None
    assert reason.words == words


@pytest.mark.spec("ALLOC-2")
def test_an_unknown_code_is_named_and_not_guessed_at() -> None:
    reason = reason_of("SomethingOf2031")
    assert reason is not None
    assert reason.words == "Slurm gives SomethingOf2031 as the reason"


def test_slurm_s_own_details_are_added() -> None:
    reason = reason_of("ReqNodeNotAvail", "UnavailableNodes:n3")
    assert reason is not None
    assert reason.words.endswith("not available (UnavailableNodes:n3)")


def test_no_code_is_no_reason() -> None:
    assert reason_of("") is None
    assert reason_of(None) is None


def test_what_it_once_waited_for_is_not_why_it_ended() -> None:
    assert ending_reason("JobHeldUser") is None
    assert ending_reason("None") is None
    ended = ending_reason("OutOfMemory")
    assert ended is not None
    assert ended.words == "it used more memory than it was given"


@given(st.text(max_size=50), st.text(max_size=50))
def test_any_code_gives_words(code: str, description: str) -> None:
    reason = reason_of(code, description)
    assert (reason is None) == (code == "")
