"""The accounts of the lab: who exists on the machine, and who stands where in Slurm.

Accounts are made on the host, once and with fixed ids, but without a home there: each lab has
its own `home` folder, mounted on /home inside its namespaces only.

    physics (tenant)                biology (tenant)
      research: alice                 genomics: bob, erin, carol
      theory:   dave; coordinator carol
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.command import run
from lab.files import give

SERVER_USER = "lattice"
"""Runs lattice-server and slurmrestd: rest_auth/local trusts only a client of its own uid."""

AGENT_USER = "lattice-agent"
"""Runs lattice-agent on the nodes, and nothing else."""

ENGINE_USER = "lattice-lab"
"""Runs the engines that bring no account of their own."""

_GROUP = ("proj", 3100)


@dataclass(frozen=True, slots=True)
class Person:
    """Someone with a Unix account in the lab."""

    name: str
    uid: int
    account: str
    """The Slurm account of her default association."""
    coordinates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A top-level Slurm account and the projects below it."""

    name: str
    projects: tuple[str, ...]


TENANTS = (Tenant("physics", ("research", "theory")), Tenant("biology", ("genomics",)))

PEOPLE = (
    Person("alice", 3001, "research"),
    Person("bob", 3002, "genomics"),
    Person("carol", 3003, "genomics", coordinates=("theory",)),
    Person("dave", 3004, "theory"),
    Person("erin", 3005, "genomics"),
)


def ensure_accounts() -> None:
    """Create on the host what is missing; changes nothing that exists."""
    with _alone_on_the_host():
        _add_missing_accounts()


@contextmanager
def _alone_on_the_host() -> Iterator[None]:
    """Two labs may start at once, and the second must see the accounts that the first adds."""
    folder = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _add_missing_accounts() -> None:
    group, gid = _GROUP
    if group not in {entry.gr_name for entry in grp.getgrall()}:
        run(["groupadd", "-g", str(gid), group])
    known = {entry.pw_name for entry in pwd.getpwall()}
    for person in PEOPLE:
        if person.name not in known:
            options = ["-M", "-U", "-u", str(person.uid), "-s", "/bin/bash", "-G", group]
            run(["useradd", *options, person.name])
    for system_user in (SERVER_USER, AGENT_USER, ENGINE_USER):
        if system_user not in known:
            run(["useradd", "-r", "-M", "-U", "-s", "/usr/sbin/nologin", system_user])


def make_homes(folder: Path) -> None:
    """A home for each person, and one for the server's account, in the lab's own folder."""
    for name in (*(person.name for person in PEOPLE), SERVER_USER):
        home = folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        give(home, name)


def accounting() -> list[list[str]]:
    """The sacctmgr lines that load all of this, in batches.

    Each batch is one sacctmgr process: it reads the QOS and account lists once at its start, and
    answers "You gave a bad qos" for one that an earlier line of the same process has added.
    """
    first = [
        "add cluster lab",
        "add qos low gracetime=5",
        "add qos high preempt=low,normal priority=1000",
        f"add account {','.join(tenant.name for tenant in TENANTS)}",
    ]
    for tenant in TENANTS:
        below = f"parent={tenant.name} organization={tenant.name}"
        first.append(f"add account {','.join(tenant.projects)} {below}")
    second = []
    for account in sorted({person.account for person in PEOPLE}):
        names = ",".join(person.name for person in PEOPLE if person.account == account)
        second.append(f"add user {names} account={account} qos=normal,low,high defaultqos=normal")
    # Below the root account, so that the server's own account is in no tenant.
    second.append(f"add user {SERVER_USER} account=root adminlevel=operator")
    second += [
        f"add coordinator accounts={account} names={person.name}"
        for person in PEOPLE
        for account in person.coordinates
    ]
    return [first, second]
