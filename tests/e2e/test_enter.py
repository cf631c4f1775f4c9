"""A terminal in a running job: who one is there, what one has, and what ends it."""

from __future__ import annotations

import hashlib
import json
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lattice.domain.privileged import Outcome, Rejoin
from lattice.domain.terminal import EndCause, Resize, Signal, StdinEnd, TerminalSignal
from tests.e2e.entered import Door, asking, door_of
from tests.eventually import eventually
from tests.fakes.terminal_client import TerminalClient

pytestmark = pytest.mark.lab

_ROOT = Path(__file__).parents[2]
_IMPATIENT = ("--hang-up-s", "1", "--kill-s", "1", "--linger-s", "1")
_LOOK = (
    *(b"id", b"cat /proc/$$/status", b"echo pwd $PWD", b"cat /tmp/of-the-job"),
    *(b"echo job $SLURM_JOB_ID", b"echo shell $0 term $TERM", b"stty size"),
    *(b"echo oom $(cat /proc/$$/oom_score_adj)", b"echo fds", b"ls -m /proc/$$/fd"),
)
_WORK = "echo hers > /tmp/of-the-job; cd /home; srun --overlap -n1 sleep 300"


@pytest.fixture
def door(lab: Lab) -> Iterator[Door]:
    with door_of(lab, lab.node("n1").agent.helper) as door:
        yield door


@pytest.fixture
def job(quiet_lab: Lab) -> int:
    """Of alice's, with a step that runs."""
    return running(quiet_lab, "alice", _WORK)


def running(lab: Lab, user: str, work: str, step: str = "0") -> int:
    job = lab.sbatch(user, "-w", "n1", wrap=work)
    lab.wait_job_state(job, "RUNNING")
    group = f"freezer/slurm_n1/uid_{_uid(user)}/job_{job}/step_{step}"
    eventually(lambda: _programs(lab, group), lambda names: names[-1:] == ["sleep"])
    return job


def _programs(lab: Lab, group: str) -> list[str]:
    pids = on_n1(lab, "cat", f"/sys/fs/cgroup/{group}/cgroup.procs").split()
    return [on_n1(lab, "cat", f"/proc/{pid}/comm").strip() for pid in pids]


def on_n1(lab: Lab, *argv: str) -> str:
    return lab.node("n1").run(list(argv), check=False).stdout


def told(door: Door, job: int, script: str, **wishes: str) -> str:
    """What a script says inside, without a terminal."""
    client = door.enter(job, "sh", "-c", script, terminal="", **wishes)
    client.end()
    return bytes(client.output).decode()


@pytest.mark.story
@pytest.mark.spec("ATTACH-1", "ATTACH-7")
def test_one_is_the_owner_with_nothing_besides(lab: Lab, door: Door, job: int) -> None:
    client = door.enter(job)
    client.see(b"$ ")
    started = client.started
    assert started is not None
    assert (started.node, started.user, started.step) == ("n1", "alice", "0")
    assert (started.directory, started.accounted, started.warnings) == ("/home", True, ())
    client.type(b"PS1=; " + b"; ".join(_LOOK) + b"; echo e''nd\n")
    said = client.see(b"end\r\n").decode()
    groups = lab.node("n1").run(["id", "-G", "alice"]).stdout.split()
    assert f"uid={_uid()}(alice)" in said
    status = dict(line.split(":", 1) for line in said.splitlines() if ":\t" in line)
    assert status["Groups"].split() == groups
    assert {status[name].strip().strip("0") for name in status if name.startswith("Cap")} == {""}
    assert status["NoNewPrivs"].strip() == "1"
    assert set(status["Uid"].split()) == {str(_uid())}
    # 255 is bash's own second descriptor of the terminal.
    assert "fds\r\n0, 1, 2, 255\r\n" in said
    for expected in (
        "pwd /home",
        "hers",
        f"job {job}",
        "shell -bash term xterm",
        "30 100",
        "oom 500",
    ):
        assert f"\n{expected}\r\n" in said, expected
    client.type(b"exit 7\n")
    assert client.end().code == 7


def _uid(user: str = "alice") -> int:
    return pwd.getpwnam(user).pw_uid


@pytest.mark.spec("ATTACH-1")
def test_it_is_counted_and_limited_with_the_job(lab: Lab, door: Door, job: int) -> None:
    inside = told(
        door, job, "cat /proc/self/cgroup; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    )
    extern = on_n1(lab, "pgrep", "-x", "-f", "sleep 100000000").split()
    groups = [on_n1(lab, "cat", f"/proc/{pid}/cgroup") for pid in extern]
    of_job = [text for text in groups if f"/job_{job}/" in text]
    assert len(of_job) == 1
    mine = {line.split(":", 2)[1]: line for line in inside.splitlines()}
    for line in of_job[0].splitlines():
        if f"/job_{job}/" in line:
            assert mine[line.split(":", 2)[1]] == line
    usage = on_n1(
        lab, "cat", *_files(lab, job, "cpuacct/slurm_n1/uid_{}/job_{}/step_extern/cpuacct.usage")
    )
    assert int(usage) > 100_000_000


def _files(lab: Lab, job: int, pattern: str) -> list[str]:
    return ["/sys/fs/cgroup/" + pattern.format(_uid(), job)]


@pytest.mark.story
@pytest.mark.spec("ATTACH-1", "ATTACH-2")
def test_size_signals_and_job_control(door: Door, job: int) -> None:
    client = door.enter(job, "bash", "--norc", "-i")
    client.see(b"$ ")
    client.say(Resize(55, 133))
    client.type(b"stty size\n")
    client.see(b"55 133")
    client.type(b"sleep 77\n")
    client.see(b"sleep 77\r\n")
    time.sleep(0.3)
    client.type(b"\x1a")
    client.see(b"Stopped")
    client.see(b"$ ")
    client.type(b"fg\n")
    client.see(b"sleep 77\r\n")
    time.sleep(0.3)
    client.type(b"\x03")
    client.see(b"^C")
    client.type(b"echo code-$?\n")
    client.see(b"code-130")
    client.type(b"sleep 78; echo then-$?\n")
    client.see(b"sleep 78; echo then-$?\r\n")
    time.sleep(0.3)
    client.say(Signal(TerminalSignal.TERM))
    client.see(b"then-143")
    client.type(b"kill -9 $$\n")
    ended = client.end()
    assert (ended.cause, ended.code) == (EndCause.SIGNALLED, 137)


@pytest.mark.spec("ATTACH-3")
def test_pipes_carry_bytes_as_they_are(door: Door, job: int) -> None:
    client = door.enter(job, "sh", "-c", "cat; echo over >&2; exit 9", terminal="")
    sent = bytes(range(256)) * 16384
    client.type(sent)
    client.say(StdinEnd())
    assert client.end().code == 9
    assert bytes(client.output) == sent
    assert bytes(client.errors) == b"over\n"


@pytest.mark.spec("ATTACH-3")
def test_a_megabyte_is_pasted_whole(door: Door, job: int) -> None:
    client = door.enter(job, "sh", "-c", "stty -echo; echo ready; sha256sum")
    client.see(b"ready")
    pasted = b"".join(b"%0999d\n" % number for number in range(1000))
    client.type(pasted)
    client.say(StdinEnd())
    client.see(hashlib.sha256(pasted).hexdigest().encode())
    assert client.end().code == 0


def test_what_can_t_be_run_is_said(door: Door, job: int) -> None:
    answer = door.refused(asking("/no/such/program"), user="alice", job=job)
    assert answer.outcome is Outcome.FAILED
    assert answer.message == (
        "/no/such/program can't be run inside this job: No such file or directory"
    )


@pytest.mark.spec("ATTACH-1", "AUTH-9")
def test_nobody_else_s_job_is_entered(lab: Lab, door: Door, job: int) -> None:
    his = running(lab, "bob", "sleep 301", "batch")
    for user, number in (("bob", job), ("alice", his), ("alice", 4_000_000)):
        answer = door.refused(asking("id"), user=user, job=number)
        assert answer.message == f"Job {number} has nothing of yours running on n1."
    assert door.refused(asking("id"), user="root", job=job).outcome is Outcome.ACCOUNT_REFUSED
    late = door.refused(asking("id"), user="alice", job=job, started=int(time.time()) + 60)
    assert "started again" in late.message


@pytest.mark.spec("ATTACH-1")
def test_a_job_without_a_process_here_is_entered_by_its_extern_step(
    quiet_lab: Lab, door: Door
) -> None:
    allocation = quiet_lab.popen_as("alice", ["salloc", "-w", "n1", "sleep", "60"])
    try:
        number = eventually(lambda: _only_job(quiet_lab), lambda told: told > 0)
        quiet_lab.wait_job_state(number, "RUNNING")
        # While the job is young, a process of hers may still be on its way.
        early, _ = door.ask(asking("id"), user="alice", job=number)
        assert early.outcome is Outcome.FAILED
        assert "no process" in early.message
        eventually(
            lambda: door.ask(asking("true"), user="alice", job=number)[0].outcome,
            lambda outcome: outcome is not Outcome.FAILED,
        )
        shown = told(door, number, "id -un; echo job=$SLURM_JOB_ID; pwd; cat /proc/self/cgroup")
        assert "alice" in shown
        assert f"job={number}" in shown
        assert "/home/alice" in shown
        assert f"job_{number}/step_extern" in shown
    finally:
        allocation.kill()
        allocation.communicate()


def _only_job(lab: Lab) -> int:
    told = lab.run_as("alice", ["squeue", "-h", "-o", "%A"]).stdout.split()
    return int(told[0]) if told else 0


@pytest.mark.spec("ATTACH-4")
@pytest.mark.threat("agent")
def test_the_way_back_is_open_to_the_same_caller_alone(door: Door, job: int) -> None:
    session = "1" * 32
    client = door.enter(job, "cat", session=session)
    client.type(b"one\n")
    client.see(b"one\r\none\r\n")
    client.cut()
    client.type(b"two\n")
    for user, number, subject in (("bob", job, "s"), ("alice", job + 1, "s"), ("alice", job, "x")):
        answer, passed = door.ask(Rejoin(session), user=user, job=number, subject=subject)
        assert passed == []
        assert answer.outcome is Outcome.FAILED
        assert answer.message.startswith("There is no such session on this node")
    assert door.refused(asking("id", session=session), user="alice", job=job).message == (
        "This session exists already."
    )
    client.connect(door.rejoin(session, job))
    client.see(b"two\r\ntwo\r\n")
    client.type(b"\x04")
    assert client.end().code == 0


@pytest.mark.spec("ATTACH-4")
def test_a_helper_that_dies_takes_no_terminal_along(lab: Lab, door: Door, job: int) -> None:
    session = "2" * 32
    client = door.enter(job, "cat", session=session)
    helper = lab.node("n1").agent.helper
    helper.kill()
    client.type(b"alone\n")
    client.see(b"alone\r\nalone\r\n")
    helper.up()
    client.cut()
    # A grant of before its start is not believed, so the first may be too early by a second.
    eventually(lambda: _rejoined(door, session, job, client), lambda worked: worked)
    client.type(b"again\n")
    client.see(b"again\r\nagain\r\n")


def _rejoined(door: Door, session: str, job: int, client: TerminalClient) -> bool:
    answer, passed = door.ask(Rejoin(session), user="alice", job=job)
    if answer.outcome is not Outcome.DONE:
        return False
    client.connect(socket.socket(fileno=passed[0]))
    return True


@pytest.mark.story
@pytest.mark.spec("ATTACH-4")
def test_a_client_that_stays_away_is_hung_up_on_and_the_job_is_not(lab: Lab, job: int) -> None:
    helper = lab.node("n1").helper("impatient", *_IMPATIENT)
    helper.up()
    time.sleep(1.1)  # it believes no grant of the second of its start
    try:
        with door_of(lab, helper) as door:
            work = on_n1(lab, "pgrep", "-u", "alice", "-f", "sleep 300")
            polite = door.enter(job, "sleep", "4001")
            stubborn = door.enter(job, "sh", "-c", "trap '' HUP; sleep 4002 & wait; sleep 4003")
            polite.cut()
            stubborn.cut()

            def left() -> list[str]:
                found = on_n1(lab, "pgrep", "-u", "alice", "-f", "sleep 400")
                return found.split()

            eventually(left, lambda pids: not pids)
            assert work
            assert on_n1(lab, "pgrep", "-u", "alice", "-f", "sleep 300") == work
            eventually(
                lambda: list((helper.folder / "sessions" / str(_uid())).iterdir()),
                lambda names: not names,
            )
    finally:
        helper.stop()


@pytest.mark.spec("ATTACH-1")
def test_it_ends_with_the_job(lab: Lab, door: Door, job: int) -> None:
    client = door.enter(job)
    client.see(b"$ ")
    lab.run_as("alice", ["scancel", str(job)], check=True)
    ended = client.end()
    assert (ended.cause, ended.code) == (EndCause.JOB_ENDED, 137)


@pytest.mark.spec("ATTACH-1")
def test_a_suspended_job_can_be_entered(lab: Lab, door: Door, job: int) -> None:
    lab.ctl(["scontrol", "suspend", str(job)])
    try:
        assert told(door, job, "echo inside") == "inside\n"
    finally:
        lab.ctl(["scontrol", "resume", str(job)])


@pytest.mark.spec("ALLOC-5")
@pytest.mark.threat("foreign-image")
def test_tools_are_there_for_this_terminal_alone(
    lab: Lab, door: Door, job: int, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a-tool").write_text("#!/bin/sh\necho tool of $LATTICE_TOOLS\n")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    for name, mode in (("tools.squashfs", 0o644), ("closed.squashfs", 0o600)):
        image = lab.layout.home / "alice" / name
        subprocess.run(["mksquashfs", str(tmp_path), str(image), "-noappend", "-quiet"], check=True)
        image.chmod(mode)
    (lab.layout.home / "alice" / "no.squashfs").write_text("x" * 8192)
    script = "a-tool; grep squashfs /proc/self/mountinfo; ls /tmp"
    said = told(door, job, script, tools="/home/alice/tools.squashfs")
    assert said.startswith("tool of /")
    assert "ro,nosuid,nodev" in said
    assert "of-the-job" in said
    assert "squashfs" not in told(door, job, "cat /proc/self/mountinfo")
    assert "squashfs" not in on_n1(lab, "cat", "/proc/self/mountinfo")
    for path, why in (
        (
            "/home/alice/closed.squashfs",
            "alice can't open /home/alice/closed.squashfs: Permission denied",
        ),
        ("/dev/null", "/dev/null is no file"),
        (
            "/home/alice/no.squashfs",
            "/home/alice/no.squashfs can't be mounted: it is no squashfs image",
        ),
    ):
        assert door.refused(asking("id", tools=path), user="alice", job=job).message == why
    used = eventually(lambda: subprocess.run(["losetup", "-a"], capture_output=True, text=True,
                      check=True).stdout, lambda text: "alice" not in text)  # fmt: skip
    assert "squashfs" not in used


_HOSTILE = r"""#!/bin/bash
cat > /tmp/evil <<'EOF'
#!/bin/sh
exec 2>&1
echo ran; id -u; cat /proc/self/status; echo fds; ls -m /proc/$$/fd
cat /root/host-marker && echo escaped
for p in /proc/[0-9]*; do
  [ "$(stat -c %u $p)" = 0 ] && readlink $p/exe && echo looked-at-root
done
head -c 1 /proc/$PPID/mem && echo memory
echo x > /proc/$PPID/exe && echo overwrote
cat /proc/self/cgroup
EOF
chmod +x /tmp/evil
exec unshare -Urm sh -c '
  touch /tmp/preload; mount --bind /tmp/evil /bin/bash
  exec perl -e "chdir q(/proc/self/fd); sleep 300"'
"""


@pytest.mark.spec("ATTACH-1", "ATTACH-7", "AUTH-9")
@pytest.mark.threat(
    "replaced-files", "watched-entry", "leaked-descriptor", "user-namespace", "own-cgroup"
)
def test_a_hostile_job_gets_nothing_of_the_node(quiet_lab: Lab, door: Door) -> None:
    marker = Path("/root/host-marker")
    marker.write_text("secret of the node")
    marker.chmod(0o600)
    try:
        job = quiet_lab.sbatch("alice", "-w", "n1", script=_HOSTILE)
        quiet_lab.wait_job_state(job, "RUNNING")
        eventually(lambda: on_n1(quiet_lab, "pgrep", "-u", "alice", "-x", "perl"), bool)
        client = door.enter(job, terminal="")
        client.end()
        said = bytes(client.output).decode(errors="replace")
    finally:
        marker.unlink()
    assert said.startswith(f"ran\n{_uid()}\n"), said
    status = dict(line.split(":", 1) for line in said.splitlines() if ":\t" in line)
    assert {status[name].strip().strip("0") for name in status if name.startswith("Cap")} == {""}
    assert status["NoNewPrivs"].strip() == "1"
    assert "fds\n0, 1, 10, 2\n" in said  # 10: the script itself
    for never in ("escaped", "secret", "looked-at-root", "memory\n", "overwrote"):
        assert never not in said, never
    assert f"/job_{job}/step_extern" in said


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("terminal-holder")
def test_a_holder_has_next_to_nothing(lab: Lab, door: Door, job: int) -> None:
    client = door.enter(job, "cat")
    assert client.started is not None
    parent = on_n1(lab, "ps", "-o", "ppid=", "-p", str(client.started.pid)).strip()
    status = dict(
        line.split(":", 1) for line in on_n1(lab, "cat", f"/proc/{parent}/status").splitlines()
    )
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 1 << 5
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    links = on_n1(lab, "ls", "-l", f"/proc/{parent}/fd")
    assert links.count("socket:") == 2
    # The program's, and that of Slurm's process that ends with the job.
    assert links.count("anon_inode:[pidfd]") == 2
    assert on_n1(lab, "cat", f"/proc/{parent}/cgroup").count(f"job_{job}") == 0


@pytest.mark.story
@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("reused-pid")
def test_a_reused_pid_is_never_entered(lab: Lab) -> None:
    command = [sys.executable, "-m", "tests.e2e.pid_reuse", "300"]
    script = f"cd {_ROOT} && exec {' '.join(command)}"
    said = lab.node("n1").run(["sh", "-c", script], timeout_s=240).stdout
    told = json.loads(said.splitlines()[-1])
    assert told["tries"] == 300
    assert told["entered"] == 0
    assert told["refused"] == 300
    # A pid can be taken by somebody else in between; mostly it is not.
    assert told["reused"] > 200


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_nobody_but_root_reaches_a_holder(lab: Lab, door: Door, job: int) -> None:
    session = "3" * 32
    door.enter(job, "cat", session=session)
    folder = lab.node("n1").agent.helper.folder / "sessions"
    for path in (folder, folder / str(_uid()), folder / str(_uid()) / session):
        found = path.stat()
        assert (found.st_uid, found.st_mode & 0o077) == (0, 0), path
