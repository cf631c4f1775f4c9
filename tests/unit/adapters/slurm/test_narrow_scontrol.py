"""The command that a site puts between the server and `scontrol`: the state of nodes, no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "infra/slurm/lattice-scontrol"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The same, with an `scontrol` that only prints its words."""
    fake = tmp_path / "scontrol"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    made = tmp_path / "lattice-scontrol"
    made.write_text(SCRIPT.read_text().replace("/usr/bin/scontrol", str(fake)))
    for each in (fake, made):
        each.chmod(0o755)
    return made


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("state", ["drain", "down", "resume"])
def test_the_state_of_nodes_can_be_set(script: Path, state: str) -> None:
    words = ["update", "nodename=n[1-3],gpu-7.x", f"state={state}"]
    assert run(script, "scontrol", *words).stdout.splitlines() == words
    told = run(script, "scontrol", *words, "reason=a disk; $(id) weight=5")
    assert told.stdout.splitlines() == [*words, "reason=a disk; $(id) weight=5"]


@pytest.mark.threat("slurm-account")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["scontrol", "shutdown"],
        ["scontrol", "update", "jobid=7", "priority=0"],
        ["scontrol", "update", "nodename=n1", "weight=5"],
        ["scontrol", "update", "nodename=n1", "state=power_down"],
        ["scontrol", "update", "nodename=n1", "state=drain", "weight=5"],
        ["scontrol", "update", "nodename=n1", "state=drain", "reason=x", "weight=5"],
        ["scontrol", "update", "nodename=", "state=drain"],
        ["scontrol", "update", "nodename=n1 jobid=7", "state=drain"],
        ["scontrol", "create", "nodename=n1", "state=drain"],
        ["sh", "update", "nodename=n1", "state=drain"],
    ],
    ids=" ".join,
)
def test_nothing_else_can_be_done(script: Path, words: list[str]) -> None:
    done = run(script, *words)
    assert (done.returncode, done.stdout) == (77, "")
    assert "permission denied" in done.stderr
