"""Records what agents of an earlier release send, for tests that replay it to newer servers.

    python -m lab.record_wire n-1 tests/fixtures/wire

A lab runs with agents and helpers of that release. One of the agents runs with its gRPC calls
wrapped, so that each message is written as it leaves or arrives: its link, its questions, samples
and chunks, and what it answers on the streams that people's commands open. Lanes are off, so that
all of it is gRPC. Nothing in the recording is secret once the lab is gone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.earlier import Earlier, earlier
from lab.laboratory import Lab
from lab.lattice_upgrade import LatticeUpgrade
from lab.users import AGENT_USER

NODE = "n1"
LINES = 40
_JOB = f"""
i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i + 1)); sleep 0.1; done
while ! [ -e ~/recorded ]; do sleep 0.2; done
"""
_LARGEST = 64 * 1024
_WRAPPER = """#!{python}
import itertools, json, sys
from grpc.aio import _channel

tape, numbers = open({tape!r}, "a", buffering=1), itertools.count()

def noted(rpc, call, side, coder):
    def code(message):
        made = coder(message) if coder is not None else message
        sent = made if side == "agent" else message
        line = {{"rpc": rpc, "call": call, "from": side, "message": sent.hex()}}
        tape.write(json.dumps(line) + "\\n")
        return made
    return code

def wrapped(kind):
    make = getattr(_channel.Channel, kind)
    def wrap(self, method, request_serializer=None, response_deserializer=None, *more, **named):
        rpc = method.rpartition(".")[2]
        def call(*words, **options):
            number = next(numbers)
            sent = noted(rpc, number, "agent", request_serializer)
            got = noted(rpc, number, "server", response_deserializer)
            return make(self, method, sent, got, *more, **named)(*words, **options)
        return call
    return wrap

for each in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
    setattr(_channel.Channel, each, wrapped(each))
from lattice.agent.main import main
sys.exit(main())
"""


def record(release: Earlier, folder: Path) -> Path:
    """Run the lab, and write `folder/agent-VERSION.jsonl`."""
    settings = {"api": {"lanes": False}}
    with Lab("record", slurm="22.05", settings=settings) as lab:
        upgrade = LatticeUpgrade(lab, release)
        for node in lab.slurm.nodes:
            upgrade.node(node, back=True)
        tape = _wrapped_agent(lab, release)
        job = _use(lab)
        messages = [json.loads(line) for line in tape.read_text().splitlines()]
        lab.down(purge=True)
    file = folder / f"agent-{release.version}.jsonl"
    about = {"version": release.version, "commit": release.commit, "node": NODE, "job": job}
    kept = [each for each in messages if len(each["message"]) <= 2 * _LARGEST]
    file.write_text("".join(json.dumps(each) + "\n" for each in (about, *kept)))
    return file


def _wrapped_agent(lab: Lab, release: Earlier) -> Path:
    """Restart the agent with its calls wrapped; returns where they are written."""
    agent = lab.node(NODE).agent
    folder = lab.layout.state / "recorder"
    folder.mkdir()
    tape, program = folder / "tape", folder / "lattice-agent"
    tape.touch()
    lab.ctl(["chown", AGENT_USER, str(tape)])
    program.write_text(_WRAPPER.format(python=release.python, tape=str(tape)))
    program.chmod(0o755)
    agent.python = folder / "python"
    agent.process.restart()
    return tape


def _use(lab: Lab) -> int:
    """A job, and everything that asks its node something; returns its id."""
    token = str(lab.oidc.token("alice", "openid offline_access")["access_token"])
    env = {"LATTICE_TOKEN": token}

    def asks(*words: str, wanted: Callable[[str], bool] = bool) -> None:
        deadline = time.monotonic() + 60
        while True:
            done = lab.run_as("alice", ["lattice", *words], env=env)
            if wanted(done.stdout):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{words}: {done}")
            time.sleep(0.5)

    job = lab.sbatch("alice", "-w", NODE, wrap=_JOB)
    lab.wait_job_state(job, "RUNNING")
    name = str(job)
    asks("logs", name, wanted=lambda text: f"line {LINES - 1}\n" in text)
    asks("top", name, "--once")
    asks("diag", name)
    asks("diag", name, "--stacks")
    asks("telemetry", "--alloc", name, "--mode", "debug")
    watch = lab.popen_as("alice", ["lattice", "watch", name, "-o", "json"], env=env)
    time.sleep(8)
    watch.kill()
    watch.communicate()
    (lab.layout.home / "alice" / "recorded").touch()
    lab.wait_job_state(job, "COMPLETED")
    time.sleep(8)
    asks("logs", name, wanted=lambda text: f"line {LINES - 1}\n" in text)
    return job


def main() -> int:
    name, folder = sys.argv[1:]
    print(record(earlier(name), Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
