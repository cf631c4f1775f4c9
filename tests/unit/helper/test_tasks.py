"""Who does a rank's work, and what the kernel's texts say of a process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.helper.command_lines import (
    arguments_of,
    command_of,
    is_piped,
    is_python,
    is_unbuffered,
)
from lattice.helper.kernel_texts import read_stat, waits_in
from lattice.helper.tasks import Candidate, rank_of, workers

SLURM = 3
TORCH = 0


def process(
    pid: int, parent: int, name: str, rank: int | None = 0, *, near: int = SLURM, step: str = "0"
) -> Candidate:
    return Candidate(
        pid=pid, parent=parent, started=pid, name=name, step=step, rank=rank, near=near
    )


def chosen(*processes: Candidate) -> list[tuple[int | None, int]]:
    return [(each.rank, each.pid) for each in workers(processes)]


@pytest.mark.spec("DIAG-6")
def test_a_shell_is_passed_over_for_what_it_runs() -> None:
    assert chosen(
        process(10, 1, "bash"), process(11, 10, "timeout"), process(12, 11, "python")
    ) == [(0, 12)]


@pytest.mark.spec("DIAG-6")
def test_the_workers_of_a_loader_are_their_programs_affair() -> None:
    assert chosen(
        process(10, 1, "python"), process(11, 10, "python"), process(12, 10, "python")
    ) == [(0, 10)]


@pytest.mark.spec("DIAG-6")
def test_a_batch_script_that_waits_for_srun_is_no_rank() -> None:
    assert chosen(
        process(5, 1, "slurm_script", step="batch"),
        process(6, 5, "srun", step="batch"),
        process(7, 6, "srun", step="batch"),
        process(10, 1, "python", 0),
        process(11, 1, "python", 1),
    ) == [(0, 10), (1, 11)]
    assert chosen(process(5, 1, "bash", step="batch"), process(10, 1, "python", 0)) == [(0, 10)]


@pytest.mark.spec("DIAG-6")
def test_a_batch_script_that_does_the_work_itself_is_the_rank() -> None:
    assert chosen(process(5, 1, "slurm_script", step="batch")) == [(0, 5)]
    assert chosen(process(5, 1, "bash", step="batch"), process(6, 5, "python3", step="batch")) == [
        (0, 6)
    ]


@pytest.mark.spec("DIAG-6")
def test_a_launcher_of_ranks_is_none_of_them() -> None:
    """`torchrun` has Slurm's number; what it starts has its own."""
    assert chosen(
        process(10, 1, "python", 0),
        process(11, 10, "python", 0, near=TORCH),
        process(12, 10, "python", 1, near=TORCH),
        process(13, 11, "python", 0, near=TORCH),
    ) == [(0, 11), (1, 12)]


def test_processes_that_are_each_others_parents_end_the_search_all_the_same() -> None:
    assert chosen(process(10, 11, "bash"), process(11, 10, "bash")) == []


@pytest.mark.spec("DIAG-6")
@given(
    st.lists(
        st.builds(
            process,
            st.integers(1, 12),
            st.integers(0, 12),
            st.sampled_from(["bash", "python", "srun", "a.out"]),
            st.none() | st.integers(0, 3),
            near=st.sampled_from([TORCH, SLURM]),
        ),
        max_size=12,
        unique_by=lambda each: each.pid,
    )
)
def test_nobody_is_chosen_twice_and_no_launcher_ever(every: list[Candidate]) -> None:
    found = workers(every)
    assert len({each.pid for each in found}) == len(found)
    assert all(each in every and each.name != "srun" for each in found)


@pytest.mark.spec("DIAG-6")
@pytest.mark.parametrize(
    ("environment", "rank", "near"),
    [
        ({b"SLURM_PROCID": b"7"}, 7, 3),
        ({b"SLURM_PROCID": b"0", b"RANK": b"5", b"LOCAL_RANK": b"1"}, 5, 0),
        ({b"SLURM_PROCID": b"4", b"RANK": b"general"}, 4, 3),
        ({b"SLURM_PROCID": b"4", b"RANK": b"1"}, 4, 3),
        ({b"OMPI_COMM_WORLD_RANK": b"2", b"SLURM_PROCID": b"0"}, 2, 1),
        ({b"SLURM_PROCID": b"-1"}, None, 4),
        ({b"SLURM_PROCID": b"9" * 40}, None, 4),
        ({}, None, 4),
    ],
)
def test_the_rank_is_the_word_nearest_to_the_work(
    environment: dict[bytes, bytes], rank: int | None, near: int
) -> None:
    assert rank_of(environment) == (rank, near)


def test_a_name_may_hold_anything() -> None:
    line = "42 (a) S (b) R 7 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 987 1 2 3"
    stat = read_stat(line)
    assert stat is not None
    assert (stat.name, stat.state, stat.parent, stat.cpu, stat.started) == (
        "a) S (b", "R", 7, 200, 987,
    )  # fmt: skip


@given(st.text(max_size=120))
def test_what_is_no_stat_says_nothing(text: str) -> None:
    stat = read_stat(text)
    assert stat is None or (stat.cpu >= 0 and stat.started >= 0)
    waiting = waits_in(text)
    assert waiting == "" or waiting.isascii()


def test_a_process_that_runs_waits_in_nothing() -> None:
    assert waits_in("0") == ""
    assert waits_in("hrtimer_nanosleep\n") == "hrtimer_nanosleep"


@pytest.mark.threat("looking-child")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["/opt/conda/bin/python3.11", "-u", "/home/alice/train.py", "--key", "secret"],
         "python3.11 train.py"),
        (["python", "-m", "torch.distributed.run", "--token=secret"],
         "python -m torch.distributed.run"),
        (["python", "-c", "print('secret')"], "python -c"),
        (["python", "-X", "dev", "-W", "error", "x.py", "secret"], "python x.py"),
        (["python"], "python"),
    ],
)  # fmt: skip
def test_a_command_is_program_and_script_without_secrets(words: list[str], told: str) -> None:
    assert command_of(words, "python", python=True) == told


@pytest.mark.threat("looking-child")
def test_another_program_is_told_by_its_name_alone() -> None:
    assert command_of(["/bin/app", "--password=x"], "app", python=False) == "app"
    assert command_of([], "kworker", python=False) == "[kworker]"
    assert arguments_of("a\0b\0\0") == ["a", "b"]
    assert arguments_of("\0\0") == []


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["python", "x.py"], {}, False),
        (["python", "-u", "x.py"], {}, True),
        (["python", "-Bu", "x.py"], None, True),
        (["python", "x.py", "-u"], {}, False),
        (["python", "-m", "x", "-u"], {}, False),
        (["python", "-W", "-u", "x.py"], {}, False),
        (["python", "x.py"], {b"PYTHONUNBUFFERED": b"1"}, True),
        (["python", "x.py"], {b"PYTHONUNBUFFERED": b""}, False),
        (["python", "-E", "x.py"], {b"PYTHONUNBUFFERED": b"1"}, False),
        (["python", "-I", "-u", "x.py"], {}, True),
        (["python", "x.py"], None, None),
        ([], {}, None),
    ],
)
def test_whether_a_python_writes_at_once(
    words: list[str], environment: dict[bytes, bytes] | None, told: bool | None
) -> None:
    assert is_unbuffered(words, environment) is told


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ("pipe:[123]", True), ("/home/alice/slurm-7.out", True), ("socket:[9]", True),
        ("/dev/pts/3", False), ("/dev/tty1", False), ("/dev/null", None), ("", None),
        ("/dev/shm/out", True), ("anon_inode:[eventpoll]", None),
    ],
)  # fmt: skip
def test_what_stands_behind_its_output(link: str, told: bool | None) -> None:
    assert is_piped(link) is told


@pytest.mark.parametrize(
    ("program", "name", "told"),
    [
        ("/usr/bin/python3.11", "python3", True), ("/usr/bin/python3 (deleted)", "x", True),
        ("/opt/pypy3.10", "x", True), ("/usr/bin/bash", "python", False), ("", "python3", True),
        ("", "sh", False), ("/opt/pythonista", "x", False),
    ],
)  # fmt: skip
def test_what_a_python_is(program: str, name: str, told: bool) -> None:
    assert is_python(program, name) is told
