"""Which processes hold Slurm's files, and what their output is called."""

from __future__ import annotations

import pytest

from lattice.domain.logs import LogKind, LogSource
from lattice.domain.nodejobs import (
    JobIdentity,
    NodeJob,
    NodeStep,
    NodeTask,
    ProcessId,
    StartSign,
    StepId,
)
from lattice.domain.outputs import OutputFile, OutputHolder
from lattice.features.logs.node.writers import (
    LogWriter,
    ProcessInfo,
    is_held_by_daemon,
    is_labelled,
    stream_of,
    writers_of,
)

DAEMONS = (ProcessId(10, 1), ProcessId(20, 1))


def job(*steps: NodeStep) -> NodeJob:
    return NodeJob(
        identity=JobIdentity("boot", 7, 5, 1.0),
        started_by=StartSign.FOLDER,
        steps=steps,
        daemons=DAEMONS,
    )


def step(name: str, *pids: int, tasks: dict[int, int] | None = None) -> NodeStep:
    known = tasks or {}
    return NodeStep(
        StepId(name),
        tuple(NodeTask(task, (ProcessId(pid, 1),)) for pid, task in known.items()),
        tuple(ProcessId(pid, 1) for pid in pids),
    )


SEEN = {
    10: ProcessInfo(1, "slurmstepd", "slurmstepd: [7.batch]"),
    20: ProcessInfo(1, "slurmstepd", "slurmstepd: [7.0]"),
    11: ProcessInfo(10, "bash"),
    12: ProcessInfo(11, "python"),
    13: ProcessInfo(11, "srun"),
    21: ProcessInfo(20, "train"),
    22: ProcessInfo(20, "slurmstepd"),
}


@pytest.mark.spec("LOG-2")
def test_first_processes_srun_and_daemons_of_steps() -> None:
    told = job(step("batch", 11, 12, 13), step("0", 21, 22, tasks={21: 3}))
    assert writers_of(told, SEEN.get) == (
        LogWriter(11, "batch"),
        LogWriter(13, "batch"),
        LogWriter(21, "0"),
        LogWriter(20, "0", daemon=True),
    )


def test_a_process_that_is_gone_is_left_out() -> None:
    assert writers_of(job(step("batch", 99)), {}.get) == ()


def file(*holders: tuple[int, ...]) -> OutputFile:
    held = tuple(OutputHolder(*each) for each in holders)
    return OutputFile(fd=3, device=1, inode=2, born=None, size=0, path="/o", holders=held)


WRITERS = (
    LogWriter(11, "batch"), LogWriter(20, "0", daemon=True), LogWriter(21, "0"), LogWriter(22, "0"),
)  # fmt: skip


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    ("holders", "kind", "source"),
    [
        (((11, 1), (11, 2)), LogKind.STDOUT, "batch"),
        (((11, 2),), LogKind.STDERR, "batch"),
        (((21, 1, 3), (21, 2, 3)), LogKind.STDOUT, "0.3"),
        (((20, 2), (21, 1, 3)), LogKind.STDOUT, "0.3"),
        (((20, 2), (21, 2, 3)), LogKind.STDERR, "0.3"),
        (((20, 2),), LogKind.STDOUT, "0"),
        (((21, 1, 3), (22, 1, 4)), LogKind.STDOUT, "0"),
        (((11, 1, 0),), LogKind.STDOUT, "batch"),
        (((11, 1), (21, 1)), LogKind.STDOUT, "batch"),
    ],
)
def test_names(holders: tuple[tuple[int, ...], ...], kind: LogKind, source: str) -> None:
    assert stream_of(file(*holders), WRITERS, ()) == (kind, LogSource.parse(source))


def test_a_second_file_of_the_same_writer_has_a_name_of_its_own() -> None:
    taken = {(LogKind.STDOUT, LogSource("batch"))}
    assert stream_of(file((11, 1)), WRITERS, taken)[1] == LogSource("batch", None, 2)


def labelling(*words: str) -> tuple[LogWriter, ...]:
    """The script's shell and its srun."""
    seen = SEEN | {13: ProcessInfo(11, "srun", "\0".join(words))}
    return writers_of(job(step("batch", 11, 13)), seen.get)


SRUN = labelling("srun", "-n2", "--label", "-o", "o", "prog")


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    ("holders", "labelled"),
    [
        (((13, 7),), True),
        (((13, 7), (13, 8)), True),
        (((11, 1), (13, 7)), False),
        (((13, 1),), False),
        (((13, 7), (99, 1)), False),
        ((), False),
    ],
)
def test_labelled_is_what_srun_alone_has_opened(
    holders: tuple[tuple[int, ...], ...], labelled: bool
) -> None:
    assert is_labelled(file(*holders), SRUN) is labelled


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    "words",
    [
        ("srun", "-o", "o", "prog"),
        ("srun", "-o", "o", "prog", "--label"),
        ("srun", "--label", "-o", "other", "prog"),
        ("srun", "--label", "prog", "-o", "o"),
    ],
)
def test_an_srun_that_does_not_label_this_file(words: tuple[str, ...]) -> None:
    assert not is_labelled(file((13, 7)), labelling(*words))


@pytest.mark.spec("LOG-2")
def test_only_srun_is_believed_to_label() -> None:
    seen = SEEN | {11: ProcessInfo(10, "bash", "srun\0-l\0-o\0o\0prog")}
    assert not is_labelled(file((11, 7)), writers_of(job(step("batch", 11)), seen.get))


@pytest.mark.spec("LOG-2")
def test_slurmstepd_keeps_a_file_when_its_step_has_a_task() -> None:
    held = file((20, 9))
    assert is_held_by_daemon(held, WRITERS)
    assert not is_held_by_daemon(held, WRITERS[:2])
    assert not is_held_by_daemon(held, (*WRITERS[:2], LogWriter(31, "1")))
    assert not is_held_by_daemon(file((11, 9)), WRITERS)
