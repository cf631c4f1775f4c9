"""The command `lattice-server setup`: looks, asks, writes, and names the next steps."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError
from lattice.server.setup.answers import OWN, Answers, add_flags, answers, ask_person
from lattice.server.setup.site_paths import SitePaths
from lattice.server.setup.site_writer import SiteWriter
from lattice.server.setup.slurm_facts import SiteFacts, find_slurm

_OLDEST, _NEWEST = (22, 5), (26, 5)


def setup(arguments: Sequence[str]) -> int:
    """Set this machine up as a server. Raises `ConfigurationError`."""
    options = _parser().parse_args(arguments)
    facts = asyncio.run(find_slurm(options.account))
    _print_rows(_facts(facts))
    _check(facts, options)
    if options.dry_run:
        return 0
    # Offered without unmunge, each sign-in would fail.
    options.no_munge = options.no_munge or facts.munge is None
    if facts.hidden and options.operator:
        _grant_operator(options.account)
    found = answers(options, _default if options.yes else ask_person)
    paths = SitePaths(found.state, root=options.root)
    writer = SiteWriter(found, facts, paths, SystemClock())
    sys.stdout.write("\n")
    _print_rows([(each.state, str(each.path)) for each in writer.write()])
    sys.stdout.write("\n" + _next_steps(found, facts, options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lattice-server setup",
        description="Finds Slurm on this machine and writes what a server needs. What is there "
        "already stays: running it twice changes nothing.",
    )
    add_flags(parser)
    add = parser.add_argument
    add("--operator", action="store_true", help="if Slurm hides jobs: give the account the right")
    add("--yes", action="store_true", help="ask nothing, take what was found")
    add("--dry-run", action="store_true", help="only show what is found")
    add("--root", type=Path, default=Path("/"), metavar="DIR", help="write below DIR: for images")
    return parser


def _facts(facts: SiteFacts) -> list[tuple[str, str]]:
    partitions = ", ".join(facts.partitions) or "none"
    past = "slurmdbd" if facts.has_accounting else "none: history is not kept after a job's end"
    return [
        ("Slurm", f"{facts.release}, cluster {facts.cluster or '—'}, partitions {partitions}"),
        ("accounting", past),
        ("rights", facts.hidden or "nothing is hidden from the server's account"),
        ("slurmrestd", str(facts.slurmrestd or "not found")),
        ("MUNGE", str(facts.munge or "not found")),
    ]


def _check(facts: SiteFacts, options: argparse.Namespace) -> None:
    number = tuple(int(each) for each in facts.release.split(".")[:2] if each.isdigit())
    if number and not _OLDEST <= number <= _NEWEST:
        sys.stderr.write(
            f"Slurm {facts.release} was not tested: Lattice knows 22.05 to 26.05. It reads the "
            "nearest version that it knows.\n"
        )
    needed = not options.slurmrestd or options.slurm_tokens == OWN
    if facts.slurmrestd is None and needed:
        raise ConfigurationError(
            "There is no slurmrestd on this machine.",
            hint="Install it (Debian: slurmrestd, RHEL: slurm-slurmrestd), or name one that runs "
            "by --slurmrestd, or --slurm-tokens.",
        )
    provided = options.oidc_issuer or options.slurm_tokens
    if facts.munge is None and not options.no_munge and not provided:
        raise ConfigurationError(
            "There is no unmunge on this machine, and no identity provider is named.",
            hint="Install munge, or give --oidc-issuer and --oidc-client-id, or --slurm-tokens.",
        )


def _grant_operator(account: str) -> None:
    argv = ["sacctmgr", "-i", "add", "user", account, "account=root", "adminlevel=operator"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"The right was not given: {(done.stderr or done.stdout).strip()[:200]}",
            hint="An administrator of Slurm runs: " + " ".join(argv),
        )
    _print_rows([("rights", f"{account} is an Operator in Slurm now")])


def _next_steps(found: Answers, facts: SiteFacts, options: argparse.Namespace) -> str:
    begin = (
        "" if found.is_single else "  sudo -u lattice lattice-server --bootstrap   # once a site\n"
    )
    login = "  lattice login"
    if found.slurm_tokens and not (found.munge or found.oidc_issuer):
        login += " --flow slurm"
    right = ""
    if facts.hidden and not options.operator:
        right = f"\nSlurm: {facts.hidden}\nor run this again with --operator.\n"
    return (
        "Next:\n"
        f"{begin}"
        "  systemctl enable --now lattice-server lattice-gate\n"
        f"{login:<47}# as {found.administrator}\n"
        "  lattice admin doctor\n"
        "  lattice admin enrol 'NODES' >join.key        # then the agent's package on each node\n"
        f"{right}"
        "\nPeople on other machines need /etc/lattice/config.yaml"
        + (" and the authority it names.\n" if found.tls_cert is None else ".\n")
    )


def _default(question: str, default: str) -> str:  # noqa: ARG001 - the port is `Ask`
    return default


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        sys.stdout.write(f"{name:<{width}}  {value}\n")
    sys.stdout.flush()
