"""The port `Administration` by the gate beside the server.

Each change is a question with a grant for exactly that. The gate checks the grant, what the site
allows it, and every field, and builds the command itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import LOG_HINT, SLURM_AWAY, ask_gate, safe_text
from lattice.base import packet
from lattice.base.errors import (
    ConfigurationError,
    InternalError,
    LatticeError,
    Unavailable,
    UsageError,
)
from lattice.domain.administration import (
    AdministrationQuestion,
    GateRights,
    NodeChange,
    NodeQuestion,
    RightsQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
    in_parts,
    read_rights,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Answer, Outcome, verb_of
from lattice.domain.submission import Unsure
from lattice.domain.tenants import LimitChange

_SERVER = "lattice-server"
_DBD_AWAY = re.compile(r"slurmdbd|Connection refused|Unable to connect", re.IGNORECASE)
_REFUSED = re.compile(
    r"invalid user id|permission denied|not authorized|access/permission|privilege|"
    r"your user.*(?:uid|not).*(?:permission|allow)",
    re.IGNORECASE,
)


def allow_hint(group: VerbGroup) -> str:
    """How a site allows its gate one group of verbs."""
    return (
        f"On the server's host, add `--allow {group.value}` to OPTIONS in "
        "/etc/default/lattice-gate, and restart lattice-gate."
    )


class AdministrationGate:
    """Asks the gate's verbs for administrators."""

    def __init__(self, gate: tuple[HelperChannel, GrantSigner] | None) -> None:
        """`gate`: how it is reached, and what signs for it; None: there is none."""
        self._gate = gate

    async def ask(self, question: AdministrationQuestion, by: str) -> Answer:
        """Its answer, whatever that is. Raises `Unavailable` or its subclass `Unsure`."""
        if self._gate is None:
            raise ConfigurationError(
                "This server has no gate, so it can change nothing in Slurm.",
                hint="Start lattice-gate beside it and set gate.socket (docs/operate/gate.md).",
            )
        channel, signer = self._gate
        try:
            answer, passed = await ask_gate(channel, signer, question, by)
        except Unavailable as away:
            raise Unavailable(
                f"The gate that changes Slurm is away: {away.message}",
                hint="An administrator starts lattice-gate on the server's host again.",
            ) from None
        except OSError as error:
            raise Unsure(
                f"The gate did not say what became of this: {error or 'no answer'}.",
                hint="Check what Slurm has before you try again.",
            ) from None
        packet.close_all(passed)
        return answer


class HelperAdministration:
    """Asks the gate. `cluster` reads slurmctld's own name of the cluster."""

    def __init__(self, gate: AdministrationGate, cluster: Callable[[], Awaitable[str]]) -> None:
        self._gate = gate
        self._cluster = cluster

    async def change_nodes(
        self, change: NodeChange, nodes: NodeSet, reason: str, *, by: str
    ) -> None:
        cluster = await self._cluster()
        for names in in_parts(nodes):
            question = NodeQuestion(cluster=cluster, change=change, nodes=names, reason=reason)
            await self._ask(question, by)

    async def change_tenant(
        self, act: TenantAct, name: str, change: LimitChange, *, by: str
    ) -> None:
        question = TenantQuestion(
            cluster=await self._cluster(),
            act=act,
            name=name,
            max_nodes=change.max_nodes,
            max_gpus=change.max_gpus,
            max_jobs=change.max_jobs,
        )
        await self._ask(question, by)

    async def rights(self) -> GateRights:
        answer = await self._ask(RightsQuestion(), _SERVER)
        try:
            return read_rights(answer.output)
        except ValueError:
            raise InternalError("The gate's answer can't be read.", hint=LOG_HINT) from None

    async def _ask(self, question: AdministrationQuestion, by: str) -> Answer:
        if fault := question.fault():
            raise UsageError(f"The gate does not take this: {fault}.")
        answer = await self._gate.ask(question, by)
        if answer.outcome is not Outcome.DONE:
            raise administration_error(answer, verb_of(question).group)
        return answer


def administration_error(answer: Answer, group: VerbGroup | None) -> LatticeError:
    """The error of an answer that is not `DONE`."""
    message = safe_text(answer.message).rstrip(".")
    if answer.outcome is Outcome.FAILED:
        return _program_error(message)
    if answer.outcome is Outcome.NOT_OFFERED and group is not None:
        return ConfigurationError(
            f"This site does not let Lattice change {group.value} in Slurm.",
            hint=allow_hint(group),
        )
    known: dict[Outcome, LatticeError] = {
        Outcome.ACCOUNT_REFUSED: ConfigurationError(
            f"The gate can't change Slurm: {message}.",
            hint="Give the gate's host the account of SlurmUser, or name another one by "
            "--administer-as (docs/operate/gate.md).",
        ),
        Outcome.BAD_QUESTION: ConfigurationError(
            f"The gate does not take this: {message}.",
            hint="Check that gate, server and slurm.conf are of the same release and cluster.",
        ),
        Outcome.UNSURE: Unsure(f"{message}.", hint="Check what Slurm has before you try again."),
        Outcome.BUSY: Unavailable(
            f"The gate is busy: {message}.", hint="Try again in a few seconds."
        ),
        Outcome.REFUSED: Unavailable("The gate does not accept this server.", hint=LOG_HINT),
        Outcome.UNTIMELY: Unavailable(
            f"The gate goes by another clock than this server: {message}.",
            hint="An administrator sets the clocks of both right.",
        ),
    }
    failed = InternalError(f"The gate failed: {message}.", hint=LOG_HINT)
    return known.get(answer.outcome, failed)


def _program_error(message: str) -> LatticeError:
    if SLURM_AWAY.search(message) or _DBD_AWAY.search(message):
        return Unavailable(message, hint="Slurm does not answer the gate; try again soon.")
    if _REFUSED.search(message):
        return ConfigurationError(
            f"Slurm does not let the gate's account make changes: {message}.",
            hint="Leave --administer-as out, or give its account the level Administrator: "
            "sacctmgr -i modify user NAME set AdminLevel=Administrator",
        )
    return Unavailable(f"Slurm refused it: {message}.", hint="Nothing else was tried.")
