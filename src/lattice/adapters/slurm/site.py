"""What Slurm says of itself: the cluster's name, and what it hides from the server's account.

Read with Slurm's own commands: no list tells that `PrivateData` left records out of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.base.errors import Unavailable

_PRIVILEGED_LEVELS = frozenset({"operator", "administrator"})
_LINE = re.compile(r"(\w+) *= ?(.*)")
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_OF_SLURMCTLD = {"jobs": "jobs", "nodes": "nodes", "partitions": "partitions"}
_OF_SLURMDBD = {"jobs": "past jobs", "users": "accounts", "accounts": "accounts"}


class SlurmSite:
    """The cluster's name, read once, and the missing right of the account `reader`."""

    def __init__(self, commands: SlurmCommands, reader: str) -> None:
        self.cluster = ""
        """Slurm's ClusterName; empty until it was read."""
        self.hidden: str | None = None
        """What Slurm hides from the account, and what to do; None if nothing."""
        self._commands = commands
        self._reader = reader
        self._reading = asyncio.Lock()

    async def read_name(self) -> str:
        """The name, read from slurmctld the first time. Raises `Unavailable`."""
        async with self._reading:
            if not self.cluster:
                name = settings(await self._commands.configuration()).get("ClusterName", "")
                if not _NAME.fullmatch(name):
                    raise Unavailable("scontrol show config names no ClusterName")
                self.cluster = name
        return self.cluster

    async def read_rights(self) -> None:
        """Read what Slurm hides. Raises `Unavailable`."""
        here = settings(await self._commands.configuration())
        past = settings(await self._commands.accounting_configuration())
        kinds = [
            *_hidden(here.get("PrivateData", ""), _OF_SLURMCTLD),
            *_hidden(past.get("PrivateData", ""), _OF_SLURMDBD),
        ]
        if not kinds or await self._is_privileged(here.get("SlurmUser", "")):
            self.hidden = None
            return
        self.hidden = (
            f"Slurm hides {_listed(kinds)} of others from its account {self._reader} "
            "(PrivateData). An administrator of Slurm runs: "
            f"sacctmgr modify user {self._reader} set adminlevel=operator"
        )

    async def hides_jobs(self) -> bool:
        """Whether slurmctld hides jobs from the account. Raises `Unavailable`."""
        here = settings(await self._commands.configuration())
        if not any(_hidden(here.get("PrivateData", ""), {"jobs": "jobs"})):
            return False
        return not await self._is_privileged(here.get("SlurmUser", ""))

    async def _is_privileged(self, slurm_user: str) -> bool:
        if self._reader in {"root", slurm_user.partition("(")[0]}:
            return True
        level = await self._commands.admin_level(self._reader)
        return level.strip().lower() in _PRIVILEGED_LEVELS


def settings(text: str) -> Mapping[str, str]:
    """Parses lines of `Name = value`; skips others. The last value of a name counts."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {line[1]: line[2].strip() for line in found if line}


def _hidden(private_data: str, kinds: Mapping[str, str]) -> Iterable[str]:
    return dict.fromkeys(kinds[each] for each in private_data.lower().split(",") if each in kinds)


def _listed(kinds: list[str]) -> str:
    *others, last = kinds
    return f"{', '.join(others)} and {last}" if others else last
