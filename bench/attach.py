"""A terminal in a job: how soon its prompt is there, and how soon a key comes back.

    just bench attach [--rounds N] [--only start,echo] [--lab NAME]

Real are Slurm, the job, the helper, agent, server and `lattice attach` in a terminal. Beside it, in
the same rounds: ssh to the node, `srun --overlap --pty`, and for keys a bare relay of the same
shape. One JSON line a figure; a ratio is the median of the rounds' own. Needs root and a lab.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.attach_bare import TLS_PORT
from bench.attach_terminals import echoes_ms
from bench.figures import Figure, load, measured, paired
from bench.logs_live import laboratory
from bench.logs_live_jobs import NODE, OWNER, Bench, Job
from bench.logs_live_peers import Ssh, end_peers, until_listening
from lab.certificates import SERVER_NAMES, Authority
from lab.laboratory import Lab
from lab.screen import Screen, screen

ROUNDS = 7
KEYS = 800
SSH_START_GOAL, SRUN_START_GOAL, ECHO_GOAL = 0.35, 2.0, 1.1
SLEEPER = "import time\ntime.sleep(3600)\n"
_PROMPT, _READY = r"[$#] $", r"ready\$ "
_CHECKOUT = Path(__file__).parents[1]


def start(bench: Bench, rounds: int) -> list[Figure]:
    """Seconds from the command to the prompt of a login shell."""
    took: dict[str, list[float]] = {"ours": [], "ssh": [], "srun": []}
    with bench.job(SLEEPER) as job, Ssh(bench).serving() as ssh:
        ways = {"ours": _ours(bench, job), "ssh": _ssh(ssh), "srun": _srun(job)}
        for number in range(rounds + 1):
            for name, argv in ways.items():
                with _on_screen(bench, argv) as shown:
                    shown.until(_PROMPT)
                    seconds = time.perf_counter() - shown.begun
                    _leave(shown, "exit\n")
                if number:  # the first of each warms what can be warm
                    took[name].append(seconds * 1000)
            _note("start", took)
    return [
        paired("start to prompt, ssh", "ms", took["ours"], took["ssh"], at_most=SSH_START_GOAL),
        paired(
            "start to prompt, srun --overlap --pty",
            "ms",
            took["ours"],
            took["srun"],
            at_most=SRUN_START_GOAL,
        ),
    ]


def echo(bench: Bench, rounds: int) -> list[Figure]:
    """Milliseconds until a key is shown, one typed every 4 ms."""
    middle: dict[str, list[float]] = {"ours": [], "bare": [], "ssh": []}
    late: dict[str, list[float]] = {"ours": [], "bare": [], "ssh": []}
    cat = ("sh", "-c", "echo 'ready$ \\c'; exec cat >/dev/null")
    with bench.job(SLEEPER) as job, Ssh(bench).serving() as ssh:
        ways: dict[str, Sequence[str]] = {
            "ours": [*_ours(bench, job), "--", *cat],
            "ssh": [*_ssh(ssh), "printf 'ready$ '; exec cat >/dev/null"],
        }
        for _ in range(rounds):
            for name, argv in ways.items():
                with _on_screen(bench, argv) as shown:
                    shown.until(_READY)
                    _take(shown, middle[name], late[name])
                    _leave(shown, "\n\x04")
            with _bare(bench) as shown:
                shown.until(_READY)
                _take(shown, middle["bare"], late["bare"])
            _note("echo p50", middle)
            _note("echo p99", late)
    return [
        paired("echo p50, bare relay", "ms", middle["ours"], middle["bare"], at_most=ECHO_GOAL),
        paired("echo p99, bare relay", "ms", late["ours"], late["bare"], at_most=1.5),
        paired("echo p50, ssh", "ms", middle["ours"], middle["ssh"]),
        measured("echo p99", "ms", late["ours"], at_most=5.0),
    ]


def _leave(shown: Screen, keys: str) -> None:
    """In order, so that its place is free for the next."""
    shown.type(keys)
    shown.wait()


def _take(shown: Screen, middle: list[float], late: list[float]) -> None:
    time.sleep(0.5)
    found = echoes_ms(shown, KEYS)
    middle.append(statistics.median(found))
    late.append(statistics.quantiles(found, n=100)[98])


def _ours(bench: Bench, job: Job) -> list[str]:
    return ["env", f"LATTICE_TOKEN={bench.token}", "lattice", "attach", str(job.id), "--node", NODE]


def _ssh(ssh: Ssh) -> list[str]:
    return ssh.argv("-tt")


def _srun(job: Job) -> list[str]:
    return ["srun", f"--jobid={job.id}", "--overlap", "--pty", "bash", "-l"]


@contextmanager
def _on_screen(bench: Bench, argv: Sequence[str]) -> Iterator[Screen]:
    words, environment = bench.lab.sessions.argv(OWNER, argv)
    with screen(words, environment) as shown:
        yield shown


@contextmanager
def _bare(bench: Bench) -> Iterator[Screen]:
    folder = bench.lab.layout.certificates
    Authority.load(folder).issue("bare", "bare", names=SERVER_NAMES, owner="root")
    room = bench.lab.control.room
    begin = [sys.executable, "-m", "bench.attach_bare"]
    path = {"PYTHONPATH": str(_CHECKOUT)}
    environment: Mapping[str, str] = {**room.environment, **path}
    started = [room.popen([*begin, "relay", str(folder)], env=path, stderr=None)]
    try:
        until_listening(bench, TLS_PORT)
        on_node = bench.lab.node(NODE).argv([*begin, "node", str(folder)])
        started.append(
            subprocess.Popen(on_node, env=environment, stdout=subprocess.DEVNULL, text=True)
        )
        time.sleep(1.5)
        with screen(room.argv([*begin, "client", str(folder)]), environment) as shown:
            yield shown
    finally:
        end_peers(bench, started, "bench.attach_bare")


def _note(what: str, values: Mapping[str, list[float]]) -> None:
    last = {name: round(each[-1], 2) for name, each in values.items() if each}
    print(f"{what}: {last}", file=sys.stderr, flush=True)


def measure(lab: Lab, rounds: int, sections: Sequence[str]) -> list[Figure]:
    """Each figure is printed when it is known."""
    bench, found = Bench(lab), []
    for name in sections:
        bench.sign_in()
        for figure in {"start": start, "echo": echo}[name](bench, rounds):
            figure.print(rounds=rounds, load=load())
            found.append(figure)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.attach", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--only", default="start,echo")
    parser.add_argument("--lab", help="one that is up, of a server and agents")
    asked = parser.parse_args()
    with laboratory(asked.lab) as lab:
        found = measure(lab, asked.rounds, asked.only.split(","))
    return 0 if all(each.ok is not False for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
