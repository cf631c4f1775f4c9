"""What a helper tells of a job is read back as it was written, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import StackFrame, StackLanguage
from lattice.domain.probed import (
    LARGEST_BYTES,
    MOST_FRAMES,
    MOST_MOUNTS,
    BadProbe,
    MountReport,
    MountsReport,
    StackReport,
    TaskReport,
    read_mounts,
    read_stacks,
    read_tasks,
    write_mounts,
    write_reports,
)

_words = st.text(max_size=40)
_amounts = st.none() | st.floats(0, 1e12)
_ranks = st.none() | st.integers(0, 10**9)
_mounts = st.builds(
    MountReport,
    path=_words,
    kind=_words,
    source=_words,
    answered_s=_amounts,
    waited_s=_amounts,
    trouble=_words,
)
_tasks = st.builds(
    TaskReport,
    pid=st.integers(1, 2**22),
    step=_words,
    rank=_ranks,
    state=_words,
    waits_in=_words,
    cpu_seconds=_amounts,
    age_s=_amounts,
    command=_words,
    python_unbuffered=st.none() | st.booleans(),
    output_piped=st.none() | st.booleans(),
)
_stacks = st.builds(
    StackReport,
    pid=st.integers(1, 2**22),
    rank=_ranks,
    language=st.sampled_from(StackLanguage),
    frames=st.lists(st.builds(StackFrame, _words, _words, st.integers(0, 10**6)), max_size=5).map(
        tuple
    ),
    state=_words,
    waits_in=_words,
    trouble=_words,
    command=_words,
)


@given(st.lists(_mounts, max_size=4).map(tuple), _words, _words)
def test_mounts_come_back_as_they_were(
    mounts: tuple[MountReport, ...], statistics: str, unlooked: str
) -> None:
    look = MountsReport(mounts=mounts, statistics=statistics, unlooked=unlooked)
    assert read_mounts(write_mounts(look)) == look


@given(st.lists(_tasks, max_size=4).map(tuple), st.lists(_stacks, max_size=4).map(tuple))
def test_processes_come_back_as_they_were(
    tasks: tuple[TaskReport, ...], stacks: tuple[StackReport, ...]
) -> None:
    assert read_tasks(write_reports(tasks)) == tasks
    assert read_stacks(write_reports(stacks)) == stacks


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    for read in (read_mounts, read_tasks, read_stacks):
        try:
            told: Any = read(raw)
        except BadProbe:
            continue
        assert told == ()


_TASK = json.loads(write_reports([TaskReport(pid=1, step="0", rank=0, state="S")]))[0]
_STACK = json.loads(
    write_reports(
        [StackReport(pid=1, rank=0, language=StackLanguage.PYTHON, frames=(StackFrame("f"),))]
    )
)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"pid": -1}, {"pid": True}, {"pid": 1.5}, {"pid": "1"}, {"pid": 2**70},
        {"rank": -1}, {"rank": "0"}, {"cpu_seconds": -0.1}, {"cpu_seconds": float("nan")},
        {"cpu_seconds": float("inf")}, {"age_s": "1"}, {"command": None}, {"step": 7},
        {"output_piped": 1}, {"python_unbuffered": "yes"}, {"more": 1}, {"age_s": 10**400},
    ],
)  # fmt: skip
def test_a_task_with_one_wrong_field_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(BadProbe):
        read_tasks(json.dumps([_TASK | change]).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"language": "cobol"}, {"frames": {}}, {"frames": [{}]},
        {"frames": [{"function": "f", "file": "", "line": -1}]},
        {"frames": [{"function": "f", "file": "", "line": 1}] * (MOST_FRAMES + 1)},
    ],
)  # fmt: skip
def test_a_stack_with_one_wrong_field_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(BadProbe):
        read_stacks(json.dumps([_STACK | change]).encode())


def test_there_is_an_end_to_everything() -> None:
    mount = MountReport(path="/", kind="x", source="y")
    with pytest.raises(BadProbe):
        read_mounts(write_mounts(MountsReport(mounts=(mount,) * (MOST_MOUNTS + 1))))
    with pytest.raises(BadProbe, match="too much"):
        read_tasks(b" " * (LARGEST_BYTES + 1))
    long = MountReport(path="/" + "x" * 10_000, kind="x", source="y")
    (told,) = read_mounts(write_mounts(MountsReport(mounts=(long,)))).mounts
    assert len(told.path) == 4096
