"""Asks Slurm about itself: slurmctld and slurmdbd by Slurm's commands, slurmrestd by its schema."""

from __future__ import annotations

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.scheduler import SlurmScheduler
from lattice.adapters.slurm.site import SlurmSite, settings
from lattice.base.errors import Unavailable
from lattice.features.doctor.service.facts import ControllerFacts, RightFacts, SchemaFacts


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
        site = SlurmSite(self._commands, self._reader)
        await site.read_rights()
        return RightFacts(hidden=site.hidden)
