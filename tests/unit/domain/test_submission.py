"""The form of what may be submitted: bounded, and deaf to what would steer the submitting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.submission import CancelQuestion, SubmitQuestion, job_fault, variable_fault


@pytest.mark.parametrize("text", ["1", "123", "123_4", "123_0", "123+1", "999999999"])
def test_ids_that_scancel_takes(text: str) -> None:
    assert job_fault(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "--user=root", "1 2", "1;2", "1_", "1_[1-3]", "1.0", "1_2_3", "1\n", "٣", "01"],
)
def test_ids_that_are_none(text: str) -> None:
    assert job_fault(text)
    assert CancelQuestion(jobs=(text,)).fault()


@given(st.text(max_size=30))
def test_no_text_passes_as_an_option_of_scancel(text: str) -> None:
    if not job_fault(text):
        assert text.isascii()
        assert text[0].isdigit()


def test_a_cancel_has_one_to_a_hundred_jobs() -> None:
    assert CancelQuestion(jobs=()).fault()
    assert CancelQuestion(jobs=("1",) * 101).fault()
    assert CancelQuestion(jobs=("1",) * 100).fault() == ""


@pytest.mark.parametrize(
    "name",
    ["FOO", "_x", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "NCCL_DEBUG", "http_proxy", "LDFLAGS"],
)
def test_variables_that_are_the_jobs_own(name: str) -> None:
    assert variable_fault(name, "any value\nat all") == ""


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "MANPATH", "PYTHONPATH", "SBATCH_PARTITION",
        "SLURM_CONF", "SPANK_X", "BASH_ENV", "ENV", "ZDOTDIR", "IFS", "HOME", "USER", "SHELL",
        "BASH_FUNC_exec", "PROMPT_COMMAND", "PS4", "TMPDIR", "", "1X", "A B", "A=B", "A\0", "É",
    ],
)  # fmt: skip
def test_variables_that_steer_the_submitting_are_refused(name: str) -> None:
    assert variable_fault(name, "x")


def test_values_are_bounded() -> None:
    assert variable_fault("A", "x" * 9000)
    assert variable_fault("A", "\0")
    assert variable_fault("A", "\udcff")


@given(
    st.lists(st.text(max_size=40), max_size=5),
    st.lists(st.text(max_size=40), max_size=5),
    st.text(max_size=40),
)
def test_what_passes_can_be_given_to_a_program(
    options: list[str], arguments: list[str], directory: str
) -> None:
    question = SubmitQuestion(
        options=tuple(options),
        arguments=tuple(arguments),
        directory=directory,
        script_sha256="a" * 64,
    )
    if question.fault():
        return
    for word in (*options, *arguments, directory):
        assert "\0" not in word
        word.encode()
    assert not options or options[0].startswith("-")
    assert directory[:1] in {"", "/"}
