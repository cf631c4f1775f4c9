"""Tenants, coordinators and members from slurmdbd; association ids from `sacctmgr`.

Two short requests to slurmdbd and one command, once a minute. Rows of other clusters that share the
database are skipped. The ids only make requests to slurmdbd smaller. Every answer is checked
against the caller's scope again, so a forged line can't reveal anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.adapters.slurm.answer import SlurmAnswer, checked, read_answer
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.dialect import Dialect, Dialects
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema import AccountRow, AssociationRow
from lattice.adapters.slurm.site import SlurmSite
from lattice.base.errors import Unavailable
from lattice.domain.accounts import Account, AccountTree

_ROWS_LIMIT = 2_000_000
_TIMEOUT_S = 15.0
_COORDINATORS = ("WithCoordinators", "with_coords")


@dataclass(frozen=True, slots=True)
class Associations:
    """The association ids of a user's jobs, deleted associations included."""

    by_user: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, users: Iterable[str]) -> tuple[int, ...] | None:
        """The ids of all these users, or None if any has none: then no filter is possible."""
        found: set[int] = set()
        for user in users:
            if user not in self.by_user:
                return None
            found.update(self.by_user[user])
        return tuple(sorted(found))


def tree_of(
    cluster: str, accounts: Iterable[AccountRow], associations: Iterable[AssociationRow]
) -> AccountTree:
    """The tree of one cluster's accounts. An account without association is not on the cluster."""
    coordinators = {row.name: row.coordinators for row in accounts}
    here: list[Account] = []
    members: dict[str, set[str]] = {}
    for row in associations:
        if row.cluster != cluster:
            continue
        if row.user:
            members.setdefault(row.user, set()).add(row.account)
        else:
            here.append(
                Account(row.account, row.parent, coordinators.get(row.account, frozenset()))
            )
    return AccountTree.of(here, members)


def parse_associations(text: str, cluster: str) -> Associations:
    """Parses lines of `id|cluster|account|user`; skips malformed lines."""
    by_user: dict[str, set[int]] = {}
    for line in text.split("\n", _ROWS_LIMIT)[:_ROWS_LIMIT]:
        cells = line.split("|")
        if len(cells) != 4 or cells[1] != cluster or not cells[3]:
            continue
        number = cells[0]
        if number.isascii() and number.isdigit() and 0 < len(number) <= 10:
            by_user.setdefault(cells[3], set()).add(int(number))
    return Associations({user: tuple(sorted(ids)) for user, ids in by_user.items()})


class AccountsReader:
    """Reads the tree and the ids. The last values stay while slurmdbd is down."""

    def __init__(
        self, site: SlurmSite, rest: SlurmRest, dialects: Dialects, commands: SlurmCommands
    ) -> None:
        self.tree = AccountTree()
        self.associations = Associations()
        self._site = site
        self._rest = rest
        self._dialects = dialects
        self._commands = commands

    async def read(self) -> bool:
        """Read the tree; True if it changed. Raises `Unavailable`."""
        cluster = await self._site.read_name()
        dialect = await self._dialects.past()
        schema = dialect.schema
        accounts = [schema.account(raw) for raw in (await self._ask(dialect, "accounts")).records]
        answer = await self._ask(dialect, "associations")
        associations = [schema.association(raw) for raw in answer.records]
        tree = tree_of(
            cluster,
            (row for row in accounts if row is not None),
            [row for row in associations if row is not None],
        )
        if answer.records and not tree.accounts:
            raise Unavailable(
                f"slurmdbd has no accounts for the cluster {cluster}",
                hint="Add some with sacctmgr; Lattice takes tenants from them.",
            )
        changed, self.tree = tree != self.tree, tree
        return changed

    async def read_ids(self) -> None:
        """Read the association ids if slurmdbd needs them. Raises `Unavailable`."""
        if not (await self._dialects.past()).offers("jobs", "users"):
            cluster = await self._site.read_name()
            text = await self._commands.associations(cluster)
            self.associations = parse_associations(text, cluster)

    async def _ask(self, dialect: Dialect, name: str) -> SlurmAnswer:
        path = dialect.path(name)
        # Newer versions return coordinators only on request, under one of two names.
        params = {each: "true" for each in _COORDINATORS if dialect.offers(name, each)}
        reply = await self._rest.get(path, params, timeout_s=_TIMEOUT_S)
        return checked(read_answer(reply.body, name), reply.status, path)
