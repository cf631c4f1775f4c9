"""Records what Slurm leaves in the environment and the control group of processes of jobs.

    python -m lab record-environments FILE [--name LAB]

The jobs are those in which labels go wrong: tasks of an array, requeued jobs, ranks on several
nodes, components of a heterogeneous job, and jobs that were submitted from inside another one.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lab.laboratory import Lab

_PROBE = """#!/bin/sh
mkdir -p "$HOME/recorded"
file="$HOME/recorded/$1.$(hostname).$$"
env -0 | grep -z '^SLURM' | tr '\\0' '\\n' >"$file.environment"
grep slurm /proc/self/cgroup >"$file.cgroup"
touch "$file.done"
"""
_LEFT_OUT = ("SLURM_CONF", "SLURM_WORKING_CLUSTER", "SLURM_TOPOLOGY", "SLURM_LAUNCH", "SLURM_SRUN")
"""Paths and addresses of the machine that records."""
_INNER = "sbatch --mem=64 --time=5 --wrap"
_WITHIN_S = 60.0


def record_environments(lab: Lab, file: Path) -> int:
    """Make the jobs, and write what each process had; returns how many processes."""
    lab.run_as("alice", ["sh", "-c", "cat >probe; chmod +x probe"], input=_PROBE, check=True)

    def submit(name: str, *options: str, wrap: str) -> int:
        more = ("--mem=64", "--time=5", *options)
        return lab.sbatch("alice", f"--job-name={name}", *more, wrap=wrap)

    submit("plain", wrap="./probe plain; srun ./probe plain-step")
    two = "./probe nodes; srun ./probe nodes-step; srun --overlap -N1 -n1 ./probe nodes-one"
    submit("nodes", "-N2", "-n4", wrap=two)
    submit("array", "--array=3-5:2", wrap="./probe array; srun ./probe array-step")
    inner = f"{_INNER} './probe in-array; srun ./probe in-array-step'"
    submit("outer-array", "--array=7", wrap=inner)
    submit("outer-step", wrap=f"srun {_INNER} './probe in-step; srun ./probe in-step-step'")
    _submit_heterogeneous(lab)
    again = "test -n \"$SLURM_RESTART_COUNT\" && sbatch --mem=64 --wrap './probe in-requeued'"
    steps = "./probe run$SLURM_RESTART_COUNT; srun ./probe run-step$SLURM_RESTART_COUNT"
    requeued = submit("requeued", "--requeue", wrap=f"{steps}; {again}; sleep 60")
    lab.run_as("alice", ["salloc", "--mem=64", "-n2", "sh", "-c", "./probe salloc"])
    lab.run_as("alice", ["srun", "--mem=64", "-n2", "./probe", "srun"])
    _wait(lab, lambda names: any(each.startswith("run-step.") for each in names))
    lab.ctl(["scontrol", "requeue", str(requeued)])
    lab.start_requeued(requeued)
    names = _wait(lab, lambda names: any(each.startswith("in-requeued") for each in names))
    found: dict[str, list[Any]] = {}
    for name in names:
        found.setdefault(name.partition(".")[0], []).append(_read(lab, name))
    file.write_text(json.dumps(dict(sorted(found.items())), indent=1, sort_keys=True) + "\n")
    lab.jobs.cancel_all()
    return len(names)


def _submit_heterogeneous(lab: Lab) -> None:
    wrap = (
        "./probe het; srun --het-group=0,1 ./probe het-both; srun --het-group=1 ./probe het-one; "
        f"srun --het-group=1 -n1 {_INNER} './probe in-het'"
    )
    # On nodes of their own: which component a process is in can then be told by its node, too.
    first, second = ("--nodelist=n2", "-n1"), ("--nodelist=n1", "-n2")
    argv = ["sbatch", "--job-name=het", "--mem=64", *first, f"--wrap={wrap}"]
    lab.run_as("alice", [*argv, ":", "--mem=64", *second], check=True)


def _wait(lab: Lab, there: Any) -> list[str]:
    deadline = time.monotonic() + _WITHIN_S
    while True:
        names = lab.run_as("alice", ["ls", "recorded"]).stdout.split()
        done = sorted(each.removesuffix(".done") for each in names if each.endswith(".done"))
        if there(done) or time.monotonic() > deadline:
            return done
        time.sleep(0.5)


def _read(lab: Lab, name: str) -> dict[str, Any]:
    path = f"recorded/{name}"
    lines = lab.run_as("alice", ["cat", f"{path}.environment"], check=True).stdout.splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith(_LEFT_OUT))
    return {
        "cgroup": lab.run_as("alice", ["cat", f"{path}.cgroup"], check=True).stdout,
        "environment": {key: value for key, _, value in pairs if key.startswith("SLURM")},
    }
