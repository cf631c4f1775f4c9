"""`SlurmTenantAccounts`: the port `TenantAccounts`, by `sacctmgr`. Changes go to the gate.

A tenant's limits are those of its account's association: `GrpTRES` for nodes and GPUs, `GrpJobs`
for jobs. If nobody may change them here, the error shows the command to run by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.site import SlurmSite, settings
from lattice.base.errors import ConfigurationError
from lattice.domain.administration import Administration, TenantAct
from lattice.domain.tenants import AccountLimits, LimitChange, LimitReading, limit_options

_ENFORCING = frozenset({"limits", "safe", "all"})
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


class SlurmTenantAccounts:
    """Limits of one Slurm cluster's accounts."""

    def __init__(
        self, commands: SlurmCommands, site: SlurmSite, administration: Administration
    ) -> None:
        self._commands = commands
        self._site = site
        self._administration = administration

    async def limits(self) -> LimitReading:
        cluster = await self._site.read_name()
        text = await self._commands.account_limits(cluster)
        enforced = settings(await self._commands.configuration())
        kinds = enforced.get("AccountingStorageEnforce", "").lower().split(",")
        return LimitReading(parse_limits(text), not _ENFORCING.isdisjoint(kinds))

    async def create(self, name: str, change: LimitChange, *, by: str) -> None:
        await self._change(TenantAct.CREATE, name, change, by)

    async def update(self, name: str, change: LimitChange, *, by: str) -> None:
        await self._change(TenantAct.UPDATE, name, change, by)

    async def _change(self, act: TenantAct, name: str, change: LimitChange, by: str) -> None:
        try:
            await self._administration.change_tenant(act, name, change, by=by)
        except ConfigurationError as refusal:
            by_hand = command_by_hand(act, name, await self._site.read_name(), change)
            hint = f"{refusal.hint or ''} Or an administrator of Slurm runs: {by_hand}".strip()
            raise ConfigurationError(refusal.message, hint=hint) from None


def command_by_hand(act: TenantAct, name: str, cluster: str, change: LimitChange) -> str:
    """The command that does the same, for an administrator of Slurm."""
    limits = " ".join(limit_options(change))
    if act is TenantAct.CREATE:
        return f"sacctmgr -i add account {name} cluster={cluster} {limits}".rstrip()
    return f"sacctmgr -i modify account where name={name} cluster={cluster} set {limits}"


def parse_limits(text: str) -> Mapping[str, AccountLimits]:
    """Parses lines of `account|user|GrpTRES|GrpJobs`; skips users and malformed lines."""
    found: dict[str, AccountLimits] = {}
    for line in text.split("\n"):
        cells = line.split("|")
        if len(cells) != 4 or not cells[0] or cells[1]:
            continue
        resources = dict(each.partition("=")[::2] for each in cells[2].split(",") if "=" in each)
        found[cells[0]] = AccountLimits(
            max_nodes=_count(resources.get("node", "")),
            max_gpus=_count(resources.get("gres/gpu", "")),
            max_jobs=_count(cells[3]),
        )
    return found


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None
