"""How much later a key comes back in a recorded terminal than in an ordinary one.

    just bench attach-recorded [--rounds N]

A recorded terminal shows what the node's disk and the object store have. Both terminals are
`lattice attach` to jobs of one owner, in turn. The keys come as often as a keyboard repeats one.
Needs root; it brings up a lab of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.attach_terminals import echoes_ms
from bench.figures import Figure, load, measured
from lab.laboratory import Lab
from lab.screen import screen
from lab.sensitive import VCLUSTER, serve_sensitive_work
from lab.signed_image import signed_image
from tests.e2e.people import Person
from tests.eventually import eventually

ROUNDS, KEYS, KEY_EVERY_S = 7, 350, 0.033
GOAL_MS = 50.0
_NODE = "n1"
_PARTS = ("slurm", "oidc", "etcd", "seaweedfs", "server", "agents")
_ECHO = ("sh", "-c", "echo 'ready$ \\c'; exec cat >/dev/null")


def echo(person: Person, job: str) -> list[float]:
    """Milliseconds from each key to its echo."""
    argv = ["env", *_environment(person), "lattice", "attach", job, "--", *_ECHO]
    words, environment = person.lab.sessions.argv(person.name, argv)
    with screen(words, environment) as shown:
        shown.until(r"ready\$ ")
        time.sleep(0.5)
        found = echoes_ms(shown, KEYS, every_s=KEY_EVERY_S)
        shown.type("\n\x04")
        shown.wait()
    return found


def figures_of(recorded: Sequence[list[float]], ordinary: Sequence[list[float]]) -> list[Figure]:
    def more(of: int) -> list[float]:
        pairs = zip(recorded, ordinary, strict=True)
        return [_percentile(one, of) - _percentile(other, of) for one, other in pairs]

    return [
        measured("echo p50, added by a recording", "ms", more(50)),
        measured("echo p99, added by a recording", "ms", more(99), at_most=GOAL_MS),
        measured("echo p99, recorded", "ms", [_percentile(each, 99) for each in recorded]),
        measured("echo p99, not recorded", "ms", [_percentile(each, 99) for each in ordinary]),
    ]


def _percentile(values: Sequence[float], number: int) -> float:
    return statistics.quantiles(values, n=100)[number - 1]


def _environment(person: Person) -> Iterator[str]:
    return (f"{name}={value}" for name, value in person.bearer.items())


@contextmanager
def _jobs(alice: Person) -> Iterator[tuple[str, str]]:
    """A sensitive job, and one that is not."""
    lab = alice.lab
    assert alice.tries("admin", "claim", _NODE).code == 0
    words = ("submit", "--vcluster", VCLUSTER, "--sbatch=-c1", "--", "sleep", "3600")
    sensitive = alice.tries(*words).out.split()[-1]
    ordinary = str(lab.sbatch(alice.name, "-c1", "--nodelist=n2", wrap="sleep 3600"))
    for each in (sensitive, ordinary):
        lab.wait_job_state(int(each), "RUNNING")
    yield sensitive, ordinary
    lab.jobs.cancel_all()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.attach_recorded", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    rounds = parser.parse_args().rounds
    lab = Lab("recorded", parts=_PARTS, access_token_ttl_s=7200)
    try:
        lab.up()
        serve_sensitive_work(lab)
        alice = Person(lab, "alice").logged_in("sensitive:claim")
        with signed_image(lab, _NODE), _jobs(alice) as (sensitive, ordinary):
            # The first key of sensitive work starts the agent anew.
            eventually(lambda: alice.tries("attach", sensitive, "--", "true").code == 0)
            recorded, plain = list[list[float]](), list[list[float]]()
            for _ in range(rounds):
                recorded.append(echo(alice, sensitive))
                plain.append(echo(alice, ordinary))
                print(
                    f"p99: {_percentile(recorded[-1], 99):.1f} {_percentile(plain[-1], 99):.1f} ms",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        lab.down(purge=True)
    figures = figures_of(recorded, plain)
    for each in figures:
        each.print(rounds=rounds, load=load())
    return 0 if all(each.ok is not False for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
