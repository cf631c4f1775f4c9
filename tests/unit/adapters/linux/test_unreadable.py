"""A process that holds its readers costs its own job; the others are read, live and whole."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.base.clock import SystemClock
from lattice.domain.nodejobs import NodeJob, ProcessId
from tests.eventually import eventually, eventually_async
from tests.fakes.node_tree import NodeTree

ALICES, BOBS = "freezer/slurm_n1/uid_3001/job_5", "freezer/slurm_n1/uid_3002/job_6"


class Site:
    """Alice's job with two processes, bob's with one, and a watcher of both."""

    def __init__(self, folder: Path) -> None:
        self.tree = NodeTree(folder)
        self.first, self.second = self.tree.process(), self.tree.process()
        self.bobs = self.tree.process(uid=3002)
        self.tree.group(f"{ALICES}/step_0", self.first, self.second)
        self.tree.group(f"{BOBS}/step_0", self.bobs)
        self.node = NodeJobs(
            self.tree.roots, SystemClock(), birth=self.tree.birth, patience_s=0.05, rescan_s=0.2
        )

    def job(self, number: int) -> NodeJob:
        job = self.node.job(number)
        assert job is not None
        return job

    def pids(self, number: int) -> list[int]:
        job = self.node.job(number)
        return [each.pid for each in job.processes] if job else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@asynccontextmanager
async def watched(site: Site) -> AsyncIterator[None]:
    running = asyncio.create_task(site.node.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("unreadable-process")
async def test_another_job_is_read_while_one_hangs_and_after_the_thaw_it_is_read_again(
    site: Site,
) -> None:
    site.tree.freeze(site.first)
    async with watched(site):
        await site.node.ready()
        assert site.pids(6) == [site.bobs]
        assert site.job(5).unread == (site.first,)
        later = site.tree.process(uid=3002)
        site.tree.group(f"{BOBS}/step_1", later)
        await eventually_async(lambda: site.pids(6), lambda pids: pids == [site.bobs, later])
        # The others of its own job are read, too.
        await eventually_async(lambda: site.pids(5), lambda pids: pids == [site.second])
        assert site.job(5).unread == (site.first,)
        site.tree.thaw(site.first)
        await eventually_async(lambda: site.pids(5), lambda pids: pids == [site.first, site.second])
        assert site.job(5).unread == ()


async def test_a_process_that_freezes_later_stays_in_the_picture(site: Site) -> None:
    async with watched(site):
        await site.node.ready()
        before = site.job(5)
        site.tree.freeze(site.first)
        await eventually_async(lambda: site.job(5).unread, lambda pids: pids == (site.first,))
        assert site.job(5).processes == before.processes
        assert site.job(5).identity == before.identity
        site.tree.group(f"{ALICES}/step_0", site.second)
        await eventually_async(lambda: site.pids(5), lambda pids: pids == [site.second])
        assert site.job(5).unread == ()
        site.tree.thaw(site.first)


async def test_a_job_of_which_nothing_can_be_read_is_there_all_the_same(site: Site) -> None:
    for pid in (site.first, site.second):
        site.tree.freeze(pid)
    async with watched(site):
        await site.node.ready()
        job = site.job(5)
        assert (job.id, job.uid, [str(step.id) for step in job.steps]) == (5, 3001, ["0"])
        assert site.pids(5) == []
        await eventually_async(
            lambda: site.job(5).unread, lambda pids: pids == (site.first, site.second)
        )
        for pid in (site.first, site.second):
            site.tree.thaw(pid)
        await eventually_async(lambda: site.job(5).processes, lambda found: len(found) == 2)
        assert site.job(5).processes[0] == ProcessId(site.first, 10_100)
        assert site.job(5).identity == job.identity


def test_it_ends_while_a_process_hangs(site: Site) -> None:
    site.tree.freeze(site.first)
    roots = site.tree.roots
    watcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "lattice.adapters.linux", "--proc", str(roots.proc)),
            *("--cgroup", str(roots.cgroup), "--spool", str(roots.spool)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert watcher.stdout is not None
    with watcher, watcher.stdout:
        assert '"ready"' in watcher.stdout.readline()
        seen = [json.loads(watcher.stdout.readline()) for _ in range(2)]
        assert {each["id"]: each["unread"] for each in seen} == {5: [site.first], 6: []}
        watcher.send_signal(signal.SIGINT)
        assert eventually(watcher.poll, lambda code: code is not None) == 130
