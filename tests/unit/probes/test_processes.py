"""A job's processes: counted in control groups; what they read and wrote comes from the helper."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.domain.counters import IO, CountersUnavailable
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.nodejobs import NodeJob
from lattice.probes.helper_cache import NO_HELPER, HelperReadings
from lattice.probes.processes import (
    NO_GROUP,
    NO_PROCESS,
    NO_PROCESS_YET,
    OLDER_ATTEMPT,
    SOME_UNREAD,
    UNREAD,
    ProcessesProbe,
)
from tests.fakes.kernel_trees import V1_JOB, V2_JOB, Line, Tree, reasons, values
from tests.fakes.manual_clock import ManualClock

READ, WRITTEN = "io_read_bytes_total", "io_write_bytes_total"


def read(probe: ProcessesProbe, job: NodeJob) -> Sequence[MetricReading]:
    return probe.read([job])[job.identity]


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(("name", "threads"), [("v1", 4), ("v2", 4)])
def test_processes_and_threads_without_slurm_s_own(tmp_path: Path, name: str, threads: int) -> None:
    tree = Tree(tmp_path, name)
    clock = ManualClock()
    found = read(ProcessesProbe(HelperReadings(None, clock), clock), tree.job)
    assert values(found) == {"processes": 3 if name == "v1" else 2, "threads": threads}
    assert reasons(found) == {READ: NO_HELPER, WRITTEN: NO_HELPER}


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(("name", "place"), [("v1", f"freezer/{V1_JOB}"), ("v2", V2_JOB)])
def test_a_job_whose_groups_are_gone_has_no_processes_not_none(
    tmp_path: Path, name: str, place: str
) -> None:
    tree = Tree(tmp_path, name)
    shutil.rmtree(tmp_path / "cgroup" / place)
    clock = ManualClock()
    found = read(ProcessesProbe(HelperReadings(None, clock), clock), tree.job)
    assert values(found) == {}
    assert reasons(found)["processes"] == NO_GROUP
    bare = replace(tree.job, folders=())
    assert values(read(ProcessesProbe(HelperReadings(None, clock), clock), bare)) == {}


@pytest.mark.spec("TOP-1")
def test_bytes_of_processes_that_end_stay_counted(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    line = Line({IO: {8: [[5, 1, 0, 0, 0, 9, 9], [7, 2, 5, 4096, 8192, 10, 20]]}})
    probe = ProcessesProbe(HelperReadings(line, clock), clock)
    assert values(read(probe, tree.job))[WRITTEN] == 8192
    clock.advance(1)
    line.told = {IO: {8: [[5, 1, 0, 4096, 9000, 19, 29]]}}
    assert values(read(probe, tree.job))[WRITTEN] == 9000
    clock.advance(1)
    line.told = {}
    found = values(read(probe, tree.job))
    assert (found[READ], found[WRITTEN]) == (4096, 9000)


@pytest.mark.spec("SRC-2")
def test_a_job_whose_processes_can_not_be_read_says_so(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    line = Line({IO: {}}, unread={8: "they hang"})
    found = read(ProcessesProbe(HelperReadings(line, clock), clock), tree.job)
    assert values(found).keys() == {"processes", "threads"}
    assert reasons(found) == {READ: "they hang", WRITTEN: "they hang"}


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("line", "reason", "last_error"),
    [
        (Line(fails=CountersUnavailable("lattice-helper refuses", "busy")),
         "lattice-helper refuses", "busy"),
        (Line(), NO_PROCESS, ""),
        (Line({IO: {8: [[7, 2, 0]]}}), UNREAD, ""),
        (Line({IO: {8: [[7, 2, 0, "1", 2, 3, 4]]}}), "lattice-helper said what can't be",
         "a figure that is none"),
        (Line({IO: {9: [[7, 2, 0, 1, 2, 3, 4]]}}), NO_PROCESS, ""),
    ],
)  # fmt: skip
def test_without_figures_there_is_a_reason(
    tmp_path: Path, line: Line, reason: str, last_error: str
) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    found = read(ProcessesProbe(HelperReadings(line, clock), clock), tree.job)
    assert set(found) >= {Absence(each, reason, last_error) for each in (READ, WRITTEN)}


@pytest.mark.spec("SRC-2")
def test_while_one_process_can_t_be_read_there_is_no_sum_without_it(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    line = Line({IO: {8: [[5, 1, 0, 10, 20, 9, 9], [7, 2, 5]]}})
    probe = ProcessesProbe(HelperReadings(line, clock), clock)
    told = "1 of 2 processes"
    assert set(read(probe, tree.job)) >= {
        Absence(each, SOME_UNREAD, told) for each in (READ, WRITTEN)
    }
    clock.advance(1)
    line.told = {IO: {8: [[5, 1, 0, 10, 20, 9, 9], [7, 2, 5, 4096, 8192, 10, 20]]}}
    assert values(read(probe, tree.job))[WRITTEN] == 8212
    clock.advance(1)
    line.told = {IO: {8: [[5, 1, 0, 10, 20, 9, 9], [7, 2, 5]]}}
    assert WRITTEN not in values(read(probe, tree.job)), "where it stood is not where it stands"
    clock.advance(1)
    line.told = {IO: {8: [[5, 1, 0, 4106, 9020, 19, 29]]}}
    assert values(read(probe, tree.job))[WRITTEN] == 9020, "it was reaped meanwhile"


@pytest.mark.spec("SRC-2")
def test_a_job_that_has_just_begun_has_no_process_yet(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    began = clock.now().timestamp() - 2
    young = replace(tree.job, identity=replace(tree.job.identity, started=began))
    probe = ProcessesProbe(HelperReadings(Line(), clock), clock)
    assert reasons(read(probe, young))[WRITTEN] == NO_PROCESS_YET
    clock.advance(30)
    assert reasons(read(probe, young))[WRITTEN] == NO_PROCESS


@pytest.mark.spec("SRC-2")
def test_an_older_life_of_a_job_is_not_given_the_figures_of_the_newer(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v1"), ManualClock()
    newer = replace(tree.job, identity=replace(tree.job.identity, inode=2, started=1_794_700_500.0))
    line = Line({IO: {8: [[7, 2, 0, 1, 2, 3, 4]]}})
    found = ProcessesProbe(HelperReadings(line, clock), clock).read([newer, tree.job])
    assert values(found[newer.identity])[WRITTEN] == 2
    assert reasons(found[tree.job.identity])[WRITTEN] == OLDER_ATTEMPT


def test_one_question_serves_the_probes_of_one_look(tmp_path: Path) -> None:
    tree, clock, line = Tree(tmp_path, "v1"), ManualClock(), Line()
    look = HelperReadings(line, clock)
    look.at([tree.job])
    look.at([tree.job])
    assert line.asked == 1
    line.fails = CountersUnavailable("gone")
    clock.advance(1)
    for _ in range(2):
        with pytest.raises(CountersUnavailable, match="gone"):
            look.at([tree.job])
    assert line.asked == 2
