"""`lattice --local` as people run it, with Slurm's commands played by small programs."""

from __future__ import annotations

import gc
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lattice.cli.main import main
from tests.unit.local.fake_slurm import FakeSlurm

ME = pwd.getpwuid(os.geteuid()).pw_name
HOSTILE = "evil\x1b]0;owned\x07\x9b2J\u202egpj"


each_release = pytest.mark.parametrize("slurm", ["22.05", "26.05"], indirect=True)


@pytest.fixture
def slurm(request: pytest.FixtureRequest, tmp_path: Path) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin", getattr(request, "param", "26.05"))
    fake.edit("squeue", user_name=ME)
    fake.edit("sacct", user=ME)
    return fake


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The program in this process: its arguments to what it wrote and its exit code."""
    home = slurm.folder.parent
    for name in [each for each in os.environ if each.startswith(("LATTICE_", "XDG_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{slurm.folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LATTICE_API_URL", "https://unused.example")

    def run(*words: str) -> Done:
        code = main(words)
        return Done(code, *capsys.readouterr())

    yield run
    gc.enable()


@pytest.mark.spec("TRY-3")
@each_release
def test_status_lists_own_jobs(slurm: FakeSlurm, run: Run) -> None:
    done = run("--local", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = {each["id"]: each["state"] for each in answer["allocations"]}
    assert found["2"] == "running"
    assert {each["vcluster"] for each in answer["allocations"]} == {None}
    assert f"squeue --json -a -t all -u {ME}" in slurm.asked


@pytest.mark.spec("TRY-3")
def test_status_shows_one_job_and_what_is_not_known(slurm: FakeSlurm, run: Run) -> None:
    done = run("status", "2", "--local")
    assert done.returncode == 0, done.stderr
    assert "two" in done.stdout
    assert "nothing is known of a job's tenant and vCluster" in done.stderr
    assert run("status", "2", "--local", "-q").stderr == ""


@pytest.mark.spec("TRY-3")
@each_release
def test_history_comes_from_slurmdbd(slurm: FakeSlurm, run: Run) -> None:
    done = run("--local", "history", "--since", "2026-01-01", "-o", "json")
    assert done.returncode == 0, done.stderr
    (first,) = [each for each in json.loads(done.stdout)["allocations"] if each["id"] == "1"]
    assert (first["state"], first["exit_code"]) == ("completed", {"code": 0, "signal": 0})


@each_release
@pytest.mark.spec("AUTH-12")
def test_another_persons_job_is_not_there(slurm: FakeSlurm, run: Run) -> None:
    # 22.05 prints everybody's jobs, whatever it is asked for.
    slurm.edit("squeue", user_name="somebody")
    slurm.edit("sacct", user="somebody")
    there = [run("--local", verb, "2") for verb in ("status", "logs", "top")]
    absent = run("--local", "status", "77")
    assert [each.returncode for each in (*there, absent)] == [102] * 4
    assert {each.stderr.replace("77", "2") for each in (*there, absent)} == {there[0].stderr}
    listed = run("--local", "status", "--all", "-o", "json")
    assert json.loads(listed.stdout)["allocations"] == []
    assert "your own jobs alone" in listed.stderr


@pytest.mark.spec("TRY-3")
@pytest.mark.parametrize("words", [("attach", "2"), ("diag", "2"), ("nodes",), ("whoami",)])
def test_other_commands_need_a_server(run: Run, words: tuple[str, ...]) -> None:
    done = run("--local", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"`lattice {words[0]}` needs a Lattice server.\nHint: ")


@pytest.mark.spec("CLI-2")
def test_without_slurms_commands_it_is_a_sentence_and_a_hint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("--local", "status")
    assert done.returncode == 78
    assert done.stderr.splitlines()[0].startswith("Slurm's commands are not on this machine")
    assert done.stderr.splitlines()[1].startswith("Hint: ")


def test_commands_without_json_are_a_fault_of_the_installation(slurm: FakeSlurm, run: Run) -> None:
    slurm.fails("squeue", "squeue: fatal: Unable to find plugin: serializer/json")
    done = run("--local", "status")
    assert done.returncode == 78
    assert "serializer/json" in done.stderr


@pytest.mark.spec("TRY-3")
def test_without_slurmctld_the_past_is_shown(slurm: FakeSlurm, run: Run) -> None:
    slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    done = run("--local", "status")
    assert done.returncode == 0, done.stderr
    assert "slurmctld has not answered yet" in done.stderr
    assert run("--local", "status", "77").returncode == 75


def test_without_any_of_slurm_it_may_be_tried_again(slurm: FakeSlurm, run: Run) -> None:
    slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    slurm.fails("sacct", "sacct: error: Problem talking to the database")
    done = run("--local", "status")
    assert done.returncode == 75
    assert "Unable to contact slurm controller" in done.stderr


def test_names_are_inert(slurm: FakeSlurm, run: Run) -> None:
    """Attack 16."""
    slurm.edit("squeue", user_name=ME, name=HOSTILE, comment=HOSTILE, command=HOSTILE)
    for words in (["status"], ["status", "2"], ["status", "-o", "yaml"], ["history"]):
        done = run("--local", *words)
        assert done.returncode == 0, done.stderr
        for text in (done.stdout, done.stderr):
            assert all(each.isprintable() or each == "\n" for each in text), text


def test_the_configuration_may_say_it_and_a_named_server_is_nearer(
    slurm: FakeSlurm, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = slurm.folder.parent / ".config/lattice"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("local: true\n")
    monkeypatch.delenv("LATTICE_API_URL")
    assert run("status").returncode == 0
    done = run("status", "--api-url", "https://127.0.0.1:1")
    assert done.returncode == 75
    (folder / "config.yaml").write_text("local: perhaps\n")
    done = run("status")
    assert done.returncode == 78
    assert "local must be true or false" in done.stderr


@pytest.mark.spec("TRY-3")
def test_logs_come_from_the_file(slurm: FakeSlurm, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_bytes(b"one\ntwo \x1b]0;owned\x07\nthree\n")
    slurm.job_files(
        f"JobId=2 JobName=two\n   BatchHost=n1\n   StdErr={output}\n   StdOut={output}\n"
    )
    done = run("--local", "logs", "2")
    assert done.returncode == 0, done.stderr
    assert [line[:4] for line in done.stdout.splitlines()] == ["one", "two ", "thre"]
    assert "\x1b" not in done.stdout
    assert f"Read from {output}" in done.stderr
    assert run("--local", "logs", "2", "--tail", "1").stdout == "three\n"
    lines = run("--local", "logs", "2", "-o", "json", "--grep", "^t").stdout.splitlines()
    assert [json.loads(each)["seq"] for each in lines] == [1, 2]
    folder = tmp_path / "kept"
    assert run("--local", "logs", "2", "--download", str(folder)).returncode == 0
    assert (folder / "n1.batch.stdout.log").read_bytes() == output.read_bytes()
    later = time.time() + 3600
    os.utime(output, (later, later))
    done = run("--local", "logs", "2", "--since", "1s")
    assert done.returncode == 2
    assert "needs a server" in done.stderr


@pytest.mark.spec("TRY-3")
def test_top_measures_by_a_step_in_the_job(slurm: FakeSlurm, run: Run) -> None:
    slurm.edit("squeue", user_name=ME, nodes="n1", node_count=1)
    done = run("--local", "top", "2", "--once")
    assert done.returncode == 0, done.stderr
    assert "source: in_job_probe by a step in the job" in done.stdout
    assert "1/1 nodes" in done.stdout
    unmeasured = [line for line in done.stdout.splitlines() if line.startswith("—")]
    assert not any("network" in each for each in unmeasured)
    (srun,) = [each for each in slurm.asked if each.startswith("srun --jobid=2 --overlap")]
    assert "--nodelist=n1 " in srun


def test_top_says_why_nothing_was_measured(slurm: FakeSlurm, run: Run) -> None:
    slurm.fails("srun", "srun: error: Unable to create step for job 2: Job/step already completing")
    done = run("--local", "top", "2", "--once", "-o", "json")
    assert done.returncode == 76, done.stderr
    answer = json.loads(done.stdout)
    assert answer["origin"]["source"] == "unavailable"
    assert "already completing" in answer["origin"]["reason"]
    assert {cell["value"] for row in answer["rows"] for cell in row["cells"]} == {None}
    assert all(cell["reason"] for row in answer["rows"] for cell in row["cells"])


def test_nothing_of_it_is_loaded_with_a_server() -> None:
    code = (
        "import sys, lattice.cli.main, lattice.cli.run, lattice.cli.shell, "
        "lattice.features.allocations.command.status, lattice.features.top.command.top; "
        "print(*[name for name in sys.modules if name.startswith(('lattice.local', "
        "'lattice.adapters', 'lattice.access'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
