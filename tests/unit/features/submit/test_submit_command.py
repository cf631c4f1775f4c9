"""`lattice submit` and `lattice cancel`: from words to a call, from an answer to a line."""

from __future__ import annotations

import io
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lattice.base.call import IDEMPOTENCY_KEY
from lattice.base.errors import NotFound, PermissionRefused, UsageError
from lattice.base.fast_start import argv
from lattice.features.submit.command import CANCEL, SUBMIT, cancel, submit, wrapped
from tests.fakes import answers
from tests.fakes.shell import COMMON_OPTIONS, FakeShell, Told

ANSWER: dict[str, Told] = {"/v1/allocations": {"id": "12", "job_id": 12, "notes": ["a\nb"]}}


def run(*words: str, routes: dict[str, Told] | None = None, output: str = "table") -> FakeShell:
    shell = FakeShell(routes or ANSWER, output=output)
    values = argv.read(SUBMIT, words)
    assert values is not None, words
    assert submit(shell, **{k: v for k, v in values.items() if k not in COMMON_OPTIONS}) == 0
    return shell


def sent(shell: FakeShell) -> dict[str, Any]:
    body = shell.calls[0].body
    assert body is not None
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho ü\n")
    return tmp_path


@pytest.mark.spec("ALLOC-3")
def test_a_script_with_everything(here: Path) -> None:
    shell = run(
        "-N", "2", "-t", "2h", "-G", "8", "--vcluster", "v", "-A", "p", "-J", "n", "-a", "1-3",
        "-d", "5:success", "-d", "6:any", "--label", "a=b=c", "--output", "o.txt", "--env", "X=1",
        "--sbatch", "--exclusive", "--sbatch", "--mem 4G", "job.sh", "--epochs", "3", "--", "-o",
    )  # fmt: skip
    assert sent(shell) == {
        "script": "#!/bin/sh\necho ü\n", "file": "job.sh", "nodes": "2", "walltime": "2h",
        "gpus": "8", "vcluster": "v", "project": "p", "name": "n", "array": "1-3",
        "depends_on": ["5:success", "6:any"], "labels": {"a": "b=c"}, "output": "o.txt",
        "environment": {"X": "1"}, "options": ["--exclusive", "--mem", "4G"],
        "arguments": ["--epochs", "3", "--", "-o"], "directory": str(here),
    }  # fmt: skip
    assert shell.out == "Submitted allocation 12\n"
    assert shell.notes == ["a", "b"]
    assert shell.calls[0].repeatable is False


@pytest.mark.spec("ALLOC-3")
def test_a_command_keeps_each_of_its_words() -> None:
    shell = run("-N", "2", "--", "python", "a b.py", "$x", "'", "")
    told = sent(shell)
    assert told["script"].splitlines()[-1] == "python 'a b.py' '$x' ''\"'\"'' ''"
    assert (told["file"], "arguments" in told) == ("python", False)
    assert wrapped(["a"]).startswith("#!/bin/sh\n")


def test_a_script_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"#!/bin/sh\n")

    monkeypatch.setattr("sys.stdin", Stdin())
    shell = FakeShell(ANSWER)
    values = {each.name: None for each in SUBMIT.params} | dict.fromkeys(
        ("depends_on", "label", "env", "sbatch"), ()
    )
    assert submit(shell, **values | {"script": "-", "arguments": ("x",)}) == 0
    told = sent(shell)
    assert (told["script"], told["arguments"], "file" in told) == ("#!/bin/sh\n", ["x"], False)


@pytest.mark.spec("ALLOC-3")
def test_a_key_makes_the_call_repeatable() -> None:
    shell = run("--idempotency-key", "k", "job.sh")
    assert shell.calls[0].headers == ((IDEMPOTENCY_KEY, "k"),)
    assert shell.calls[0].repeatable


@pytest.mark.spec("CLI-1")
def test_json() -> None:
    assert json.loads(run("job.sh", output="json").out)["job_id"] == 12


def test_where_one_stands_is_told_as_one_says_it(here: Path) -> None:
    (here / "link").symlink_to(here)
    shell = FakeShell(ANSWER, environment={"PWD": str(here / "link")})
    values = argv.read(SUBMIT, ["-D", "/scratch", "job.sh"])
    assert values is not None
    own = {k: v for k, v in values.items() if k in {each.name for each in SUBMIT.params}}
    submit(shell, **own)
    assert (sent(shell)["directory"], sent(shell)["directory_required"]) == ("/scratch", True)
    shell.calls.clear()
    submit(shell, **own | {"chdir": None})
    assert sent(shell)["directory"] == str(here / "link")
    _gone(here).rmdir()
    shell.calls.clear()
    submit(shell, **own | {"chdir": None, "script": "--", "arguments": ("true",)})
    assert "directory" not in sent(shell)


def _gone(here: Path) -> Path:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    return gone


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "nothing to submit"),
        (["--"], "no command"),
        (["absent.sh"], "Can't read absent.sh"),
        (["."], "Can't read"),
        (["bytes"], "UTF-8"),
        (["large"], "larger"),
    ],
)
def test_what_can_not_be_sent(here: Path, words: list[str], match: str) -> None:
    (here / "bytes").write_bytes(b"\xff")
    with (here / "large").open("wb") as file:
        file.truncate(4 * 1024 * 1024 + 1)
    with pytest.raises(UsageError, match=match):
        run(*words)


@pytest.mark.parametrize("words", [["--label", "x", "job.sh"], ["--sbatch", "'", "job.sh"]])
def test_values_that_make_no_sense(words: list[str]) -> None:
    assert argv.read(SUBMIT, words) is None


@pytest.mark.spec("ALLOC-4")
def test_cancel_says_what_was_asked_of_slurm() -> None:
    routes: dict[str, Told] = {
        "/v1/allocations/1/cancel": {"id": "1", "cancelling": True, "state": "running"},
        "/v1/allocations/2_3/cancel": {"id": "2_3", "cancelling": False, "state": "failed"},
        "/v1/allocations/4/cancel": NotFound("No allocation 4 of yours."),
        "/v1/allocations/5/cancel": PermissionRefused("denied"),
    }
    shell = FakeShell(routes)
    assert cancel(shell, id=("1", "2_3")) == 0
    assert shell.out == "Cancelling allocation 1\nAllocation 2_3 had already ended: failed\n"
    shell = FakeShell(routes)
    assert cancel(shell, id=("4", "1", "5")) == 102
    assert shell.warnings == ["No allocation 4 of yours.", "denied"]
    assert shell.out == "Cancelling allocation 1\n"
    with pytest.raises(NotFound):
        cancel(FakeShell(routes), id=("4",))
    assert CANCEL.name == "cancel"


@pytest.mark.spec("ALLOC-4", "CLI-1")
def test_cancel_takes_the_names_that_status_takes() -> None:
    newest = answers.allocation(7, name="train")
    told = {"id": "7", "cancelling": True, "state": "running"}
    moment = int(datetime.fromisoformat(newest["first_submitted"]).timestamp())
    routes: dict[str, Told] = {
        "/v1/allocations": answers.listing(newest),
        f"/v1/allocations/7%40{moment}/cancel": told,
    }
    for word in ("@last", "train"):
        shell = FakeShell(routes)
        assert cancel(shell, id=(word,)) == 0
        assert shell.out == "Cancelling allocation 7\n"
    shell = FakeShell(routes)
    with pytest.raises(NotFound):
        cancel(shell, id=("@last", "--user=root"))
    assert [call.method for call in shell.calls] == ["GET", "GET"], "nothing was cancelled"


@pytest.mark.spec("ALLOC-3", "ALLOC-5")
def test_a_job_file_and_options_that_come_before_it(here: Path) -> None:
    (here / "jobs").mkdir()
    (here / "jobs" / "train.sh").write_text("#!/bin/sh\ntrain\n")
    (here / "jobs" / "job.yaml").write_text(
        "script: train.sh\narguments: [a]\nnodes: 2\ngpus: 8\nlabels: {run: 1, who: me}\n"
        "depends_on: [5]\nenv: {A: 1}\nsbatch: [--exclusive]\n"
        "environment: {uenv: gnu, view: default, tools_uenv: t}\n"
    )
    shell = run("--file", "jobs/job.yaml", "-N", "4", "--label", "run=2", "-d", "6", "--view", "v",
                "--sbatch", "--mem 4G")  # fmt: skip
    assert sent(shell) == {
        "script": "#!/bin/sh\ntrain\n", "file": str(Path("jobs/train.sh")), "arguments": ["a"],
        "nodes": "4", "gpus": "8", "labels": {"run": "2", "who": "me"}, "depends_on": ["5", "6"],
        "environment": {"A": "1"}, "options": ["--exclusive", "--mem", "4G"], "uenv": "gnu",
        "view": "v", "tools_uenv": "t", "directory": str(here),
    }  # fmt: skip


@pytest.mark.spec("ALLOC-3")
def test_a_command_in_a_job_file_is_for_a_shell(here: Path) -> None:
    (here / "job.yaml").write_text("command: |\n  cd $HOME\n  srun ./train\nchdir: /work\n")
    asked = sent(run("--file", "job.yaml"))
    assert asked["script"].splitlines()[::2] == ["#!/bin/sh", "cd $HOME"]
    assert asked["script"].endswith("\nsrun ./train\n")
    assert (asked["file"], asked["directory"], asked["directory_required"]) == (
        "job",
        "/work",
        True,
    )
    with pytest.raises(UsageError, match="names what to run"):
        run("--file", "job.yaml", "job.sh")
