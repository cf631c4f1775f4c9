"""What a short command costs, in starts of bare Python.

    python -m bench.cli               the server of LATTICE_API_URL, or else a stand-in of its own
    python -m bench.cli --lab NAME    as alice in a lab that is up, against its server

One JSON line a figure. `value` is the median, `low` and `high` hold the middle half of the rounds;
`bare` is the median of `python -c pass`, and `ratio` is value to bare. Rounds are interleaved, so
that a busy moment of the machine falls on all. The code is compiled first, as an installer does.

The stand-in is another process that speaks TLS and gives a list of twenty allocations; what a real
server needs to make its answer comes on top.
"""

# Each part imports what it needs: the stand-in, the lab and the person are separate processes.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import compileall
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lattice

ROUNDS = 15
GOALS = {"lattice --help": 4.2, "lattice status": 8.0}
_ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.cli", description=__doc__)
    parser.add_argument("--lab", metavar="NAME", help="run as alice in this lab")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    asked = parser.parse_args()
    compileall.compile_dir(Path(lattice.__file__).parent, quiet=2)
    if asked.lab:
        return _in_lab(asked.lab, asked.rounds)
    if "LATTICE_API_URL" in os.environ:
        return _report(os.environ, max(asked.rounds, 7), "configured")
    with stand_in() as environment:
        return _report(environment, max(asked.rounds, 7), "stand-in")


def _report(environment: Mapping[str, str], rounds: int, server: str) -> int:
    programs = Path(sys.executable).parent
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "lattice --help": [str(programs / "lattice"), "--help"],
        "lattice status": [str(programs / "lattice"), "status"],
    }
    # What a person's environment does not hold, and what would recompile at each start.
    unusual = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH"}
    plain = {name: value for name, value in environment.items() if name not in unusual}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            spent_ms = _time_ms(argv, plain)
            if number:  # the first round warms the file cache
                times[name].append(spent_ms)
    return _print(times, rounds, server)


def _time_ms(argv: list[str], environment: Mapping[str, str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        argv, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    spent = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.decode()}")
    return spent * 1000


def _print(times: Mapping[str, list[float]], rounds: int, server: str) -> int:
    bare = statistics.median(times["python -c pass"])
    good = True
    for name, spent in times.items():
        low, value, high = statistics.quantiles(spent, n=4)
        figure: dict[str, object] = {"name": name, "value": round(value, 1), "unit": "ms"}
        figure |= {"low": round(low, 1), "high": round(high, 1), "rounds": rounds}
        if name in GOALS:
            ratio = value / bare
            met = ratio <= GOALS[name]
            good = good and met
            figure |= {"bare": round(bare, 1), "ratio": round(ratio, 2), "goal": GOALS[name]}
            figure |= {"ok": met}
        if name == "lattice status":
            figure["server"] = server
        print(json.dumps(figure), flush=True)
    return 0 if good else 1


@contextmanager
def stand_in() -> Iterator[dict[str, str]]:
    """A server of our own, and the environment of a person who is logged in to it."""
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as folder:
        argv = [sys.executable, "-c", "from bench.cli import serve; serve()", folder]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, cwd=_ROOT, stdin=pipe, stdout=pipe) as made:
            assert made.stdout is not None
            url = made.stdout.readline().decode().strip()
            yield _logged_in(Path(folder), url)
            assert made.stdin is not None
            made.stdin.close()


def _logged_in(home: Path, url: str) -> dict[str, str]:
    from lattice.client.credential import Credential
    from lattice.client.credentials import CredentialFolder

    config = home / ".config/lattice"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text(f"api_url: {url}\nca: {home}/ca.pem\n")
    end = time.time() + 3600
    credential = Credential("token", expires_at=end, issuer="https://idp", client_id="lattice")
    CredentialFolder(str(config / "credentials"), url).save(credential, "refresh")
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def serve() -> None:
    """The stand-in's own process: serves until its standard input ends."""
    import trustme

    from tests.fakes import answers
    from tests.fakes.web import web

    authority = trustme.CA()
    authority.cert_pem.write_to_path(f"{sys.argv[1]}/ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    listing = answers.listing(*(answers.allocation(number) for number in range(1, 21)))
    with web({"/v1/allocations": listing}, context=context) as running:
        print(running.url, flush=True)
        sys.stdin.read()


def _in_lab(name: str, rounds: int) -> int:
    from lab.laboratory import Lab

    lab = Lab.attach(name)
    lab.log_in("alice")
    argv = [sys.executable, "-m", "bench.cli", "--rounds", str(rounds)]
    done = lab.run_as("alice", argv, env={"PYTHONPATH": str(_ROOT)}, timeout_s=300)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
