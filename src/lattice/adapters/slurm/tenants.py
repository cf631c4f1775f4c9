"""`SlurmTenantAccounts`: the port `TenantAccounts` by `sacctmgr`, as the server's own user.

A tenant's limits are those of its account's association: `GrpTRES` for nodes and GPUs, `GrpJobs`
for jobs. Slurm lets root, SlurmUser, and users with the AdminLevel Operator or Administrator change
them. If it refuses, the error shows the command that the site has to run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.site import SlurmSite, settings
from lattice.base.errors import ConfigurationError
from lattice.domain.tenants import AccountLimits, LimitChange, LimitReading

_ENFORCING = frozenset({"limits", "safe", "all"})
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_REFUSED = re.compile(
    r"permission denied|not authorized|access/permission|privilege|^sudo: |"
    r"your user.*(?:uid|not).*(?:permission|allow)",
    re.IGNORECASE | re.MULTILINE,
)


class SlurmTenantAccounts:
    """Limits of one Slurm cluster's accounts."""

    def __init__(self, commands: SlurmCommands, site: SlurmSite) -> None:
        self._commands = commands
        self._site = site

    async def limits(self) -> LimitReading:
        cluster = await self._site.read_name()
        text = await self._commands.account_limits(cluster)
        enforced = settings(await self._commands.configuration())
        kinds = enforced.get("AccountingStorageEnforce", "").lower().split(",")
        return LimitReading(parse_limits(text), not _ENFORCING.isdisjoint(kinds))

    async def create(self, name: str, change: LimitChange) -> None:
        cluster = await self._site.read_name()
        await self._run("add", "account", name, f"cluster={cluster}", *limit_options(change))

    async def update(self, name: str, change: LimitChange) -> None:
        cluster = await self._site.read_name()
        where = ("where", f"name={name}", f"cluster={cluster}")
        await self._run("modify", "account", *where, "set", *limit_options(change))

    async def _run(self, *arguments: str) -> None:
        try:
            await self._commands.change_accounts(*arguments)
        except CommandFailed as failure:
            if _REFUSED.search(failure.output):
                raise _not_allowed(failure.output, arguments) from None
            raise


def limit_options(change: LimitChange) -> tuple[str, ...]:
    """The limits in sacctmgr's notation; -1 takes one away there too."""
    groups = (("node", change.max_nodes), ("gres/gpu", change.max_gpus))
    resources = ",".join(f"{name}={count}" for name, count in groups if count is not None)
    arguments = (f"grptres={resources}",) if resources else ()
    return arguments if change.max_jobs is None else (*arguments, f"grpjobs={change.max_jobs}")


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


def _not_allowed(output: str, arguments: tuple[str, ...]) -> ConfigurationError:
    excerpt = " ".join(output.split())
    return ConfigurationError(
        f"Slurm does not let this server change accounts: {excerpt}",
        hint=f"An administrator of Slurm can run: sacctmgr -i {' '.join(arguments)}; "
        "or set slurm.manage_with to a command that may.",
    )
