"""What the watcher of a node sees, as an unprivileged user, against what Slurm itself says."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from lattice.domain.allocation import Attempt, State
from lattice.domain.nodejobs import match_attempt
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

_SOURCE = Path(__file__).resolve().parents[2] / "src"
_TWO_STEPS = """\
#!/bin/bash
srun --overlap -n2 sleep 600 &
srun --overlap -n2 sleep 600 &
wait
"""
_Json = dict[str, Any]
_Pids = dict[tuple[str, int], set[int]]


def _watcher_argv(lab: Lab, node: str, *options: str) -> list[str]:
    spool = str(lab.slurm.files.node(node) / "spool")
    # The machine's own Python: the account can't reach into root's environment.
    return [
        *("env", f"PYTHONPATH={_SOURCE}", "PYTHONDONTWRITEBYTECODE=1", "/usr/bin/python3"),
        *("-m", "lattice.adapters.linux", "--spool", spool, *options),
    ]


class Watcher:
    """The watcher on a node, as the agent's account, and every line it printed."""

    def __init__(self, lab: Lab, node: str) -> None:
        # Killing nsenter would leave what it started on the node.
        argv = ["setpriv", "--pdeathsig", "KILL", *_watcher_argv(lab, node)]
        self._process = subprocess.Popen(
            lab.node(node).argv(argv, user=SERVER_USER),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.events: list[_Json] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        ready = self.wait(lambda told: told["event"] == "ready")
        assert ready["trouble"] is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def wait(self, wanted: Callable[[_Json], bool]) -> _Json:
        """The first event of this kind, already there or to come."""

        def is_there(events: list[_Json]) -> bool:
            return any(map(wanted, events))

        return next(filter(wanted, eventually(lambda: list(self.events), is_there)))

    @property
    def jobs(self) -> set[int]:
        """The numbers of all that was ever seen."""
        return {event["id"] for event in self.events if "id" in event}

    def of(self, job: int, kind: str) -> _Json:
        return self.wait(lambda told: (told.get("id"), told["event"]) == (job, kind))

    def with_tasks(self, job: int, **tasks: int) -> _Json:
        """The job once it has so many tasks with processes in these steps."""
        wanted = {name.removeprefix("step_"): count for name, count in tasks.items()}
        return self.wait(lambda told: told.get("id") == job and _running(told) == wanted)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        assert not self._reader.is_alive(), "it outlived its kill"
        if self._process.stdout is not None:
            self._process.stdout.close()


def _running(job: _Json) -> dict[str, int]:
    """How many tasks with processes each step has."""
    return {
        step["id"]["name"]: sum(1 for task in step["tasks"] if task["processes"])
        for step in job["steps"]
    }


def _tasks(job: _Json) -> _Pids:
    return {
        (step["id"]["name"], task["id"]): {each["pid"] for each in task["processes"]}
        for step in job["steps"]
        for task in step["tasks"]
        if step["id"]["name"] != "extern"
    }


def _slurm_tasks(listpids: str) -> _Pids:
    """scontrol listpids: PID JOBID STEPID LOCALID GLOBALID; "-" for processes of no task."""
    found: _Pids = {}
    for line in listpids.splitlines()[1:]:
        pid, _, step, _, task = line.split()
        if step != "extern" and task.isdigit():
            found.setdefault((step, int(task)), set()).add(int(pid))
    return found


def _slurm_start(lab: Lab, job: int) -> datetime:
    told = dict(word.partition("=")[::2] for word in shlex.split(lab.jobs.show(job), posix=False))
    return datetime.fromisoformat(told["StartTime"]).astimezone(UTC)


def _attempt(number: int, started: datetime, ended: datetime | None = None) -> Attempt:
    return Attempt(
        number=number, state=State.RUNNING, submitted=started, started=started, ended=ended
    )


@pytest.fixture
def watcher(quiet_lab: Lab) -> Iterator[Watcher]:
    one = Watcher(quiet_lab, "n1")
    yield one
    one.kill()


def test_a_batch_job_with_two_steps_of_two_tasks(quiet_lab: Lab, watcher: Watcher) -> None:
    job = quiet_lab.sbatch("alice", "-w", "n1", "-n4", "--mem=300", script=_TWO_STEPS)
    seen = watcher.with_tasks(job, step_batch=1, step_extern=1, step_0=2, step_1=2)
    listed = quiet_lab.node("n1").run(["scontrol", "listpids", str(job)]).stdout
    truth = _slurm_tasks(listed)
    told = _tasks(seen)
    assert set(truth) == set(told) == {("batch", 0), *((s, t) for s in "01" for t in (0, 1))}
    # Of the batch step Slurm names the script only, not what it started.
    for task, pids in truth.items():
        assert pids <= told[task], (listed, seen)
    assert seen["uid"] == 3001
    assert seen["started_by"] == "folder"
    started = _slurm_start(quiet_lab, job)
    assert -1 < seen["identity"]["started"] - started.timestamp() < 3
    attempt = _attempt(1, started)
    assert match_attempt([attempt], seen["identity"]["started"]) is attempt
    quiet_lab.jobs.cancel(job)
    assert watcher.of(job, "ended")["identity"] == seen["identity"]


def test_an_array_is_a_job_each(quiet_lab: Lab, watcher: Watcher) -> None:
    array = quiet_lab.sbatch("alice", "-w", "n1", "--mem=100", "--array=0-1", wrap="sleep 600")
    quiet_lab.wait_job_state(array, "RUNNING")
    squeue = ["squeue", "-h", "-r", "-j", str(array), "-o", "%A"]
    numbers = {int(word) for word in quiet_lab.ctl(squeue).stdout.split()}
    assert len(numbers) == 2
    for number in numbers:
        watcher.of(number, "appeared")
    assert watcher.jobs == numbers


def test_parts_of_a_het_job(quiet_lab: Lab, watcher: Watcher) -> None:
    script = (
        "#!/bin/bash\n#SBATCH -w n2 -n1 --mem=100\n#SBATCH hetjob\n#SBATCH -w n1 -n2 --mem=100\n"
    )
    first = quiet_lab.sbatch("alice", script=f"{script}srun --het-group=0,1 sleep 600\n")
    seen = watcher.with_tasks(first + 1, step_extern=1, step_0=2)
    assert seen["uid"] == 3001
    assert watcher.jobs == {first + 1}


def test_a_job_of_less_than_a_moment(quiet_lab: Lab, watcher: Watcher) -> None:
    jobs = [quiet_lab.sbatch("bob", "-w", "n1", "--mem=100", wrap="true") for _ in range(3)]
    for job in jobs:
        appeared, ended = watcher.of(job, "appeared"), watcher.of(job, "ended")
        assert appeared["identity"] == ended["identity"]
        assert appeared["uid"] == 3002


def test_running_before_suspended_and_seen_by_the_next_watcher(quiet_lab: Lab) -> None:
    job = quiet_lab.sbatch("alice", "-w", "n1", "--mem=100", script="#!/bin/bash\nsleep 600\n")
    quiet_lab.wait_job_state(job, "RUNNING")
    time.sleep(0.5)  # its processes are there; what is tested is that nobody saw them come
    first = Watcher(quiet_lab, "n1")
    try:
        seen = first.with_tasks(job, step_batch=1, step_extern=1)
        quiet_lab.ctl(["scontrol", "suspend", str(job)])
        quiet_lab.wait_job_state(job, "SUSPENDED")
    finally:
        first.kill()  # SIGKILL: it can leave nothing behind for the next
    second = Watcher(quiet_lab, "n1")
    try:
        again = second.with_tasks(job, step_batch=1, step_extern=1)
        assert again["identity"] == seen["identity"]
        assert _tasks(again) == _tasks(seen)
        quiet_lab.ctl(["scontrol", "resume", str(job)])
        quiet_lab.jobs.cancel(job)
        assert second.of(job, "ended")["identity"] == seen["identity"]
    finally:
        second.kill()


def test_a_requeue_is_another_life_of_the_same_number(quiet_lab: Lab, watcher: Watcher) -> None:
    job = quiet_lab.sbatch("alice", "-w", "n1", "--mem=100", wrap="sleep 600")
    first = watcher.of(job, "appeared")["identity"]
    one = _attempt(1, _slurm_start(quiet_lab, job))
    quiet_lab.ctl(["scontrol", "requeue", str(job)])
    ended = datetime.now(UTC)
    quiet_lab.wait_job_state(job, "PENDING")
    quiet_lab.start_requeued(job)
    second = watcher.wait(
        lambda told: (
            told.get("id") == job and told["event"] == "appeared" and told["identity"] != first
        )
    )["identity"]
    assert second["inode"] != first["inode"]
    one = _attempt(1, one.started or ended, ended)
    attempts = [one, _attempt(2, _slurm_start(quiet_lab, job))]
    found = [match_attempt(attempts, life["started"]) for life in (first, second)]
    assert [each.number for each in found if each] == [1, 2]
