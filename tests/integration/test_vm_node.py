"""A node with another kernel and pure cgroup v2: Slurm on it, what an agent sees there, its link.

One boot serves all: software emulation makes it slow.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from tests.e2e.at_terminal import PROMPT, at, piped
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.e2e.topped import cell, measured_top
from tests.eventually import eventually
from tests.integration.test_jobs_on_a_node import (
    _TWO_STEPS,
    _Json,
    _running,
    _slurm_start,
    _slurm_tasks,
    _tasks,
    _watcher_argv,
)

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[Lab]:
    """The session's lab with its VM node, booted once."""
    lab.jobs.cancel_all()
    lab.slurm.start_vm()
    yield lab
    lab.jobs.cancel_all(timeout_s=60)
    lab.slurm.stop_vm()
    assert "v1" not in lab.ctl(["sinfo", "-h", "-N", "-o", "%N"]).stdout


def _folder(job: int) -> str:
    """A pattern for the path of a job's control group: by its number, or by its unique id."""
    return rf"/system\.slice/v1_slurmstepd\.scope/(?:job_{job}|s[0-9A-Z]{{13}})"


def test_one_job_runs_on_both_kinds_of_cgroup(machine: Lab) -> None:
    job = machine.sbatch("alice", "-N2", "-w", "n1,v1", "-o", "groups.out",
                         wrap="srun --label cat /proc/self/cgroup")  # fmt: skip
    machine.wait_job_state(job, "COMPLETED", timeout_s=120)
    lines = (machine.layout.home / "alice" / "groups.out").read_text().splitlines()
    assert [line for line in lines if ":freezer:/slurm_n1/" in line and f"/job_{job}/" in line]
    assert [line for line in lines if re.search(rf"0::{_folder(job)}/step_0/", line)]
    machine.slurm.ctld.restart()  # a controller that starts again still knows the node
    machine.slurm.wait_nodes(["n1", "n2", "n3", "v1"])
    assert machine.vm.run(["id", "-un"], user="alice").stdout.strip() == "alice"


@pytest.mark.spec("AUTH-9")
def test_its_agent_links_and_opens_no_port(machine: Lab) -> None:
    machine.vm.start_agent()
    olga = Person(machine, "alice")
    olga._token = str(machine.oidc.token("olga", "openid admin")["access_token"])
    said = eventually(
        lambda: olga.tries("admin", "ping", "v1", "--count", "3"), lambda said: said.code == 0
    )
    assert said.out.startswith("v1")
    shown = machine.vm.run(["ss", "--no-header", "-lntup"]).stdout
    assert set(re.findall(r'\(\("([^"]+)"', shown)) <= {"slurmd"}, shown
    pid = machine.vm.run(["pgrep", "-f", "lattice-agent --config"]).stdout.split()[0]
    status = machine.vm.run(["cat", f"/proc/{pid}/status"]).stdout
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert "0" not in facts["Uid"].split() + facts["Gid"].split()
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts[kind], 16) == 0, (kind, facts[kind])


def test_its_jobs_are_seen_under_cgroup_v2(machine: Lab) -> None:
    vm = machine.vm
    # By number: the guest loses the list of accounts when the host writes a new one.
    account = pwd.getpwnam(SERVER_USER)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    follow = shlex.join([*become, *_watcher_argv(machine, vm.name)])
    start = f"setsid {follow} >/run/seen 2>&1 </dev/null & echo $! >/run/seen.pid"

    def told() -> list[_Json]:
        return [json.loads(line) for line in vm.run(["cat", "/run/seen"]).stdout.splitlines()]

    def wait(wanted: Callable[[_Json], bool]) -> _Json:
        seen = eventually(
            told, lambda events: any(map(wanted, events)), patience_s=200, pause_s=0.5
        )
        return next(filter(wanted, seen))

    vm.run(["bash", "-c", start])
    wait(lambda event: event["event"] == "ready")
    job = machine.sbatch("alice", "-w", vm.name, "-n2", "--mem=300", script=_TWO_STEPS)
    short = machine.sbatch("bob", "-w", vm.name, "-n1", "--mem=100", wrap="true")
    # Newer releases of Slurm start no task in the extern step.
    wanted = [{"batch": 1, "0": 2, "1": 2, "extern": tasks} for tasks in (0, 1)]
    seen = wait(lambda event: event.get("id") == job and _running(event) in wanted)
    truth = _slurm_tasks(vm.run(["scontrol", "listpids", str(job)]).stdout)
    assert set(truth) == set(_tasks(seen))
    for task, pids in truth.items():
        assert pids <= _tasks(seen)[task]
    # Its owner is known as soon as slurmstepd has become him.
    owned = wait(lambda event: event.get("id") == job and event["uid"] is not None)
    assert owned["uid"] == 3001
    assert -1 < seen["identity"]["started"] - _slurm_start(machine, job).timestamp() < 30
    ended = wait(lambda event: event == event | {"id": short, "event": "ended"})
    assert ended["identity"] in [e["identity"] for e in told() if e["event"] == "appeared"]
    vm.run(["bash", "-c", "kill -9 $(cat /run/seen.pid)"])

    once = vm.run([*become, *_watcher_argv(machine, vm.name, "--once")]).stdout
    (again,) = (json.loads(line) for line in once.splitlines())
    assert (again["identity"], again["uid"]) == (seen["identity"], 3001)


@pytest.mark.spec("LOG-2", "LOG-3", "LOG-4")
def test_what_its_jobs_write_is_all_there(machine: Lab) -> None:
    """Followed live, and by rank where a task has a file of its own."""
    vm = machine.vm
    if not vm.run(["pgrep", "-f", "lattice-agent --config"], check=False).stdout:
        vm.start_agent()
    machine.jobs.cancel_all(timeout_s=60)
    alice = Person(machine, "alice").logged_in()
    batch, task = script("v", 300, pause_s=0.05), script("t", 20, pause_s=0.5)
    job = machine.sbatch(
        "alice", "-w", vm.name, "-n2", "--mem=300", wrap=f"{batch}; srun --output=v%t.out {task}"
    )
    machine.wait_job_state(job, "RUNNING", timeout_s=120)
    following = machine.popen_as(
        "alice", ["lattice", "logs", str(job), "--follow", "--prefix", "none"], env=alice.bearer
    )
    out, err = following.communicate(timeout=240)
    assert following.returncode == 0, err
    assert numbers(out.splitlines(), "v") == list(range(300)), err
    for rank in ("0", "1"):
        ask = partial(alice.tries, "logs", str(job), "--rank", rank)
        by_rank = eventually(ask, lambda said: said.out.count("\n") >= 20)
        assert numbers(by_rank.out.splitlines(), "t") == list(range(20))
    # A node that is slow to answer is said to be, and its lines come with the next look.
    eventually(
        lambda: numbers(alice.tries("logs", str(job), "--prefix", "none").out.splitlines(), "v"),
        lambda seen: seen == list(range(300)),
    )


@pytest.mark.spec("LOG-7", "ATTACH-1", "AUTH-9")
@pytest.mark.parametrize("ahead_s", [240, -240])
def test_its_clock_is_set_wrong_while_it_runs(machine: Lab, ahead_s: int) -> None:
    """The whole machine's: kernel, Slurm, agent and helper. More, and munge would refuse it."""
    vm = machine.vm
    if not vm.run(["pgrep", "-f", "lattice-agent --config"], check=False).stdout:
        vm.start_agent()
    machine.jobs.cancel_all(timeout_s=60)
    alice = Person(machine, "alice").logged_in()
    look = ["grep", "-c", "helper was told the time", "/run/agent.log"]
    told = partial(vm.run, look, check=False)
    before = int(told().stdout or 0)
    vm.run(["date", "-s", f"{ahead_s} seconds"])
    try:
        eventually(lambda: int(told().stdout or 0), lambda count: count > before)
        wrap = f"{script('c', 100, pause_s=0.1)}; sleep 600"
        job = machine.sbatch("alice", "-w", vm.name, "-n1", "--mem=120", wrap=wrap)
        machine.wait_job_state(job, "RUNNING", timeout_s=120)
        live = eventually(
            lambda: alice.tries("logs", str(job)), lambda said: said.out.count("\n") >= 100
        )
        assert numbers(live.out.splitlines(), "c") == list(range(100))
        asked = ("attach", str(job), "--", "id", "-un")
        eventually(lambda: piped(alice, *asked), lambda said: said.stdout == b"alice\n")
    finally:
        vm.run(["date", "-s", f"{-ahead_s} seconds"])
        machine.jobs.cancel_all(timeout_s=60)


@pytest.mark.spec("ATTACH-1", "ATTACH-3")
def test_a_terminal_in_a_job_under_cgroup_v2(machine: Lab) -> None:
    """As on the other nodes: the extern step's group, its limits, and its end."""
    alice = Person(machine, "alice").logged_in()
    job = machine.sbatch("alice", "-w", "v1", "-n1", "--mem=120", wrap="sleep 900")
    machine.wait_job_state(job, "RUNNING", timeout_s=120)
    asked = ("attach", str(job), "--", "sh", "-c")
    eventually(lambda: piped(alice, *asked, "id -un").stdout, lambda said: said == b"alice\n")
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT, 60)
        shown.resize(33, 101)
        shown.type(
            "stty size; id -un; hostname; cat /proc/self/cgroup; "
            "grep -E 'Cap|NoNew' /proc/self/status\n"
        )
        shown.until(r"33 101\r\nalice\r\nv1\r\n", 30)
        shown.until(rf"0::{_folder(job)}/step_extern/user/task_\w+\r\n", 10)
        shown.until(r"CapEff:\t0000000000000000\r\n", 10)
        shown.until(r"NoNewPrivs:\t1\r\n", 10)
        shown.until(PROMPT)
        shown.type("sleep 100\n")
        shown.until("sleep 100\r\n")
        shown.type(b"\x03")
        shown.until(PROMPT)
        shown.type("exit 7\n")
        assert shown.wait(60) == 7
        assert shown.modes_now == shown.modes
    text = os.urandom(100_000)
    done = piped(alice, *asked, "cat; exit 3", text=text)
    assert (done.returncode, done.stdout) == (3, text), done.stderr
    # `tail` keeps a line that does not end: more memory than the job has.
    greedy = piped(alice, *asked, "head -c 150000000 /dev/zero | tail -n 1 >/dev/null && echo all")
    assert (greedy.returncode != 0, greedy.stdout) == (True, b"")
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT, 60)
        machine.jobs.cancel(job)
        shown.until(f"job {job} ended: CANCELLED", 90)
        shown.wait(60)
        assert shown.modes_now == shown.modes
    # Slurm removes the job's folder only if the guests' one is gone.
    left = ["find", "/sys/fs/cgroup/system.slice/v1_slurmstepd.scope", "-name", "step_*"]
    eventually(lambda: machine.vm.run(left).stdout, lambda found: not found)


@pytest.mark.spec("TOP-2", "DIAG-1", "DIAG-6")
def test_what_a_job_uses_and_what_is_wrong_with_it_under_cgroup_v2(machine: Lab) -> None:
    alice = Person(machine, "alice").logged_in()
    wrap = "while :; do date +%N; sleep 0.2; done"
    job = machine.sbatch("alice", "-w", "v1", "-n1", "--mem=120", wrap=wrap)
    machine.wait_job_state(job, "RUNNING", timeout_s=120)
    used = cell(measured_top(alice, job), "memory_used")
    assert 0 < used["value"] < 120 * 2**20, used
    found = alice.tries("diag", str(job))
    assert found.code == 0, found
    assert re.search("ok Nodes that answer", found.out)
    assert re.search("ok Memory .*at most 90 %", found.out)
    stacks = alice.tries("diag", str(job), "--stacks")
    assert stacks.code == 0, stacks
    assert "1/1 nodes" in stacks.out
