"""What the helper says of outputs fits into one packet, whatever they are called."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.packet import LARGEST_BYTES
from lattice.domain.privileged import MOST_OUTPUTS, Outcome, read_answer, write_answer
from lattice.helper.descriptors import (
    FoundDescriptor,
    HeldOutputs,
    OpenedFile,
    Skipped,
    opened_answer,
)
from lattice.helper.inode import Inode
from lattice.helper.kernel_texts import DescriptorFacts


def _file(path: str, comm: str = "srun", holders: int = 1) -> OpenedFile:
    held = HeldOutputs(4_194_304, 4_000, 999_999_999, step="4294967295+999999")
    found = FoundDescriptor(
        fd=-1,
        inode=Inode(2**40, 2**63, 0o100600, 3001, 5, 1.5, 7),
        path=path,
        comm=comm,
        facts=DescriptorFacts(2**62, 0o102001, 29, None),
        holders=[held] * holders,
    )
    return OpenedFile(found, size=2**62, watch=64)


@pytest.mark.threat("many-files")
@given(st.text(max_size=4096), st.text(max_size=16), st.integers(0, MOST_OUTPUTS))
def test_any_names_fit(path: str, comm: str, count: int) -> None:
    skipped = [Skipped(1, 2, "x" * 80)] * 500
    answer = opened_answer([_file(path, comm)] * count, skipped)
    raw = write_answer(answer)
    assert len(raw) <= LARGEST_BYTES
    assert read_answer(raw).outcome is Outcome.DONE
    told = json.loads(answer.output)
    assert len(told["files"]) == count
    assert all(each["path"].isprintable() for each in told["files"])


@pytest.mark.threat("many-files")
def test_the_longest_names_are_cut_and_nothing_else() -> None:
    answer = opened_answer([_file("\U0001f600" * 4096, holders=20)] * 64, [])
    told = json.loads(answer.output)
    assert len(told["files"]) == 64
    assert 0 < len(told["files"][0]["path"]) < 4096
    assert len(told["files"][0]["holders"]) == 20
    one = json.loads(opened_answer([_file("/" + "x" * 4000)], []).output)
    assert len(one["files"][0]["path"]) == 4001


def test_too_many_holders_are_refused() -> None:
    answer = opened_answer([_file("/x", holders=2049)], [])
    assert answer.outcome is Outcome.BAD_QUESTION


def test_of_noted_files_it_is_said_who_held_them_and_whether_there_are_more() -> None:
    answer = opened_answer([_file("\U0001f600" * 4096, holders=16)] * 64, [], more=True)
    told = json.loads(answer.output)
    assert len(write_answer(answer)) <= LARGEST_BYTES
    assert (len(told["files"]), told["more"]) == (64, True)
    step = "4294967295+999999"
    assert told["files"][0]["holders"] == [[4_194_304, 4_000, 999_999_999, step, False]] * 8
