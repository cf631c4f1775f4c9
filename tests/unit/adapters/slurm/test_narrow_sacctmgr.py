"""The command that a site puts between the server and `sacctmgr`: accounts and limits, no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lattice.adapters.slurm.tenants import limit_options
from lattice.domain.tenants import LimitChange

SCRIPT = Path(__file__).parents[4] / "infra/slurm/lattice-sacctmgr"
ADD = ("sacctmgr", "-i", "add", "account")
MODIFY = ("sacctmgr", "-i", "modify", "account")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The same, with an `sacctmgr` that only prints its words."""
    fake = tmp_path / "sacctmgr"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    made = tmp_path / "lattice-sacctmgr"
    made.write_text(SCRIPT.read_text().replace("/usr/bin/sacctmgr", str(fake)))
    for each in (fake, made):
        each.chmod(0o755)
    return made


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "change",
    [
        LimitChange(max_nodes=0),
        LimitChange(max_gpus=-1),
        LimitChange(max_jobs=10_000_000),
        LimitChange(max_nodes=3, max_gpus=12, max_jobs=-1),
    ],
)
def test_accounts_and_their_limits_can_be_set(script: Path, change: LimitChange) -> None:
    limits = limit_options(change)
    for words in (
        (*ADD, "bio-2_x.y", "cluster=lab", *limits),
        (*MODIFY, "where", "name=physics", "cluster=lab.1", "set", *limits),
    ):
        assert run(script, *words).stdout.splitlines() == list(words[1:])


def test_an_account_without_limits_can_be_made(script: Path) -> None:
    words = (*ADD, "physics", "cluster=lab")
    assert run(script, *words).stdout.splitlines() == list(words[1:])


@pytest.mark.threat("slurm-account")
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("sacctmgr",),
        ("sacctmgr", "-i", "delete", "account", "name=physics"),
        ("sacctmgr", "-i", "add", "user", "mallory", "account=physics"),
        ("sacctmgr", "-i", "add", "coordinator", "account=physics", "names=mallory"),
        ("sacctmgr", "-i", "modify", "user", "where", "name=mallory", "cluster=lab", "set",
         "adminlevel=administrator"),
        ("sacctmgr", "-i", "load", "file=/tmp/all"),
        ("sacctmgr", "-i", "archive", "dump"),
        ("sacctmgr", "-i", "shutdown"),
        ("sh", "-i", "add", "account", "physics", "cluster=lab"),
        ("sacctmgr", "-Q", "add", "account", "physics", "cluster=lab"),
        (*ADD, "physics"),
        (*ADD, "root", "cluster=lab"),
        (*ADD, "", "cluster=lab"),
        (*ADD, "-physics", "cluster=lab"),
        (*ADD, "physics,chemistry", "cluster=lab"),
        (*ADD, "a b", "cluster=lab"),
        (*ADD, "a\nb", "cluster=lab"),
        (*ADD, "Physics", "cluster=lab"),
        (*ADD, "name=physics", "cluster=lab"),
        (*ADD, "x" * 65, "cluster=lab"),
        (*ADD, "physics", "cluster="),
        (*ADD, "physics", "cluster=lab,other"),
        (*ADD, "physics", "cluster=lab parent=chemistry"),
        (*ADD, "physics", "parent=chemistry"),
        (*ADD, "physics", "cluster=lab", "parent=chemistry"),
        (*ADD, "physics", "cluster=lab", "users=mallory"),
        (*ADD, "physics", "cluster=lab", "fairshare=1000"),
        (*ADD, "physics", "cluster=lab", "grptres=cpu=1"),
        (*ADD, "physics", "cluster=lab", "grptres=node="),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,cpu=5"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,gres/gpu=2,node=9"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,cpu=0,gres/gpu=2"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,2,gres/gpu=2"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,gres/gpu=1,gres/gpu=2"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1,7\ngres/gpu=2,gres/gpu=2"),
        (*ADD, "physics", "cluster=lab", "grptres=node=-2"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1;id"),
        (*ADD, "physics", "cluster=lab", "grptres=node=$(id)"),
        (*ADD, "physics", "cluster=lab", "grpjobs=123456789"),
        (*ADD, "physics", "cluster=lab", "grptres=node=1", "grpjobs=1", "grpjobs=2"),
        (*MODIFY, "where", "name=root", "cluster=lab", "set", "grpjobs=1"),
        (*MODIFY, "where", "name=physics", "cluster=lab", "set"),
        (*MODIFY, "where", "name=physics", "cluster=lab", "grpjobs=1"),
        (*MODIFY, "where", "name=", "cluster=lab", "set", "grpjobs=1"),
        (*MODIFY, "where", "parent=physics", "cluster=lab", "set", "grpjobs=1"),
        (*MODIFY, "where", "name=physics", "cluster=lab", "set", "parent=chemistry"),
        (*MODIFY, "where", "name=physics", "cluster=lab", "set", "qos=high"),
        (*MODIFY, "set", "grpjobs=1", "where", "name=physics", "cluster=lab"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_else_can_be_done(script: Path, words: tuple[str, ...]) -> None:
    done = run(script, *words)
    assert (done.returncode, done.stdout) == (77, "")
    assert "permission denied" in done.stderr


@pytest.mark.threat("slurm-account")
def test_a_locale_with_other_letters_changes_nothing(script: Path) -> None:
    done = subprocess.run(
        [script, *ADD, "ä", "cluster=lab"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 77
