"""The watcher on a tree that a test moves; the notices are the kernel's own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from lattice.adapters.linux import nodejobs as module
from lattice.adapters.linux.groups import Birth
from lattice.adapters.linux.inotify import Inotify, WatchLimit
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.base.clock import Clock, SystemClock
from lattice.domain.nodejobs import (
    JobAppeared,
    JobChanged,
    NodeJob,
    NodeJobEnded,
    StartSign,
)
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_tree import NodeTree

_JOB = "freezer/slurm_n1/uid_3001/job_5"
_T = TypeVar("_T", JobAppeared, JobChanged, NodeJobEnded)


class _Story:
    """A running watcher and what it says."""

    def __init__(self, node: NodeJobs) -> None:
        self.node = node
        self._events = node.changes()

    async def next(self, kind: type[_T]) -> NodeJob:
        """The job of the next event of this kind; changes between are let through."""
        async with asyncio.timeout(60):
            async for event in self._events:
                if isinstance(event, kind):
                    return event.job
                assert isinstance(event, JobChanged), event
        raise AssertionError("unreachable")

    async def until_changed(self, wanted: list[str]) -> NodeJob:
        async with asyncio.timeout(60):
            async for event in self._events:
                if isinstance(event, JobChanged) and _steps(event.job) == wanted:
                    return event.job
        raise AssertionError("unreachable")


@asynccontextmanager
async def _watched(
    tree: NodeTree,
    *,
    clock: Clock | None = None,
    birth: Birth | None = None,
    notices: bool = True,
    rescan_s: float = 60,
) -> AsyncIterator[_Story]:
    node = NodeJobs(
        tree.roots,
        clock or SystemClock(),
        birth=birth or tree.birth,
        notices=notices,
        rescan_s=rescan_s,
    )
    running = asyncio.create_task(node.run())
    await node.ready()
    try:
        yield _Story(node)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _steps(job: NodeJob) -> list[str]:
    return [str(step.id) for step in job.steps]


async def test_a_job_from_its_first_folder_to_its_last(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree) as story:
        tree.group(_JOB)
        appeared = await story.next(JobAppeared)
        tree.group(f"{_JOB}/step_extern", tree.process(uid=0))
        tree.group(f"{_JOB}/step_0", pid := tree.process())
        job = await story.until_changed(["extern", "0"])
        assert job.identity == appeared.identity
        tree.remove(f"{_JOB}/step_extern")
        job = await story.until_changed(["0"])
        assert [each.pid for each in job.processes] == [pid]
        assert story.node.job(5) == job
        tree.remove(_JOB)
        assert (await story.next(NodeJobEnded)).identity == appeared.identity
        assert not story.node.jobs
        assert story.node.trouble is None


async def test_a_folder_that_is_still_being_made_has_no_identity_yet(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    births = [time.time()]
    async with _watched(tree, birth=lambda *_: births[-1]) as story:
        tree.group(_JOB)
        await asyncio.sleep(0.1)  # long enough to be seen
        births.append(time.time())  # its owner is changed
        tree.group(f"{_JOB}/step_0")
        appeared = await story.next(JobAppeared)
        assert appeared.identity.started == births[-1]
        tree.remove(_JOB)
        assert (await story.next(NodeJobEnded)).identity == appeared.identity


async def test_processes_that_follow_their_folder_are_found(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree) as story:
        tree.group(f"{_JOB}/step_0")
        job = await story.next(JobAppeared)
        # No notice comes of this: control groups tell of folders only.
        tree.group(f"{_JOB}/step_0", pid := tree.process())
        while not job.processes:
            job = await story.next(JobChanged)
        assert [each.pid for each in job.processes] == [pid]


async def test_jobs_that_are_there_come_first(tmp_path: Path) -> None:
    tree = NodeTree.recorded(tmp_path, "v1")
    async with _watched(tree) as story:
        found = [(await story.next(JobAppeared)).id for _ in range(3)]
        assert found == [7, 8, 10]
        tree.group(_JOB)
        assert (await story.next(JobAppeared)).id == 5


@pytest.mark.parametrize("base", ["freezer/slurm", "freezer/slurm_n1"])
async def test_slurm_may_come_later_than_the_agent(tmp_path: Path, base: str) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer")
    async with _watched(tree) as story:
        tree.group(f"{base}/uid_3001/job_5/step_0")
        assert (await story.next(JobAppeared)).id == 5


async def test_on_v2_too(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    async with _watched(tree) as story:
        tree.group("system.slice/n1_slurmstepd.scope/job_5/step_0/user")
        assert (await story.next(JobAppeared)).id == 5
        tree.group("system.slice/n1_slurmstepd.scope/job_6")
        assert (await story.next(JobAppeared)).id == 6
        tree.remove("system.slice/n1_slurmstepd.scope")
        assert (await story.next(NodeJobEnded)).id == 5


async def test_a_requeue_is_another_identity(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group(_JOB)
    async with _watched(tree) as story:
        first = await story.next(JobAppeared)
        tree.remove(_JOB)
        assert (await story.next(NodeJobEnded)).identity == first.identity
        tree.group(_JOB)
        second = await story.next(JobAppeared)
        # This file system gives the number of the folder out again, as old kernels do.
        assert second.identity != first.identity
        assert second.identity.started > first.identity.started


async def test_the_same_identities_after_a_restart(tmp_path: Path) -> None:
    tree = NodeTree.recorded(tmp_path, "v1")
    before = NodeJobs(tree.roots, SystemClock(), birth=tree.birth)
    await before.refresh()
    tree.group("freezer/slurm_n1/uid_3001/job_8/step_2")
    after = NodeJobs(tree.roots, SystemClock(), birth=tree.birth)
    await after.refresh()
    assert set(before.jobs) == set(after.jobs)
    assert before.job(8) != after.job(8)


async def test_a_job_over_between_two_looks_is_still_told(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    users = tree.group("freezer/slurm_n1/uid_3001")
    async with _watched(tree) as story:
        # No await between: the watcher can't look in the meantime.
        (users / "job_5").mkdir()
        (users / "job_5").rmdir()
        appeared = await story.next(JobAppeared)
        assert (appeared.id, appeared.uid, appeared.identity.inode) == (5, 3001, 0)
        assert appeared.started_by is StartSign.SEEN
        assert (await story.next(NodeJobEnded)) == appeared
        assert not story.node.jobs


async def test_the_spool_is_a_second_sign(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group(f"{_JOB}/step_0", one := tree.process())
    # The clock stands: no second reading is due, only the notice can be the reason.
    async with _watched(tree, clock=ManualClock()) as story:
        await story.next(JobAppeared)
        tree.group(f"{_JOB}/step_0", one, two := tree.process())
        (tree.spool / "n1_5.0").touch()
        job = await story.next(JobChanged)
        assert [each.pid for each in job.processes] == [one, two]


async def test_a_job_that_only_its_sockets_tell_of(tmp_path: Path) -> None:
    """The folder of its user came and went with it, before anyone could watch it."""
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree) as story:
        for step in (4294967292, 4294967291):
            (tree.spool / f"n1_5.{step}").touch()
            (tree.spool / f"n1_5.{step}").unlink()
        appeared = await story.next(JobAppeared)
        assert (appeared.id, appeared.identity.inode) == (5, 0)
        assert appeared.started_by is StartSign.SEEN
        assert (await story.next(NodeJobEnded)) == appeared
        assert not story.node.jobs


async def test_a_job_that_both_signs_tell_of_is_told_once(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    users = tree.group("freezer/slurm_n1/uid_3001")
    async with _watched(tree) as story:
        (users / "job_5").mkdir()
        (users / "job_5").rmdir()
        (tree.spool / "n1_5.0").touch()
        (tree.spool / "n1_5.0").unlink()
        first = await story.next(JobAppeared)
        assert (await story.next(NodeJobEnded)) == first
        tree.group("freezer/slurm_n1/uid_3001/job_6/step_0", tree.process())
        assert (await story.next(JobAppeared)).id == 6, "and not 5 again"


async def test_the_last_sockets_of_a_job_are_no_other_job(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group(f"{_JOB}/step_0", tree.process())
    (tree.spool / "n1_5.0").touch()
    async with _watched(tree) as story:
        job = await story.next(JobAppeared)
        tree.remove(_JOB)
        assert (await story.next(NodeJobEnded)).identity == job.identity
        (tree.spool / "n1_5.0").unlink()
        tree.group("freezer/slurm_n1/uid_3001/job_6/step_0", tree.process())
        assert (await story.next(JobAppeared)).id == 6


async def test_lost_notices_mean_a_look_at_everything(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    users = tree.group("freezer/slurm_n1/uid_3001")
    tree.group(f"{_JOB}/step_0", one := tree.process())
    # The clock stands: no second reading is due, only the notice can be the reason.
    async with _watched(tree, clock=ManualClock()) as story:
        await story.next(JobAppeared)
        tree.group(f"{_JOB}/step_0", one, two := tree.process())
        for _ in range(most // 2 + 1):
            (users / "other").mkdir()
            (users / "other").rmdir()
        job = await story.next(JobChanged)
        assert [each.pid for each in job.processes] == [one, two]


async def test_without_notices_the_next_reading_finds_it(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree, notices=False, rescan_s=0.05) as story:
        tree.group(_JOB)
        first = await story.next(JobAppeared)
        tree.remove(_JOB)
        assert (await story.next(NodeJobEnded)) == first
        assert story.node.trouble == "inotify: switched off"


async def test_a_kernel_without_instances_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise WatchLimit("inotify: Too many open files (fs.inotify.max_user_instances)")

    monkeypatch.setattr(module, "Inotify", refused)
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree, rescan_s=0.05) as story:
        tree.group(_JOB)
        await story.next(JobAppeared)
        trouble = story.node.trouble
        assert trouble is not None
        assert "max_user_instances" in trouble


async def test_a_kernel_without_watches_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise WatchLimit("inotify: No space left on device (fs.inotify.max_user_watches)")

    monkeypatch.setattr(Inotify, "watch", refused)
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm_n1")
    async with _watched(tree, rescan_s=0.05) as story:
        tree.group(_JOB)
        await story.next(JobAppeared)
        trouble = story.node.trouble
        assert trouble is not None
        assert "max_user_watches" in trouble


async def test_a_recycled_pid_is_another_process(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group(f"{_JOB}/step_0", pid := tree.process(ticks=100))
    node = NodeJobs(tree.roots, SystemClock(), birth=tree.birth)
    await node.refresh()
    (before,) = node.jobs.values()
    tree.process(pid, ticks=900)
    await node.refresh()
    (after,) = node.jobs.values()
    assert before.identity == after.identity
    assert not set(before.processes) & set(after.processes)


async def test_everything_may_vanish_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the call, the folder or process behind it may be gone: no reading ever fails."""
    calls = SimpleNamespace(left=0, gone=False)
    real = {name: getattr(os, name) for name in ("open", "read", "scandir", "stat")}

    def failing(name: str) -> object:
        def call(*given: object, **named: object) -> object:
            calls.left -= 1
            if calls.left == 0:
                calls.gone = True
                raise ProcessLookupError(3, "No such process")
            return real[name](*given, **named)

        return call

    tree = NodeTree.recorded(tmp_path, "v1")
    at = 0
    while True:
        node = NodeJobs(tree.roots, SystemClock(), birth=tree.birth)
        calls.left, calls.gone = (at := at + 7), False
        with monkeypatch.context() as patched:
            for name in real:
                patched.setattr(os, name, failing(name))
            node._scanner.turn(True)
        if not calls.gone:
            break
        assert all(job.id in (7, 8, 10) for job in node.jobs.values())
    assert at > 100
    assert sorted(job.id for job in node.jobs.values()) == [7, 8, 10]
