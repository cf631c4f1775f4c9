"""What `lattice-server setup` has to know: every question has a flag, which goes first."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lattice.base.errors import ConfigurationError
from lattice.domain.administration import VerbGroup

Ask = Callable[[str, str], str]
"""Asks a question with a default, and returns the answer."""
_GROUPS = tuple(group.value for group in VerbGroup)
_USUAL = (VerbGroup.NODES.value, VerbGroup.TENANTS.value)
_NOTHING = "nothing"
OWN = "own"
"""For a slurmrestd that this machine runs for Lattice."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How this server is to be."""

    hosts: tuple[str, ...]
    """Names and addresses at which people and nodes reach it; the first is given to them."""
    administrator: str
    state: Path
    account: str
    """The Unix user of the server."""
    munge: bool
    slurm_tokens: str = ""
    """The slurmrestd that judges Slurm tokens: a URL, or `OWN`; empty: nobody signs in by one."""
    gate_allows: tuple[str, ...] = _USUAL
    """What administrators may change in Slurm through the gate."""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_audience: str = ""
    slurmrestd: str = ""
    """Of the site, as a URL; empty: one of its own."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    etcd: tuple[str, ...] = ()
    """Empty: one server with a database of its own."""
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    objects: str = ""
    objects_endpoint: str = ""
    objects_access_key_file: Path | None = None
    objects_secret_key_file: Path | None = None
    tsdb: str = ""
    tsdb_username: str = ""
    tsdb_password_file: Path | None = None

    @property
    def is_single(self) -> bool:
        return not self.etcd


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Every question as a flag."""
    add = parser.add_argument
    add("--host", action="append", default=[], help="where people and nodes reach this server")
    add("--administrator", metavar="USER", help="the Unix user who administers Lattice")
    add("--state", type=Path, default=Path("/var/lib/lattice"), metavar="DIR", help="state folder")
    add("--account", default="lattice", metavar="USER", help="the Unix user of the server")
    add(
        "--gate-allows",
        default=",".join(_USUAL),
        metavar="GROUPS",
        help="what administrators may change in Slurm through the gate, with commas: "
        f"{', '.join(_GROUPS)}; or {_NOTHING}",
    )
    add("--no-munge", action="store_true", help="nobody signs in by MUNGE")
    add(
        "--slurm-tokens",
        nargs="?",
        const=OWN,
        default="",
        metavar="URL",
        help="people sign in by Slurm tokens; URL: a slurmrestd with rest_auth/jwt that runs "
        "already",
    )
    for name, what in (
        ("issuer", "the identity provider"),
        ("client-id", "the client that people sign in as"),
        ("audience", "what tokens must be for"),
    ):
        add(f"--oidc-{name}", default="", help=what)
    add("--slurmrestd", default="", metavar="URL", help="a slurmrestd that runs already")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate chain; default: one is made")
    add("--tls-key", type=Path, metavar="FILE", help="its key")
    full = parser.add_argument_group("several servers, instead of one with a database of its own")
    full.add_argument("--etcd", action="append", default=[], metavar="URL", help="a member of etcd")
    for name in ("ca", "cert", "key"):
        full.add_argument(f"--etcd-{name}", type=Path, metavar="FILE", help="for etcd, PEM")
    full.add_argument("--objects", default="", metavar="URL", help="s3://BUCKET/PREFIX or a folder")
    full.add_argument("--objects-endpoint", default="", metavar="URL", help="of the object store")
    for name in ("access", "secret"):
        flag = f"--objects-{name}-key-file"
        full.add_argument(flag, type=Path, metavar="FILE", help=f"its {name} key")
    full.add_argument("--tsdb", default="", metavar="URL", help="the metric store")
    full.add_argument("--tsdb-username", default="", metavar="NAME", help="for the metric store")
    full.add_argument("--tsdb-password-file", type=Path, metavar="FILE", help="its password")


def answers(options: argparse.Namespace, ask: Ask) -> Answers:
    """The flags, and questions for what they leave out. Raises `ConfigurationError`."""
    hosts = tuple(options.host) or (ask("Where do people and nodes reach this server?", _host()),)
    administrator = options.administrator or ask("Who administers Lattice?", _person())
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ConfigurationError(f"{host[:80]!r} is no host name.", hint="Give it by --host.")
    if not _USER.fullmatch(administrator):
        raise ConfigurationError(
            f"{administrator[:80]!r} is no Unix user name.", hint="Give it by --administrator."
        )
    if bool(options.oidc_issuer) != bool(options.oidc_client_id):
        raise ConfigurationError("--oidc-issuer and --oidc-client-id go together.")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key go together.")
    if options.etcd and not options.objects:
        raise ConfigurationError(
            "Several servers need an object store that all of them reach.",
            hint="Name it with --objects.",
        )
    groups = () if options.gate_allows == _NOTHING else tuple(options.gate_allows.split(","))
    if not set(groups) <= set(_GROUPS):
        raise ConfigurationError(
            f"{options.gate_allows[:80]!r} is nothing that the gate could be allowed.",
            hint=f"--gate-allows has {', '.join(_GROUPS)} with commas between, or {_NOTHING}.",
        )
    names = [each for each in Answers.__dataclass_fields__ if hasattr(options, each)]
    plain = {each: getattr(options, each) for each in names}
    return Answers(
        **plain
        | {"hosts": hosts, "administrator": administrator, "munge": not options.no_munge}
        | {"etcd": tuple(options.etcd), "gate_allows": groups}
    )


def ask_person(question: str, default: str) -> str:
    """Ask on the terminal; the default without one."""
    if not sys.stdin.isatty():
        return default
    sys.stderr.write(f"{question} [{default}] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or default


def _host() -> str:
    full = socket.getfqdn()
    # A resolver without an answer gives "localhost…" for a machine that has a name.
    return socket.gethostname() if full.startswith("localhost") else full


def _person() -> str:
    return os.environ.get("SUDO_USER") or "root"
