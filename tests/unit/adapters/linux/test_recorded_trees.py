"""Trees recorded on real nodes, and the ones that other versions of Slurm make."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.domain.nodejobs import NodeJob, NodeStep, StartSign
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_tree import BOOTED, NodeTree

_Tasks = dict[str, dict[int, list[int]]]


async def _jobs(tree: NodeTree, clock: ManualClock | None = None) -> dict[int, NodeJob]:
    node = NodeJobs(tree.roots, clock or ManualClock(), birth=tree.birth)
    await node.refresh()
    return {job.id: job for job in node.jobs.values()}


def _tasks(job: NodeJob) -> _Tasks:
    return {
        str(step.id): {task.id: [each.pid for each in task.processes] for task in step.tasks}
        for step in job.steps
    }


def _step(job: NodeJob, name: str) -> NodeStep:
    return next(step for step in job.steps if str(step.id) == name)


async def test_cgroup_v1(tmp_path: Path) -> None:
    jobs = await _jobs(NodeTree.recorded(tmp_path, "v1"))
    assert sorted(jobs) == [7, 8, 10]
    assert {job.uid for job in jobs.values()} == {3001}
    tasks = _tasks(jobs[8])
    assert list(tasks) == ["batch", "extern", "0", "1"]
    assert [len(tasks[step]) for step in tasks] == [1, 1, 2, 2]
    assert all(len(pids) == 1 for step in ("0", "1") for pids in tasks[step].values())
    assert len(jobs[8].daemons) == 4
    assert [folder.hierarchy for folder in jobs[8].folders] == [
        *("freezer", "cpuacct", "devices", "memory")
    ]
    # The freezer has no task folders: processes from there, tasks from a controller.
    for job in jobs.values():
        for step in job.steps:
            assert set(step.processes) == {each for task in step.tasks for each in task.processes}
    assert all(each.start_ticks > 0 for job in jobs.values() for each in job.processes)


@pytest.mark.parametrize(
    ("recording", "job_id", "steps"),
    [("v1-het-first", 5, ["batch", "extern", "0"]), ("v1-het-second", 6, ["extern", "0"])],
)
async def test_parts_of_a_het_job_have_their_own_numbers(
    tmp_path: Path, recording: str, job_id: int, steps: list[str]
) -> None:
    jobs = await _jobs(NodeTree.recorded(tmp_path, recording))
    assert list(jobs) == [job_id]
    assert [str(step.id) for step in jobs[job_id].steps] == steps


async def test_cgroup_v2(tmp_path: Path) -> None:
    jobs = await _jobs(NodeTree.recorded(tmp_path, "v2"))
    assert _tasks(jobs[11]) == {
        "batch": {0: [153, 154, 155, 156, 157]},
        "extern": {0: [147]},
        "0": {0: [180], 1: [182]},
        "1": {0: [181], 1: [183]},
    }
    assert [each.pid for each in jobs[11].daemons] == [142, 149, 170, 171]
    assert jobs[11].uid == 3001
    assert [folder.hierarchy for folder in jobs[11].folders] == [""]


async def test_the_owner_is_nobody_while_only_root_is_there(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    step = "system.slice/slurmstepd.scope/job_5/step_{}/user/task_0"
    sleep = tree.process(uid=0)
    tree.group(step.format("extern"), sleep)
    tree.group(step.format("batch"), tree.process(uid=0))
    assert (await _jobs(tree))[5].uid is None
    # A process of another user in the extern step (adopted by ssh, say) says nothing either.
    tree.group(step.format("extern"), sleep, tree.process(uid=4, ticks=50))
    assert (await _jobs(tree))[5].uid is None
    first = tree.process(uid=3002, ticks=100)
    tree.group(step.format("0"), first, tree.process(uid=100_999, ticks=200))
    assert (await _jobs(tree))[5].uid == 3002
    tree.group(step.format("1"), tree.process(uid=3003))
    assert (await _jobs(tree))[5].uid is None, "they do not agree"


async def test_folders_named_by_the_unique_id(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    step = "system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_batch"
    tree.group(f"{step}/user/task_0", tree.process())
    clock = ManualClock()
    node = NodeJobs(tree.roots, clock, birth=tree.birth)
    await node.refresh()
    assert not node.jobs, "its number is not known yet"
    tree.group(f"{step}/slurm", tree.process(title="slurmstepd: [77.batch]", uid=0))
    await node.refresh()
    (job,) = node.jobs.values()
    assert (job.id, job.sluid, job.uid) == (77, "s5K1KKYAYG5D00", 3001)


async def test_a_folder_without_a_time_of_its_own_keeps_its_identity(tmp_path: Path) -> None:
    """Slurm 26.05 on v2 leaves the folder's owner, so that its times follow who looks at it."""
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    job = "system.slice/slurmstepd.scope/s5K1KKYAYG5D00"
    daemon = tree.process(title="slurmstepd: [77.extern]", uid=0, ticks=5000)
    tree.group(f"{job}/step_extern/slurm", daemon)
    times = iter(range(1, 1000))
    seen = []
    for _ in range(2):  # an agent, and the one after it
        node = NodeJobs(tree.roots, ManualClock(), birth=lambda *_: BOOTED + 60.0 + next(times))
        for _ in range(3):
            await node.refresh()
            seen += [job.identity for job in node.jobs.values()]
    assert len(seen) == 6
    assert {(each.job_id, each.started) for each in seen} == {(77, BOOTED + 50.0)}
    assert len(set(seen)) == 1


async def test_groups_that_outlive_their_job_are_no_job(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    step = "system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_extern"
    tree.group(f"{step}/slurm", tree.process(title="slurmstepd: [77.extern]", uid=0))
    tree.group(f"{step}/user/task_special")
    clock = ManualClock()
    node = NodeJobs(tree.roots, clock, birth=tree.birth)
    await node.refresh()
    assert [job.id for job in node.jobs.values()] == [77]
    tree.group(f"{step}/slurm")
    clock.advance(60)
    await node.refresh()
    assert not node.jobs


async def test_a_number_that_never_comes_is_waited_for_once(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    tree.group("system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0")
    clock = ManualClock()
    node = NodeJobs(tree.roots, clock, birth=tree.birth)
    await node.refresh()
    clock.advance(4)
    await node.refresh()
    assert [(job.id, job.sluid) for job in node.jobs.values()] == [(0, "s5K1KKYAYG5D00")]


async def test_deeper_groups_of_a_container_belong_to_their_task(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    (tree.cgroup / "cgroup.controllers").touch()
    step = "system.slice/n1_slurmstepd.scope/job_5/step_0/user"
    outer, inner, loose = (tree.process() for _ in range(3))
    tree.group(f"{step}/task_3", outer)
    tree.group(f"{step}/task_3/crun/task_9", inner)
    tree.group(f"{step}/task_special", loose)
    job = (await _jobs(tree))[5]
    assert _tasks(job) == {"0": {3: [outer, inner]}}
    assert [each.pid for each in _step(job, "0").processes] == [outer, inner, loose]


async def test_without_a_freezer_another_tree_speaks(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("memory/slurm/uid_7/job_3/step_0/task_0", pid := tree.process())
    tree.group("cpu,cpuacct/slurm/uid_7/job_3/step_0")
    (tree.cgroup / "cpu").symlink_to("cpu,cpuacct")
    job = (await _jobs(tree))[3]
    assert (job.uid, _tasks(job)) == (7, {"0": {0: [pid]}})
    assert [folder.hierarchy for folder in job.folders] == ["memory", "cpu,cpuacct"]


async def test_what_other_trees_left_behind_is_no_job(tmp_path: Path) -> None:
    tree = NodeTree.recorded(tmp_path, "v1")
    tree.group("memory/slurm_n1/uid_3001/job_6/step_0")
    tree.group("unified/system.slice")
    (tree.cgroup / "unified/cgroup.controllers").touch()
    assert sorted(await _jobs(tree)) == [7, 8, 10]


async def test_a_folder_that_forgot_its_birth_is_as_old_as_its_oldest_process(
    tmp_path: Path,
) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm/uid_7/job_3/step_0", tree.process(ticks=5000))
    tree.group("freezer/slurm/uid_7/job_4/step_0", tree.process(ticks=9000))
    births = {"job_3": BOOTED + 4000.0, "job_4": BOOTED + 91.0}
    node = NodeJobs(tree.roots, ManualClock(), birth=lambda path, _: births[Path(path).name])
    await node.refresh()
    told = {job.id: (job.identity.started, job.started_by) for job in node.jobs.values()}
    assert told == {
        3: (BOOTED + 50.5, StartSign.PROCESS),
        4: (BOOTED + 91.0, StartSign.FOLDER),
    }


async def test_an_inode_used_again_is_another_life(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.group("freezer/slurm/uid_7/job_3/step_0")
    births = iter([100.0, 100.0, 160.0])
    node = NodeJobs(tree.roots, ManualClock(), birth=lambda *_: next(births))
    seen = []
    for _ in range(3):
        await node.refresh()
        seen += list(node.jobs)
    assert seen[0] == seen[1] != seen[2]


async def test_without_groups_the_spool_tells_jobs_and_steps(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    for name in ("n1_12.4294967292", "n1_12.0", "n1_12.3.1", "n1_13.0", "cred_state"):
        (tree.spool / name).touch()
    jobs = await _jobs(tree)
    assert {number: [str(step.id) for step in job.steps] for number, job in jobs.items()} == {
        12: ["extern", "0", "3+1"],
        13: ["0"],
    }
    assert jobs[12].uid is None
    assert jobs[12].processes == ()


async def test_hidden_processes_are_said_to_be(tmp_path: Path) -> None:
    tree = NodeTree.recorded(tmp_path, "v1")
    node = NodeJobs(tree.roots, ManualClock(), birth=tree.birth)
    assert node.trouble is None
    for folder in tree.proc.iterdir():
        if folder.name.isdigit():
            folder.rename(folder.with_name(f"hidden-{folder.name}"))
    await node.refresh()
    assert sorted(job.id for job in node.jobs.values()) == [7, 8, 10]
    assert all(job.processes == () for job in node.jobs.values())
    assert node.trouble == "/proc hides processes (hidepid)"
