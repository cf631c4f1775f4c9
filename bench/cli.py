"""What a short command costs, in starts of bare Python.

    python -m bench.cli               the server of LATTICE_API_URL, or else a stand-in of its own
    python -m bench.cli --lab NAME    as alice in a lab that is up, against its server

One JSON line a figure: `bare` is the median of `python -c pass`, and `ratio` is value to bare.
Rounds are interleaved, so that a busy moment of the machine falls on all. The code is compiled
first, as an installer does.

`lattice status` runs with a configuration that names the server's authority (`ca`), and with one
that does not. The second finds it where a system has authorities: OpenSSL's default bundle is that
of the machine, and a hashed folder has the same authorities and the server's.

The stand-in is another process that speaks TLS and gives a list of twenty allocations; what a real
server needs to make its answer comes on top.
"""

# Each part imports what it needs: the stand-in, the lab and the person are separate processes.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import compileall
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lattice
from bench.figures import Figure, against, load, measured

ROUNDS = 15
BARE, HELP, STATUS = "python -c pass", "lattice --help", "lattice status"
STATUS_WITHOUT_CA = "lattice status without ca"
GOALS = {HELP: 4.2, STATUS: 8.0, STATUS_WITHOUT_CA: 6.0}
_ROOT = Path(__file__).resolve().parents[1]
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """What is timed."""

    argv: Sequence[str]
    environment: Mapping[str, str]


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
    # What a person's environment does not hold, and what would recompile at each start.
    unusual = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH"}
    plain = {name: value for name, value in environment.items() if name not in unusual}
    lattice_program = str(Path(sys.executable).parent / "lattice")
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as folder:
        commands = {
            BARE: Command([sys.executable, "-c", "pass"], plain),
            HELP: Command([lattice_program, "--help"], plain),
            STATUS: Command([lattice_program, "status"], plain),
            STATUS_WITHOUT_CA: Command(
                [lattice_program, "status"], without_ca(plain, Path(folder))
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                spent_ms = _time_ms(command)
                if number:  # the first round warms the file cache
                    times[name].append(spent_ms)
    found = _figures(times)
    for each in found:
        each.print(
            rounds=rounds, server=server, authorities=len(_system_authorities()), load=load()
        )
    return 0 if all(each.ok is not False for each in found) else 1


def _time_ms(command: Command) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        command.argv,
        env=dict(command.environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    spent = time.perf_counter() - start
    if done.returncode:
        shown = " ".join(command.argv)
        raise SystemExit(f"{shown}: exit code {done.returncode}: {done.stderr.decode()}")
    return spent * 1000


def _figures(times: Mapping[str, list[float]]) -> list[Figure]:
    bare = times[BARE]
    judged = [against(name, "ms", times[name], bare, goal) for name, goal in GOALS.items()]
    return [measured(BARE, "ms", bare), *judged]


def without_ca(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The same person with a configuration without `ca`, on a system that trusts the server."""
    from lattice.client.settings import Settings

    settings = Settings.load(environment)
    config = folder / "config.yaml"
    config.write_text(f"api_url: {','.join(settings.urls)}\n")
    certificates = _system_authorities()
    if settings.ca:
        certificates += _CERTIFICATE.findall(Path(settings.ca).read_bytes())
    named = {"LATTICE_CONFIG": str(config), "SSL_CERT_DIR": str(trust_folder(folder, certificates))}
    others = {
        name: value
        for name, value in environment.items()
        if name not in {"LATTICE_CA", "SSL_CERT_FILE"}
    }
    return others | named


def trust_folder(folder: Path, certificates: Sequence[bytes]) -> Path:
    """A folder of authorities with the hashes by which OpenSSL finds one."""
    trusted = folder / "certs"
    trusted.mkdir()
    for number, certificate in enumerate(certificates):
        (trusted / f"{number:03}.pem").write_bytes(certificate)
    subprocess.run(["openssl", "rehash", str(trusted)], check=True, stderr=subprocess.DEVNULL)
    return trusted


def _system_authorities() -> list[bytes]:
    """Those of the machine's bundle; none if it has no bundle."""
    default = ssl.get_default_verify_paths().openssl_cafile
    for each in (default, *_BUNDLES):
        if Path(each).is_file():
            return _CERTIFICATE.findall(Path(each).read_bytes())
    return []


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
