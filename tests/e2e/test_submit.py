"""People submit and cancel through the server, and Slurm does what it would have done anyway."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.uenv_plugin import uenv_plugin
from lattice.domain.labels import read_comment
from tests.e2e.at_terminal import piped
from tests.e2e.people import Person, Said
from tests.eventually import eventually

pytestmark = pytest.mark.lab

TELL = """\
#!/bin/bash
{head}id -un; pwd; umask; ulimit -n; echo "args:$*"
env -0 | sort -z | tr '\\0' '\\n'
"""


def write(lab: Lab, user: str, name: str, text: str, mode: int = 0o755) -> None:
    """A file in someone's home, hers."""
    file = lab.layout.home / user / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    lab.ctl(["chown", "-R", f"{user}:", f"/home/{user}/{name.split('/', maxsplit=1)[0]}"])


def submitted(said: Said) -> int:
    assert said.code == 0, said
    found = re.fullmatch(r"Submitted allocation ([0-9]+)\n", said.out)
    assert found, said
    return int(found[1])


def facts(lab: Lab, job: int) -> dict[str, str]:
    """What Slurm itself knows of a job."""
    return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", lab.jobs.show(job).strip()))


def output(lab: Lab, user: str, name: str) -> list[str]:
    """The lines of a file in someone's home; none before there is one."""
    file = lab.layout.home / user / name
    return file.read_text().splitlines() if file.exists() else []


@contextmanager
def profile(lab: Lab, user: str, text: str) -> Iterator[None]:
    write(lab, user, ".profile", text, 0o644)
    try:
        yield
    finally:
        (lab.layout.home / user / ".profile").unlink()


@pytest.mark.story
@pytest.mark.spec("ALLOC-3")
def test_a_script_is_what_slurm_would_have_made_of_it(quiet_lab: Lab, alice: Person) -> None:
    lab = quiet_lab
    head = "#SBATCH -N2 -J named --gres=gpu:1 -t 5\n#SBATCH --output=%x-%j.txt\n"
    write(lab, "alice", "work/job.sh", TELL.format(head=head))
    with profile(lab, "alice", "export FROM_PROFILE='yes, it does'\numask 027\n"):
        clean = "env -i HOME=/home/alice USER=alice LOGNAME=alice SHELL=/bin/bash LANG=C.UTF-8 "
        conf = f"SLURM_CONF={lab.layout.slurm_conf}"
        direct = lab.run_as(
            "alice",
            ["sh", "-c", f"cd work && {clean}{conf} bash -l -c 'sbatch --parsable job.sh'"],
            check=True,
        )
        one = int(direct.stdout)
        said = lab.run_as("alice", ["sh", "-c", "cd work && lattice submit job.sh"],
                          env=alice.bearer)  # fmt: skip
        two = submitted(Said(said.returncode, said.stdout, said.stderr))
    for job in (one, two):
        lab.wait_job_state(job, "COMPLETED")
    same = ("JobName", "UserId", "GroupId", "Account", "QOS", "NumNodes", "NumTasks", "TRES",
            "TresPerNode", "Partition", "WorkDir", "TimeLimit")  # fmt: skip
    mine, slurms = facts(lab, two), facts(lab, one)
    assert {each: mine.get(each) for each in same} == {each: slurms.get(each) for each in same}
    assert (mine["JobName"], mine["NumNodes"]) == ("named", "2")
    assert mine["UserId"] == "alice(3001)"
    assert mine["WorkDir"] == "/home/alice/work"

    told = [output(lab, "alice", f"work/named-{job}.txt") for job in (one, two)]
    first, second = ([line for line in lines if not _differs(line)] for lines in told)
    assert second == first
    assert second[:3] == ["alice", "/home/alice/work", "0027"]
    assert "FROM_PROFILE=yes, it does" in second


def _differs(line: str) -> bool:
    # Ids, moments, and what only the way to the submitting shell decides.
    return line.startswith(("SLURM", "SHLVL=", "_=", "OLDPWD=", "LATTICE_LAB=", "PATH="))


_JOB_FILE = """\
command: |
  tool-of-the-view
  echo "$(cat /user-tools/name)"
  sleep 600
name: in-images
output: images.txt
environment:
  uenv: /home/alice/app.squashfs
  view: default
  tools_uenv: /home/alice/tools.squashfs
"""


@pytest.mark.story
@pytest.mark.spec("ALLOC-5", "ALLOC-3")
def test_a_job_runs_in_the_images_that_its_file_names(
    quiet_lab: Lab, alice: Person, tmp_path: Path
) -> None:
    lab = quiet_lab
    write(lab, "alice", "job.yaml", _JOB_FILE)
    none = alice.tries("submit", "--file", "job.yaml")
    assert none.code == 2, none
    assert "unrecognized option '--uenv=" in none.err
    assert "has no plugin that takes this option" in none.err

    programs = tmp_path / "app" / "env" / "default" / "bin"
    programs.mkdir(parents=True)
    (programs / "tool-of-the-view").write_text("#!/bin/sh\necho from the view\n")
    (programs / "tool-of-the-view").chmod(0o755)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "name").write_text("the tools\n")
    for name in ("app", "tools"):
        image = lab.layout.home / "alice" / f"{name}.squashfs"
        packed = ["mksquashfs", str(tmp_path / name), str(image), "-noappend", "-quiet"]
        subprocess.run(packed, check=True)
        image.chmod(0o644)
    with uenv_plugin(lab):
        refused = alice.tries("submit", "--uenv", "/home/alice/none.squashfs", "--", "true")
        assert "uenv: /home/alice/none.squashfs can't be read: No such file" in refused.err
        job = submitted(alice.tries("submit", "--file", "job.yaml"))
        lab.wait_job_state(job, "RUNNING")
        written = eventually(
            lambda: output(lab, "alice", "images.txt"), lambda lines: len(lines) == 2
        )
        assert written == ["from the view", "the tools"]
        assert facts(lab, job)["JobName"] == "in-images"
        look = "tool-of-the-view; grep squashfs /proc/self/mountinfo"
        seen = piped(alice, "attach", str(job), "--", "sh", "-c", look)
        text = seen.stdout.decode()
        assert text.splitlines()[0] == "from the view", seen
        assert text.count("ro,nosuid,nodev") == 2
        assert " /user-environment " in text
        assert alice.tries("cancel", str(job)).code == 0
        lab.wait_job_state(job, "CANCELLED")
    on_node = lab.slurm.nodes["n1"].run(["cat", "/proc/self/mountinfo"]).stdout
    assert "squashfs" not in on_node


@pytest.mark.spec("ALLOC-3")
def test_options_arguments_and_commands(quiet_lab: Lab, alice: Person) -> None:
    lab = quiet_lab
    write(lab, "alice", "plain.sh", TELL.format(head=""))
    job = submitted(alice.tries(
        "submit", "-N", "2", "-t", "90m", "--gpus", "2", "--vcluster", "interactive",
        "--project", "research", "--output", "out.txt", "--label", "run=7", "--label", "who=me",
        "--env", "GREETING=hello world", "--sbatch", "--nice=5", "--sbatch=--mem=100M",
        "plain.sh", "one", "two three", "--epochs", "$HOME",
    ))  # fmt: skip
    lab.wait_job_state(job, "COMPLETED")
    seen = facts(lab, job)
    assert (seen["JobName"], seen["NumNodes"], seen["Partition"]) == (
        "plain.sh",
        "2",
        "interactive",
    )
    assert (seen["TimeLimit"], seen["Account"], seen["Nice"]) == ("01:30:00", "research", "5")
    assert "gres/gpu=2" in seen["TRES"]
    assert read_comment(seen["Comment"]).labels == {"run": "7", "who": "me"}
    told = output(lab, "alice", "out.txt")
    assert "args:one two three --epochs $HOME" in told
    assert "GREETING=hello world" in told

    job = submitted(alice.tries("submit", "-J", "said", "--", "printf", "%s|", "a b", "$x", "'"))
    lab.wait_job_state(job, "COMPLETED")
    assert output(lab, "alice", f"slurm-{job}.out") == ["a b|$x|'|"]
    assert facts(lab, job)["JobName"] == "said"
    job = submitted(alice.tries("submit", "--", "/bin/true"))
    assert facts(lab, job)["JobName"] == "true"


@pytest.mark.spec("ALLOC-3")
def test_arrays_dependencies_and_standard_input(quiet_lab: Lab, alice: Person) -> None:
    lab = quiet_lab
    array = submitted(alice.tries("submit", "--array", "1-3", "--", "sleep", "30"))
    assert len(lab.jobs.states(array)) >= 1
    after = submitted(
        alice.tries("submit", "-d", f"{array}:success", "-d", f"{array}:any", "--", "true")
    )
    assert facts(lab, after)["Dependency"].startswith(f"afterok:{array}_*")
    never = submitted(alice.tries("submit", "-d", f"{array}:failure", "--", "true"))
    assert "afternotok" in facts(lab, never)["Dependency"]
    said = lab.run_as(
        "alice", ["lattice", "submit", "-J", "piped", "-"], env=alice.bearer,
        input="#!/bin/sh\n#SBATCH --hold\ntrue\n",
    )  # fmt: skip
    job = submitted(Said(said.returncode, said.stdout, said.stderr))
    assert facts(lab, job)["Reason"] == "JobHeldUser"


@pytest.mark.spec("ALLOC-3")
def test_slurms_own_refusal_comes_back_whole(alice: Person) -> None:
    said = alice.tries("submit", "--sbatch", "--partition=nowhere", "--", "true")
    assert said.code == 2
    assert "sbatch: error: invalid partition specified: nowhere" in said.err
    assert "Invalid partition name specified" in said.err
    assert said.out == ""


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("words", "code", "err"),
    [
        (("submit",), 2, "nothing to submit"),
        (("submit", "--"), 2, "no command"),
        (("submit", "absent.sh"), 2, "Can't read absent.sh"),
        (("submit", "--env", "LD_PRELOAD=/tmp/x.so", "--", "true"), 2, "LD_PRELOAD"),
        (("submit", "--env", "SBATCH_PARTITION=x", "--", "true"), 2, "SBATCH_PARTITION"),
        (("submit", "--env", "PATH=/tmp", "--", "true"), 2, "PATH"),
        (("submit", "--env", "BASH_FUNC_x%%=() { true; }", "--", "true"), 2, "no name"),
        (("submit", "-D", "/root-only", "--", "true"), 2, "can't be entered"),
        (("submit", "-D", "../x", "--", "true"), 2, "absolute"),
        (("submit", "--vcluster", "moon", "--", "true"), 2, "There is no vCluster"),
        (("submit", "--sbatch", "--wait", "--", "true"), 2, "lattice wait"),
        (("submit", "--sbatch", "/etc/passwd", "--", "true"), 2, "no option of sbatch"),
        (("submit", "--label", "a=b", "--sbatch", "--comment=c", "--", "true"), 2, "comment"),
        (("submit", "-d", "x:success", "--", "true"), 2, "not an allocation id"),
    ],
)
def test_what_can_not_be_submitted_is_said(
    lab: Lab, alice: Person, words: tuple[str, ...], code: int, err: str
) -> None:
    lab.ctl(["sh", "-c", "mkdir -p -m 700 /home/root-only"])
    said = alice.tries(*(each.replace("/root-only", "/home/root-only") for each in words))
    assert (said.code, said.out) == (code, "")
    assert err in said.err


@pytest.mark.spec("ALLOC-3")
def test_a_hostile_name_is_only_a_name(quiet_lab: Lab, alice: Person) -> None:
    name = "-J$(touch pwned)`id`\n;.sh"
    write(quiet_lab, "alice", name, TELL.format(head=""))
    job = submitted(alice.tries("submit", "./" + name, "$(touch pwned)", "; touch pwned"))
    quiet_lab.wait_job_state(job, "COMPLETED")
    assert not (quiet_lab.layout.home / "alice" / "pwned").exists()
    assert re.fullmatch(r"[A-Za-z0-9._+-]+", facts(quiet_lab, job)["JobName"])


@pytest.mark.spec("ALLOC-3")
def test_a_noisy_profile_neither_spoils_nor_forges_the_id(quiet_lab: Lab, alice: Person) -> None:
    noise = (
        "echo 999999; echo 'Submitted batch job 1' >&2; cat; yes | head -c 99999; sleep 61.5 &\n"
    )
    with profile(quiet_lab, "alice", noise):
        job = submitted(alice.tries("submit", "--", "true"))
    assert job != 999999
    assert facts(quiet_lab, job)["UserId"] == "alice(3001)"
    # What the profile left in the background is gone with it.
    left = quiet_lab.ctl(["pgrep", "-u", "alice", "-f", "^sleep 61.5"], check=False)
    assert left.stdout == ""


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("profile-gate")
def test_a_profile_that_hangs_or_leaves_is_ended_and_named(lab: Lab, alice: Person) -> None:
    with profile(lab, "alice", "exit 3\n"):
        said = alice.tries("submit", "--", "true")
        assert said.code == 2
        assert "exit code 3" in said.err
    with profile(lab, "alice", "sleep 601.5\n"):
        said = alice.tries("submit", "--", "true")
    assert said.code == 75
    assert "did not end within" in said.err
    left = lab.ctl(["pgrep", "-u", "alice", "-f", "^sleep 601.5"], check=False)
    assert left.stdout == ""


@pytest.mark.story
@pytest.mark.spec("LIMIT-4", "ALLOC-3", "ALLOC-4")
@pytest.mark.threat("profile-gate")
def test_a_slow_profile_holds_up_nobody_else_and_no_cancelling(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    hers = submitted(alice.tries("submit", "--sbatch", "--hold", "--", "true"))
    with (
        profile(quiet_lab, "alice", "touch ~/slow-begun; sleep 25.5\n"),
        ThreadPoolExecutor(10) as pool,
    ):
        slow = [pool.submit(alice.tries, "submit", "--", "true") for _ in range(10)]
        eventually((quiet_lab.layout.home / "alice" / "slow-begun").exists)
        his = submitted(bob.tries("submit", "--sbatch", "--hold", "--", "true"))
        assert bob.tries("cancel", str(his)).code == 0
        # Her own profile is not read for it: it would be asleep.
        assert alice.tries("cancel", str(hers)).code == 0
        assert sum(not each.done() for each in slow) >= 2, "the slow ones are still under way"
        ended = [each.result() for each in slow]
    assert {each.code for each in ended} <= {0, 75}
    # Two ran until the gate's own limit; the others had no place.
    texts = [each.err for each in ended if each.code == 75]
    others = [each for each in texts if "for this user" not in each]
    assert [each for each in others if "did not end within" not in each] == []
    assert len(others) <= 2


@pytest.mark.spec("TOP-4")
@pytest.mark.threat("profile-loopback")
def test_a_profile_gets_nothing_from_the_metric_store(quiet_lab: Lab, alice: Person) -> None:
    url = f"{quiet_lab.victoriametrics.endpoint}/api/v1/query?query=up"
    ask = f"curl -s -o /dev/null -w '%{{http_code}}' '{url}' > ~/store-said\n"
    with profile(quiet_lab, "alice", ask):
        submitted(alice.tries("submit", "--", "true"))
    assert output(quiet_lab, "alice", "store-said") == ["401"]


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("profile-gate")
def test_a_bundle_of_short_options_hides_no_refused_one(quiet_lab: Lab, alice: Person) -> None:
    for option in ("-W", "-HW", "-QHW"):
        said = alice.tries("submit", f"--sbatch={option}", "--", "true")
        assert said.code == 2
        assert "can't be passed on to sbatch" in said.err


def test_a_directory_that_is_not_there_means_home_with_a_word(
    quiet_lab: Lab, alice: Person
) -> None:
    said = quiet_lab.run_as(
        "alice",
        ["sh", "-c", "mkdir -p gone && cd gone && rmdir ../gone && lattice submit -- true"],
        env=alice.bearer,
    )
    job = submitted(Said(said.returncode, said.stdout, said.stderr))
    assert "can't be entered" in said.stderr or facts(quiet_lab, job)["WorkDir"] == "/home/alice"


@pytest.mark.spec("ALLOC-3")
def test_the_same_key_never_submits_twice(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    lab = quiet_lab
    again = ("submit", "--idempotency-key", "night-7", "--label", "n=7", "--", "sleep", "50")
    one = submitted(alice.tries(*again))
    second = alice.tries(*again)
    assert submitted(second) == one
    assert "before" in second.err
    other = alice.tries("submit", "--idempotency-key", "night-7", "--", "sleep", "51")
    assert (other.code, other.out) == (2, "")
    assert "something else" in other.err
    # The key is the caller's own.
    assert submitted(bob.tries(*again)) != one
    marks = read_comment(facts(lab, one)["Comment"])
    assert marks.labels == {"n": "7"}
    assert len(marks.key) == 32


@pytest.mark.spec("ALLOC-3")
def test_two_racing_calls_with_one_key_make_one_allocation(quiet_lab: Lab, alice: Person) -> None:
    words = ["lattice", "submit", "--idempotency-key", "race-1", "-J", "race", "--", "sleep", "50"]
    racing = [quiet_lab.popen_as("alice", words, env=alice.bearer) for _ in range(6)]
    said = []
    for each in racing:
        out, err = each.communicate(timeout=60)
        said.append(Said(each.returncode, out, err))
    assert len({submitted(each) for each in said}) == 1
    names = quiet_lab.ctl(["squeue", "-h", "-a", "-o", "%j"]).stdout.split()
    assert names.count("race") == 1


@pytest.mark.story
@pytest.mark.spec("ALLOC-4", "AUTH-12")
def test_cancel_ones_own_and_nobody_elses(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    lab = quiet_lab
    mine = submitted(alice.tries("submit", "--", "sleep", "300"))
    his = submitted(bob.tries("submit", "--", "sleep", "300"))
    refused, absent = alice.tries("cancel", str(his)), alice.tries("cancel", "7777777")
    assert (refused.code, absent.code) == (102, 102)
    assert refused.err.replace(str(his), "ID") == absent.err.replace("7777777", "ID")
    both = alice.tries("cancel", str(his), str(mine))
    assert both.code == 102
    assert both.out == f"Cancelling allocation {mine}\n", both
    lab.wait_job_state(mine, "CANCELLED")
    assert lab.jobs.states(his) != ["CANCELLED"]
    ended = f"Allocation {mine} had already ended: cancelled\n"
    eventually(lambda: alice.tries("cancel", str(mine)).out, lambda said: said == ended)
    assert alice.tries("wait", str(mine), "--exit-status").code == 103


def _state_of(person: Person, allocation: str) -> str:
    said = person.lattice("status", allocation, "-o", "json", env=person.bearer)
    return str(said.json["allocation"]["state"]) if said.code == 0 else ""


@pytest.mark.spec("ALLOC-4", "AUTH-4")
def test_a_coordinator_cancels_where_slurm_lets_her(
    quiet_lab: Lab, carol: Person, bob: Person
) -> None:
    lab = quiet_lab
    dave = Person(lab, "dave").logged_in()
    theory = submitted(dave.tries("submit", "--array", "1-2", "--", "sleep", "300"))
    # Slurm forgets at once a task that is cancelled before it ran.
    lab.wait_job_state(theory, "RUNNING")
    assert carol.tries("cancel", f"{theory}_1").code == 0
    eventually(lambda: _state_of(dave, f"{theory}_1"), lambda seen: seen == "cancelled")
    assert carol.tries("cancel", str(theory)).code == 0
    eventually(lambda: _state_of(dave, f"{theory}_2"), lambda seen: seen == "cancelled")
    # What a role of Lattice lets one name, Slurm may still refuse: carol coordinates no genomics.
    his = submitted(bob.tries("submit", "--", "sleep", "300"))
    said = carol.tries("cancel", str(his))
    assert said.code == 77
    assert "Access/permission denied" in said.err
    said = Person(lab, "bob").lattice(
        "cancel",
        str(his),
        env={"LATTICE_TOKEN": lab.oidc.token("olga", "openid admin")["access_token"]},
    )
    assert said.code == 77
    assert "There is no account olga" in said.err


@pytest.mark.spec("ALLOC-3", "AUTH-9")
@pytest.mark.threat("slurm-account", "gate")
def test_the_server_is_nobody_special_and_the_gate_keeps_little(lab: Lab) -> None:
    server = _status(lab.servers[0].process.pid)
    assert 0 not in server["Uid"]
    assert [int(each, 16) for each in server["CapPrm"] + server["CapEff"]] == [0, 0]
    gate = _status(lab.gate.process.pid)
    # setgid, setuid and kill; and no program it starts can gain any.
    assert [int(each, 16) for each in gate["CapPrm"]] == [0b1110_0000]
    assert [int(gate[each][0], 16) for each in ("CapBnd", "CapInh", "CapAmb")] == [0, 0, 0]
    descriptors = sorted(Path(f"/proc/{lab.gate.process.pid}/fd").iterdir())
    assert len(descriptors) <= 5
    socket = lab.gate.socket.stat()
    assert (socket.st_uid, socket.st_mode & 0o777) == (0, 0o660)


def _status(pid: int) -> dict[str, list]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found: dict[str, list] = {line.partition(":")[0]: line.split()[1:] for line in lines}
    found["Uid"] = [int(each) for each in found["Uid"]]
    return found


@pytest.mark.threat("server")
def test_the_log_tells_who_did_what_and_no_more(lab: Lab, alice: Person) -> None:
    write(lab, "alice", "secret.sh", "#!/bin/sh\n# hunter2-in-the-script\ntrue\n")
    job = submitted(
        alice.tries("submit", "--env", "TOKEN=hunter2-variable", "secret.sh", "hunter2-argument")
    )
    log = lab.gate.process.log_file.read_text()
    assert "hunter2" not in log
    (line,) = [each for each in log.splitlines() if f'"job": "{job}"' in each]
    assert '"user": "alice"' in line
    assert '"outcome": "done"' in line


@pytest.mark.spec("ALLOC-1", "ALLOC-3", "ALLOC-4")
def test_what_one_just_did_is_seen_by_the_next_command(quiet_lab: Lab, alice: Person) -> None:
    """No `eventually` here: whoever submits or cancels looks at once, and must not be told no."""
    for _ in range(3):
        job = submitted(alice.tries("submit", "--", "sleep", "60"))
        assert str(job) in alice.sees("status")
        assert alice.tries("cancel", str(job)).code == 0
        (row,) = [each for each in alice.asks("status")["allocations"] if each["id"] == str(job)]
        assert row["state"] in {"cancelled", "completing"}
