"""Stacks: what py-spy and the kernel write, whole and spoilt; and a program that hangs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import StackFrame
from lattice.domain.probed import MOST_FRAMES
from lattice.helper.privilege import Kernel
from lattice.helper.probe_base import ProbeSlots
from lattice.helper.stacks import read_kernel_stack
from lattice.helper.stacks_python import NoStack, PySpy, read_dump

KERNEL = """[<0>] hrtimer_nanosleep+0x74/0xf0
[<0>] common_nsleep_timens+0x3d/0xa0
[<0>] __x64_sys_clock_nanosleep+0xce/0x140
[<0>] do_syscall_64+0x71/0x280
[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e
"""


def thread(name: str, *frames: tuple[str, str, int], pid: int = 7, os_id: int | None = None) -> Any:
    return {
        "pid": pid, "thread_id": 1, "thread_name": name, "os_thread_id": os_id, "active": True,
        "owns_gil": False, "process_info": None,
        "frames": [
            {"name": function, "filename": file, "line": line, "module": None, "locals": None}
            for function, file, line in frames
        ],
    }  # fmt: skip


def dump(*threads: Any) -> bytes:
    return json.dumps(list(threads)).encode()


@pytest.mark.spec("DIAG-6")
def test_the_main_thread_is_the_one_that_is_told() -> None:
    raw = dump(
        thread("pin_memory", ("get", "queue.py", 5)),
        thread("MainThread", ("all_reduce", "/x/dist.py", 99), ("train", "/x/train.py", 212)),
    )
    assert read_dump(raw) == (
        StackFrame("all_reduce", "/x/dist.py", 99),
        StackFrame("train", "/x/train.py", 212),
    )


@pytest.mark.spec("DIAG-6")
def test_where_no_thread_has_a_name_the_first_of_the_process_is_the_main_one() -> None:
    raw = dump(
        thread("", ("other", "a.py", 1), os_id=8), thread("", ("main", "a.py", 2), os_id=7),
        thread("", ("third", "a.py", 3), os_id=9),
    )  # fmt: skip
    assert read_dump(raw)[0].function == "main"


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"[1]", b"nonsense", b'[{"frames": 1}]', b'[{"frames": [{}]}]']
)
def test_what_tells_no_stack_is_none(raw: bytes) -> None:
    with pytest.raises(NoStack):
        read_dump(raw)


def test_a_stack_has_an_end_and_can_not_move_the_cursor() -> None:
    deep = thread("MainThread", *[("f\x1b[2J", "x" * 5000, 2**40)] * 500)
    frames = read_dump(dump(deep))
    assert len(frames) == MOST_FRAMES
    assert frames[0].function.isprintable()
    assert (len(frames[0].file), frames[0].line) == (256, 0)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["frames", "name", "line", "filename", "pid"]), inner),
))  # fmt: skip
def test_any_json_is_a_stack_or_none(told: Any) -> None:
    try:
        frames = read_dump(json.dumps(told).encode())
    except NoStack:
        return
    assert all(each.function.isprintable() and each.line >= 0 for each in frames)


@pytest.mark.spec("DIAG-6")
def test_the_kernel_is_told_by_its_functions_alone() -> None:
    assert read_kernel_stack(KERNEL) == (
        StackFrame("hrtimer_nanosleep"),
        StackFrame("common_nsleep_timens"),
        StackFrame("__x64_sys_clock_nanosleep"),
    )


@given(st.text(max_size=200))
def test_garbage_is_no_kernel_function(text: str) -> None:
    assert all(each.function.isascii() for each in read_kernel_stack(text))


class _Kernel(Kernel):
    """Nothing is given away: these run as whoever tests."""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[int]]:
    made = ProbeSlots(tmp_path / "places")
    opened = [made.open(os.geteuid(), "stack", number) for number in range(2)]
    yield opened
    for each in opened:
        os.close(each)


def _program(tmp_path: Path, source: str) -> int:
    """A program to run instead of py-spy: an executable by itself, as that is."""
    code, made = tmp_path / "tool.c", tmp_path / "tool"
    code.write_text(source)
    if os.system(f"cc -o {made} {code} 2>/dev/null"):
        pytest.skip("no compiler here")
    return os.open(made, os.O_RDONLY | os.O_CLOEXEC)


def _leave_a_reader_that_hangs(tmp_path: Path, places: list[int], within_s: float) -> float:
    tool = _program(tmp_path, "#include <unistd.h>\nint main(){ for(;;) pause(); }")
    begun = time.monotonic()
    told = PySpy(_Kernel(), tool, places, each_s=0.3).stacks([1, 2, 3], within_s=within_s)
    took_s = time.monotonic() - begun
    os.close(tool)
    assert told == dict.fromkeys([1, 2, 3], "py-spy did not answer in time")
    return took_s


@pytest.mark.spec("DIAG-6")
def test_a_reader_that_hangs_is_left_after_its_time(tmp_path: Path, places: list[int]) -> None:
    _leave_a_reader_that_hangs(tmp_path, places, within_s=60.0)


@pytest.mark.timing
@pytest.mark.spec("DIAG-6")
def test_readers_that_hang_are_left_within_two_and_a_half_seconds(
    tmp_path: Path, places: list[int]
) -> None:
    assert _leave_a_reader_that_hangs(tmp_path, places, within_s=2.0) < 2.5


def _read_many_stacks_in_half_a_second(tmp_path: Path, places: list[int]) -> float:
    tool = _program(tmp_path, "#include <unistd.h>\nint main(){ for(;;) pause(); }")
    begun = time.monotonic()
    told = PySpy(_Kernel(), tool, places).stacks(list(range(1, 65)), within_s=0.5)
    took_s = time.monotonic() - begun
    os.close(tool)
    assert len(told) == 64
    assert set(told.values()) == {
        "py-spy did not answer in time",
        "the time was over before its turn",
    }
    return took_s


@pytest.mark.spec("DIAG-6")
def test_all_of_them_have_one_time(tmp_path: Path, places: list[int]) -> None:
    _read_many_stacks_in_half_a_second(tmp_path, places)


@pytest.mark.timing
@pytest.mark.spec("DIAG-6")
def test_all_of_them_together_take_less_than_a_second_and_a_half(
    tmp_path: Path, places: list[int]
) -> None:
    assert _read_many_stacks_in_half_a_second(tmp_path, places) < 1.5


@pytest.mark.spec("DIAG-6")
def test_a_reader_that_fails_is_told_in_its_words(tmp_path: Path, places: list[int]) -> None:
    tool = _program(
        tmp_path,
        '#include <stdio.h>\nint main(){ fputs("Error: Failed to find python\\n", stderr);'
        " return 1; }",
    )
    told = PySpy(_Kernel(), tool, places).stacks([1], within_s=60.0)
    os.close(tool)
    assert told == {1: "py-spy: Error: Failed to find python"}


def test_a_flood_is_cut(tmp_path: Path, places: list[int]) -> None:
    tool = _program(
        tmp_path, "#include <stdio.h>\nint main(){ for(int i=0;i<4000000;i++) putchar(91); }"
    )
    told = PySpy(_Kernel(), tool, places).stacks([1], within_s=60.0)
    os.close(tool)
    assert told == {1: "py-spy said what can't be read"}
