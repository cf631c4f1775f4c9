"""`lattice attach` at a real terminal and through pipes, in real jobs: as if one sat there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.screen import Screen, screen
from tests.e2e.at_terminal import PROMPT, at, piped
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Person:
    return Person(lab, "alice").logged_in()


@pytest.fixture(scope="module")
def job(lab: Lab) -> Iterator[int]:
    """On one node, with a private /tmp, 300 MB and a file of its own."""
    lab.jobs.cancel_all()
    wrap = "echo mine >/tmp/private; cd; sleep 1200"
    number = lab.sbatch("alice", "-w", "n1", "-c1", "--mem=300", wrap=wrap)
    lab.wait_job_state(number, "RUNNING")
    yield number
    lab.jobs.cancel_all()


@pytest.mark.story
@pytest.mark.spec("ATTACH-1", "ATTACH-3")
def test_a_shell_in_the_job_its_size_its_exit_code(alice: Person, job: int) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type("id -un; cat /tmp/private; echo job=$SLURM_JOB_ID; hostname; pwd; tty\n")
        shown.until(rf"alice\r\nmine\r\njob={job}\r\nn1\r\n/home/alice\r\n/dev/pts/\d+\r\n")
        shown.until(PROMPT)
        shown.type("stty size\n")
        shown.until(r"24 80\r\n")
        shown.resize(33, 101)
        # A key typed in the same instant may be there first, as over any wire.
        shown.settle()
        shown.type("stty size\n")
        shown.until(r"33 101\r\n")
        shown.type("exit 7\n")
        assert shown.wait() == 7
        assert shown.modes_now == shown.modes, "the terminal is as it was"


@pytest.mark.spec("ATTACH-1")
def test_a_terminal_stays_on_the_connection_it_began_with(
    lab: Lab, alice: Person, job: int
) -> None:
    """Longer than a server waits for a head or a body; the client would come back in silence."""
    before = _accepted(lab, job)
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        for number in range(6):
            time.sleep(2)
            shown.type(f"echo still-''{number}\n")
            shown.until(f"still-{number}\r\n")
    assert _accepted(lab, job) == before + 1


def _accepted(lab: Lab, job: int) -> int:
    """How many connections of terminals in a job the servers have taken so far."""
    logs = (each.process.log_file.read_text() for each in lab.servers)
    return sum(log.count(f'/allocations/{job}/attach\\" [accepted]') for log in logs)


@pytest.mark.spec("ATTACH-1", "ATTACH-2", "ATTACH-3")
def test_keys_that_are_signals(alice: Person, job: int) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type("echo be''gun; sleep 100\n")
        shown.until("begun\r\n")
        shown.settle()  # until the shell has given the terminal away
        shown.type(b"\x03")
        shown.until(PROMPT)
        shown.type("echo be''gun; sleep 100; echo after $?\n")
        shown.until("begun\r\n")
        shown.settle()
        shown.type(b"\x1a")
        shown.until("Stopped")
        shown.until(PROMPT)
        shown.type("fg\n")
        shown.until("sleep 100")
        shown.type(b"\x03")
        shown.until(PROMPT)
        shown.type("(sleep 0.3; echo from a child) & wait; kill -TERM $$; kill -9 $$\n")
        shown.until("from a child")
        assert shown.wait() == 128 + 9
        assert shown.modes_now == shown.modes


def _edit(shown: Screen) -> list[str]:
    """The picture of an editor after a few keys, the same in every terminal."""
    shown.type("vim -u NONE -i NONE -n /tmp/lines\n")
    shown.until("New")
    shown.type("ione\ntwo\x1bkyyjp:set number\n")
    shown.settle()
    return shown.picture


@pytest.mark.spec("ATTACH-1")
def test_full_screen_programs_look_as_they_do_there(lab: Lab, alice: Person, job: int) -> None:
    shell = ["setpriv", "--reuid=3001", "--regid=3001", "--init-groups", "sh"]
    with screen(lab.node("n1").argv(shell), {"PATH": os.environ["PATH"]}) as bare:
        bare.until(PROMPT)
        expected = _edit(bare)
    assert [line.strip() for line in expected[:3]] == ["1 one", "2 two", "3 one"]
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        assert _edit(shown) == expected
        lab.slurm.scontrol("suspend", str(job))
        shown.settle(4)
        lab.slurm.scontrol("resume", str(job))
        shown.settle(4)
        assert shown.picture == expected, "a notice does not stand in the picture"
        shown.type(":q!\n")
        shown.until(rf"job {job} is suspended: its processes stand still\r\n")
        shown.until(rf"job {job} is resumed\r\n")
        shown.until(PROMPT)
        for program, column in (("top", "COMMAND"), ("htop", "Command")):
            shown.type(f"{program} -u alice\n")
            shown.until(column)
            shown.settle(0.3)
            assert any(column in line for line in shown.picture)
            assert any("alice" in line for line in shown.picture)
            shown.type("q")
            shown.until(PROMPT)
        shown.type("exit\n")
        assert shown.wait() == 0


@pytest.mark.spec("ATTACH-3")
def test_a_megabyte_is_pasted_whole(alice: Person, job: int) -> None:
    lines = b"".join(b"%06d %s\n" % (number, b"x" * 56) for number in range(MIB // 64))
    with at(alice, "attach", str(job), "--", "sh", "-c", "stty -echo; echo ok; md5sum") as shown:
        shown.until("ok\r\n")
        shown.type(lines)
        shown.type(b"\x04")
        found = shown.until(r"([0-9a-f]{32})  -", 60)
        assert found[1] == hashlib.md5(lines).hexdigest()
        assert shown.wait() == 0


@pytest.mark.story
@pytest.mark.spec("ATTACH-3")
def test_pipes_pass_bytes_as_they_are(alice: Person, job: int) -> None:
    text = os.urandom(3 * MIB)
    done = piped(alice, "attach", str(job), "--", "sh", "-c", "cat; echo no >&2; exit 3", text=text)
    assert (done.returncode, done.stdout) == (3, text), done.stderr
    assert done.stderr.endswith(b"no\n")
    done = piped(alice, "attach", str(job), "-c", "kill -INT $$")
    assert done.returncode == 128 + 2, done.stderr
    done = piped(alice, "attach", str(job), "--", "no-such-program")
    assert done.returncode != 0
    assert b"no-such-program" in done.stderr


@pytest.mark.spec("ATTACH-3")
def test_a_flood_comes_out_whole(alice: Person, job: int) -> None:
    """A quarter of a gigabyte; LATTICE_FLOOD_MIB=1024 makes a whole one, in half a minute."""
    size = int(os.environ.get("LATTICE_FLOOD_MIB", "256")) * MIB
    counted = f"lattice attach {job} -- head -c {size} /dev/zero | wc -c"
    argv, environment = alice.lab.sessions.argv("alice", ["sh", "-c", counted])
    done = subprocess.run(
        argv, env={**environment, **alice.bearer}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(size), done.stderr


@pytest.mark.spec("ATTACH-1")
def test_a_node_of_choice(lab: Lab, alice: Person, job: int) -> None:
    wide = lab.sbatch("alice", "-N3", "--mem=100", wrap="srun sleep 600")
    lab.wait_job_state(wide, "RUNNING")
    asked = ("attach", str(wide), "--node", "n3", "--", "hostname")
    eventually(lambda: piped(alice, *asked).stdout, lambda seen: seen == b"n3\n")
    wrong = piped(alice, "attach", str(wide), "--node", "n9", "--", "hostname")
    assert wrong.returncode == 2
    assert b"does not run on n9.\nHint: It runs on n[1-3]." in wrong.stderr
    lab.jobs.cancel(wide)


@pytest.mark.spec("ATTACH-6")
def test_what_does_not_run_can_not_be_entered(lab: Lab, alice: Person) -> None:
    held = lab.sbatch("alice", "--hold", wrap="true")
    said = alice.tries("attach", str(held), "--", "true")
    assert "cannot attach to allocation in state 'pending'; must be 'running'" in said.err
    assert said.code != 0
    lab.jobs.cancel(held)


@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_anothers_job_is_not_there(lab: Lab, job: int) -> None:
    bob = Person(lab, "bob").logged_in()
    answers = [bob.tries("attach", str(each), "--", "true") for each in (job, 999_999_999)]
    assert [each.code for each in answers] == [102, 102]
    said = [re.sub(r"\d+", "N", each.err) for each in answers]
    assert said[0] == said[1]


@pytest.mark.story
@pytest.mark.spec("ATTACH-9")
def test_each_session_is_listed(alice: Person, job: int) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        open_ = alice.asks("sessions")["sessions"][0]
        assert (open_["user"], open_["node"], open_["ended"]) == ("alice", "n1", None)
        shown.type("exit 5\n")
        assert shown.wait() == 5
    sessions = alice.asks("sessions", "--all")["sessions"]
    over = next(each for each in sessions if each["id"] == open_["id"])
    assert (over["reason"], over["exit_code"]) == ("exited", 5)


@pytest.mark.spec("ATTACH-1")
def test_it_counts_to_the_job_and_ends_with_it(lab: Lab, alice: Person) -> None:
    """Memory is held to the job's, Slurm counts what it used, and scancel ends it."""
    mine = lab.sbatch("alice", "-w", "n2", "-c1", "--mem=150", wrap="sleep 600")
    lab.wait_job_state(mine, "RUNNING")
    greedy = "import sys; x = bytearray(400 << 20); print(len(x))"
    done = piped(alice, "attach", str(mine), "--", "python3", "-c", greedy)
    assert done.returncode != 0, "more memory than the job has"
    assert done.stdout == b""
    # Of processes it did not start Slurm knows what it sees, every 2 s here: not their end.
    burn = (
        "import time; kept = bytearray(60 << 20); end = time.process_time() + 4\n"
        "while time.process_time() < end: pass\n"
        "time.sleep(5)"
    )
    assert piped(alice, "attach", str(mine), "--", "python3", "-c", burn).returncode == 0
    with at(alice, "attach", str(mine)) as shown:
        shown.until(PROMPT)
        lab.jobs.cancel(mine)
        code = shown.wait()
        assert f"job {mine} ended: CANCELLED" in shown.text
        assert code in {79, 128 + 9, 128 + 15}
        assert shown.modes_now == shown.modes

    counted = ["sacct", "-nPj", f"{mine}.extern", "--units=K", "-o", "AveCPU,MaxRSS"]
    told = eventually(lambda: lab.ctl(counted).stdout, lambda said: "K" in said).strip()
    cpu, _, resident = told.partition("|")
    assert cpu >= "00:00:04"
    assert float(resident.removesuffix("K")) >= 60 * 1024


@pytest.mark.spec("ATTACH-1")
def test_ten_at_once(lab: Lab, alice: Person, job: int) -> None:
    """Five of one person's, five of another's; each has its own."""
    bob = Person(lab, "bob").logged_in()
    other = lab.sbatch("bob", "-w", "n1", "--mem=100", wrap="sleep 600")
    lab.wait_job_state(other, "RUNNING")
    with ExitStack() as stack:
        terminals = [
            (person, number, stack.enter_context(at(person, "attach", str(at_job))))
            for number in range(5)
            for person, at_job in ((alice, job), (bob, other))
        ]
        for _, _, shown in terminals:
            shown.until(PROMPT, 60)
        for person, number, shown in terminals:
            shown.type(f"echo {number}-$(id -un)-$((6*7))\n")
            shown.until(f"{number}-{person.name}-42")
        for _, number, shown in terminals:
            shown.type(f"exit {number}\n")
        assert [shown.wait() for *_, shown in terminals] == [number for _, number, _ in terminals]
    lab.jobs.cancel(other)


@pytest.mark.story
@pytest.mark.spec("ALLOC-5")
def test_a_profiler_from_an_image_sees_the_jobs_own_process(
    lab: Lab, alice: Person, tmp_path: Path
) -> None:
    profiler = shutil.which("py-spy", path=Path(sys.executable).parent)
    assert profiler is not None
    tmp_path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    shutil.copy(profiler, tmp_path / "bin")
    image = lab.layout.home / "alice" / "profiler.squashfs"
    subprocess.run(["mksquashfs", str(tmp_path), str(image), "-noappend", "-quiet"], check=True)
    image.chmod(0o644)
    work = "import time\ndef waits_for_data():\n    time.sleep(600)\nwaits_for_data()"
    mine = lab.sbatch("alice", "-w", "n2", "--mem=200", wrap=f"exec python3 -c '{work}'")
    lab.wait_job_state(mine, "RUNNING")
    look = "py-spy dump --pid $(pgrep -u alice -f waits_for_data | head -1)"
    tools = ("--tools-uenv", "/home/alice/profiler.squashfs")
    done = piped(alice, "attach", str(mine), *tools, "--", "sh", "-c", look)
    assert b"waits_for_data (<string>:3)" in done.stdout, done.stderr
    lab.jobs.cancel(mine)


@pytest.mark.spec("ALLOC-5")
@pytest.mark.threat("foreign-image")
def test_an_image_that_only_group_root_may_read_is_refused(
    lab: Lab, alice: Person, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "secret").write_text("not hers")
    image = lab.layout.home / "alice" / "roots.squashfs"
    subprocess.run(["mksquashfs", str(tmp_path), str(image), "-noappend", "-quiet"], check=True)
    os.chown(image, 0, 0)
    image.chmod(0o640)
    mine = lab.sbatch("alice", "-w", "n2", "--mem=100", wrap="sleep 600")
    lab.wait_job_state(mine, "RUNNING")
    tools = ("--tools-uenv", "/home/alice/roots.squashfs")
    done = piped(alice, "attach", str(mine), *tools, "--", "sh", "-c", "cat $LATTICE_TOOLS/secret")
    assert b"not hers" not in done.stdout
    assert b"alice can't open /home/alice/roots.squashfs: Permission denied" in done.stderr
    lab.jobs.cancel(mine)


@pytest.mark.spec("ALLOC-8", "ATTACH-1")
def test_a_session_of_two_nodes_has_a_terminal_on_both(lab: Lab, alice: Person) -> None:
    lab.jobs.cancel_all()
    with at(alice, "session", "--sbatch", "-N2", "--sbatch", "--mem=100", "-t", "10m") as shown:
        shown.until(PROMPT, 60)
        shown.type("echo job=$SLURM_JOB_ID nodes=$SLURM_JOB_NODELIST\n")
        number, nodes = shown.until(r"job=(\d+) nodes=n\[(\S+)\]\r\n").groups()
        for node in nodes.replace("-", ",").split(","):
            command = ("--node", f"n{node}", "--", "hostname")
            done = eventually(
                lambda command=command: piped(alice, "attach", number, *command),
                lambda done: done.returncode == 0,
            )
            assert done.stdout.strip() == f"n{node}".encode()
        shown.type("exit\n")
        assert shown.wait() == 0


@pytest.mark.story
@pytest.mark.spec("ALLOC-8")
def test_an_allocation_for_a_terminal(lab: Lab, alice: Person) -> None:
    with at(alice, "session", "--sbatch", "--mem=100", "-t", "10m") as shown:
        shown.until(PROMPT, 60)
        shown.type("echo job=$SLURM_JOB_ID\n")
        number = shown.until(r"job=(\d+)\r\n")[1]
        shown.type("exit\n")
        assert shown.wait() == 0
    assert lab.wait_job_state(number, {"CANCELLED", "COMPLETED"})
