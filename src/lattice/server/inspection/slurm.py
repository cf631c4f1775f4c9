"""Asks Slurm about itself: slurmctld and slurmdbd by Slurm's commands, slurmrestd by its schema."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from pathlib import Path

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.scheduler import SlurmScheduler
from lattice.adapters.slurm.site import SlurmSite, settings
from lattice.base.errors import Unavailable
from lattice.features.doctor.service.facts import ControllerFacts, RightFacts, SchemaFacts

_BECOMING = frozenset({"sudo", "su", "runuser", "doas", "pkexec"})
_NO_NEW_RIGHTS = "NoNewPrivs:"


def has_no_new_rights(status: Path = Path("/proc/self/status")) -> bool:
    """True if no program that this process starts gets more rights, not even by setuid."""
    try:
        lines = status.read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    found = next((each for each in lines if each.startswith(_NO_NEW_RIGHTS)), "")
    return found.removeprefix(_NO_NEW_RIGHTS).strip() == "1"


class SlurmInspection:
    """Every method raises `Unavailable`, with the text of Slurm's own command."""

    def __init__(
        self,
        scheduler: SlurmScheduler,
        commands: SlurmCommands,
        *,
        reader: str,
    ) -> None:
        """`reader` is the account by which Slurm is read."""
        self._scheduler = scheduler
        self._commands = commands
        self._reader = reader

    async def controller(self) -> ControllerFacts:
        found = settings(await self._commands.configuration())
        return ControllerFacts(
            release=found.get("SLURM_VERSION", ""), cluster=found.get("ClusterName", "")
        )

    async def accounting(self) -> str:
        found = settings(await self._commands.accounting_configuration())
        if "SLURMDBD_VERSION" not in found:
            # sacctmgr of newer releases prints its own settings then, and succeeds.
            raise Unavailable("sacctmgr reaches no slurmdbd")
        return found["SLURMDBD_VERSION"]

    async def schemas(self) -> SchemaFacts:
        dialects = self._scheduler.dialects
        live, past = await dialects.live(), await dialects.past()
        return SchemaFacts(
            live=live.version,
            live_read_as=live.schema.version,
            past=past.version,
            past_read_as=past.schema.version,
        )

    async def ahead_s(self) -> float | None:
        dialect = await self._scheduler.dialects.live()
        return await self._scheduler.controller_clock.ahead_s(dialect)

    async def rights(self) -> RightFacts:
        site, operator = SlurmSite(self._commands, self._reader), _own_user()
        _, may_operate = await asyncio.gather(site.read_rights(), self._may_operate(operator))
        program = self._commands.operate_prefix[0] if self._commands.operate_prefix else ""
        return RightFacts(
            hidden=site.hidden,
            operator=operator,
            may_operate=may_operate,
            operates_with=" ".join(self._commands.operate_prefix),
            program_found=not program or shutil.which(program) is not None,
            barred=Path(program).name in _BECOMING and has_no_new_rights(),
        )

    async def _may_operate(self, user: str) -> bool:
        if user == "root":
            return True
        here = settings(await self._commands.configuration())
        if here.get("SlurmUser", "").partition("(")[0] == user:
            return True
        return (await self._commands.admin_level(user)).strip().lower() == "administrator"


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
