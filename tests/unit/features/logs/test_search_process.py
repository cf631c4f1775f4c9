"""Searches in another process: the same answers, and no harm when the process ends."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.memory import places_of
from lattice.base.errors import Unavailable
from lattice.base.malloc import overwriting_environment
from lattice.features.logs.service.search import LineQuestion, LineSearch
from lattice.features.logs.service.search_process import SearchProcesses
from tests.eventually import eventually

QUESTION = LineQuestion(grep="loss=nan")
TEXT = b"0: step 1\n1: loss=nan\n1: loss=nan again\n0: loss=nan\nstep 2\n"


@pytest.fixture(scope="module")
def search() -> Iterator[SearchProcesses]:
    opened = SearchProcesses()
    yield opened
    opened.close()


def processes(search: SearchProcesses) -> list[int]:
    return [each.pid for each in search._processes]


def unread_bytes(process: subprocess.Popen[bytes]) -> int:
    """What was written to the process and not read yet."""
    assert process.stdin is not None
    size = array.array("i", [0])
    fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, size)
    return size[0]


def test_lines_that_match_are_found(search: SearchProcesses) -> None:
    found = search.spans(QUESTION, TEXT, labelled=False, torn=False)
    assert [TEXT[begin:end] for _, begin, end in found] == [TEXT[10:52]]
    by_rank = search.spans(QUESTION, TEXT, labelled=True, torn=False)
    assert [(rank, TEXT[begin:end].count(b"\n")) for rank, begin, end in by_rank] == [
        (1, 2),
        (0, 1),
    ]


@given(
    st.builds(
        LineQuestion,
        grep=st.sampled_from(["", "a", "^b", "a$", r"\Ab", "(?i)A"]),
        exclude=st.sampled_from(["", "b", "^$"]),
        ranks=st.sampled_from([(), (0,), (1, 2)]),
    ),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"0: a\n", b"1: b\n", b"\n", b"\xff\r\n"])),
    st.booleans(),
    st.booleans(),
)
def test_the_answer_is_that_of_a_search_here(
    search: SearchProcesses,
    question: LineQuestion,
    lines: list[bytes],
    labelled: bool,
    torn: bool,
) -> None:
    text = b"".join(lines)
    expected = LineSearch(question).spans(text, labelled=labelled, torn=torn)
    assert search.spans(question, text, labelled=labelled, torn=torn) == expected


def test_more_questions_than_stay_compiled(search: SearchProcesses) -> None:
    for _ in range(2):
        for number in range(20):
            question = LineQuestion(grep=f"^{number}$")
            assert search.spans(question, b"7\n19\n", labelled=False, torn=False) == (
                [(None, 0, 2)] if number == 7 else [(None, 2, 5)] if number == 19 else []
            )


def test_a_process_that_was_killed_fails_one_search_and_is_replaced() -> None:
    search = SearchProcesses()
    with ThreadPoolExecutor(1) as thread:
        asking = partial(thread.submit, search.spans, QUESTION, TEXT, labelled=False, torn=False)
        expected = asking().result()
        (first,) = search._processes
        os.kill(first.pid, signal.SIGSTOP)
        interrupted = asking()
        # A process that ends before it has the question is replaced, and no search fails.
        eventually(lambda: unread_bytes(first) > len(TEXT))
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(Unavailable):
            interrupted.result()
        assert asking().result() == expected
    assert first.pid not in processes(search)
    search.close()


def test_a_search_that_fails_is_an_error_and_not_an_empty_answer(search: SearchProcesses) -> None:
    with pytest.raises(Unavailable):
        search.spans(LineQuestion(grep="("), TEXT, labelled=False, torn=False)
    assert search.spans(QUESTION, TEXT, labelled=False, torn=False)


def test_a_process_that_ended_between_two_searches_is_replaced() -> None:
    search = SearchProcesses()
    expected = search.spans(QUESTION, TEXT, labelled=False, torn=False)
    (first,) = search._processes
    first.kill()
    first.wait()
    assert search.spans(QUESTION, TEXT, labelled=False, torn=False) == expected
    assert first not in search._processes
    search.close()


def test_each_thread_has_a_process_of_its_own(search: SearchProcesses) -> None:
    search.spans(QUESTION, TEXT, labelled=False, torn=False)
    before = set(processes(search))
    with ThreadPoolExecutor(1) as other:
        assert other.submit(search.spans, QUESTION, TEXT, labelled=False, torn=False).result()
    assert len(set(processes(search)) - before) == 1


def test_after_the_end_no_process_is_left() -> None:
    search = SearchProcesses()
    search.spans(QUESTION, TEXT, labelled=False, torn=False)
    (pid,) = processes(search)
    search.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Unavailable):
        search.spans(QUESTION, TEXT, labelled=False, torn=False)


def test_it_yields_the_processor(search: SearchProcesses) -> None:
    search.spans(QUESTION, TEXT, labelled=False, torn=False)
    for pid in processes(search):
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE


def test_no_text_stays_in_the_memory_of_a_process_that_overwrites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in overwriting_environment(os.environ).items():
        monkeypatch.setenv(name, value)
    marker = os.urandom(12).hex()
    text = f"step\nloss {marker} of a sensitive job\n".encode() * 3000
    opened = SearchProcesses()
    try:
        for question in (LineQuestion(grep="step"), LineQuestion(grep="sens.tive", exclude="xyz")):
            assert opened.spans(question, text, labelled=False, torn=True)
        (pid,) = processes(opened)
        assert places_of(pid, marker.encode()) == []
    finally:
        opened.close()
