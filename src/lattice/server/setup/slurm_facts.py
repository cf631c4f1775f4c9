"""What Slurm's own commands tell about the cluster, for a server that is to be set up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.site import SlurmSite, settings
from lattice.base.errors import ConfigurationError, Unavailable

_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
_OWN_FOLDERS = ("/opt/slurm/bin", "/opt/slurm/sbin", "/usr/local/slurm/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """A cluster as its commands describe it."""

    cluster: str
    release: str
    partitions: tuple[str, ...]
    has_accounting: bool
    authentication: str
    """`munge` or `slurm`."""
    hidden: str
    """What Slurm hides from the server's account, and the command that changes it; or empty."""
    slurmrestd: Path | None
    munge: Path | None
    """The program `unmunge`."""
    bin_dir: Path | None
    """The folder of Slurm's commands, if it is not one that services search."""
    config_file: Path | None
    """slurm.conf, if SLURM_CONF names one."""


async def find_slurm(account: str, commands: SlurmCommands | None = None) -> SiteFacts:
    """The facts, for a server that runs as `account`. Raises `ConfigurationError`."""
    scontrol = _program("scontrol")
    if scontrol is None:
        raise ConfigurationError(
            "There is no scontrol on this machine.",
            hint="Install Slurm's client commands and slurm.conf, as on a login node.",
        )
    bin_dir = None if str(scontrol.parent) in _FOLDERS else scontrol.parent
    named = os.environ.get("SLURM_CONF")
    config_file = Path(named) if named else None
    commands = commands or SlurmCommands(config_file, bin_dir=bin_dir)
    try:
        found = settings(await commands.configuration())
        partitions = tuple(_partitions(await commands.partitions_shown()))
    except Unavailable as error:
        raise ConfigurationError(
            f"slurmctld does not answer: {error.message}.",
            hint="`scontrol ping` must succeed here first.",
        ) from None
    has_accounting = "slurmdbd" in found.get("AccountingStorageType", "")
    return SiteFacts(
        cluster=found.get("ClusterName", ""),
        release=found.get("SLURM_VERSION", ""),
        partitions=partitions,
        has_accounting=has_accounting,
        authentication=found.get("AuthType", "").removeprefix("auth/"),
        hidden=await _hidden(commands, account) if has_accounting else "",
        slurmrestd=_program("slurmrestd"),
        munge=_program("unmunge"),
        bin_dir=bin_dir,
        config_file=config_file,
    )


async def _hidden(commands: SlurmCommands, account: str) -> str:
    site = SlurmSite(commands, account)
    try:
        await site.read_rights()
    except Unavailable as error:
        return f"slurmdbd does not answer: {error.message}"
    return site.hidden or ""


def _partitions(text: str) -> Iterable[str]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")[0].partition("=")
        if name == "PartitionName" and value:
            yield value


def _program(name: str) -> Path | None:
    folders = os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS, *_OWN_FOLDERS))
    found = shutil.which(name, path=folders)
    return Path(found) if found else None
