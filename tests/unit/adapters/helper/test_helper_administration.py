"""The port `Administration` by the gate: what it asks, and what it makes of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.adapters.helper.administration import AdministrationGate, HelperAdministration
from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.errors import (
    ConfigurationError,
    InternalError,
    LatticeError,
    Unavailable,
    UsageError,
)
from lattice.base.signatures import SigningKey
from lattice.domain.administration import (
    GateRights,
    NodeChange,
    NodeQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
)
from lattice.domain.grant import GATE
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Answer, Outcome, Question, digest_of, verb_of
from lattice.domain.submission import Unsure
from lattice.domain.tenants import LimitChange

KEY = SigningKey.generate()
DONE = Answer(outcome=Outcome.DONE)


class Answering(HelperChannel):
    """Answers with one answer, and keeps what it was asked."""

    def __init__(self, answer: Answer | Exception = DONE) -> None:
        super().__init__(Path("/nowhere"))
        self._answer = answer
        self.asked: list[tuple[str, Question]] = []

    async def ask(
        self,
        grant: str,
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,  # noqa: ARG002
    ) -> tuple[Answer, list[int]]:
        assert not descriptors
        self.asked.append((grant, question))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer, []


def administration(channel: HelperChannel | None) -> HelperAdministration:
    async def cluster() -> str:
        return "lab"

    gate = (channel, GrantSigner(KEY, SystemClock())) if channel is not None else None
    return HelperAdministration(AdministrationGate(gate), cluster)


@pytest.mark.spec("AUTH-9", "OPS-4")
async def test_the_grant_names_the_caller_and_covers_every_field() -> None:
    channel = Answering()
    nodes = NodeSet(["n1", "n2"])
    await administration(channel).change_nodes(NodeChange.DRAIN, nodes, "olga: x", by="sub-olga")
    ((grant, question),) = channel.asked
    assert question == NodeQuestion(
        cluster="lab", change=NodeChange.DRAIN, nodes=("n1", "n2"), reason="olga: x"
    )
    checker = GrantChecker(GATE, SystemClock(), [KEY.public])
    checked = checker.check(grant, verb_of(question).act, digest=digest_of(question))
    assert (checked.subject, checked.user) == ("sub-olga", "")


@pytest.mark.spec("OPS-5")
async def test_a_tenant_is_asked_for_by_its_numbers() -> None:
    channel = Answering()
    change = LimitChange(max_nodes=4, max_jobs=-1)
    await administration(channel).change_tenant(TenantAct.CREATE, "physics", change, by="s")
    assert channel.asked[0][1] == TenantQuestion(
        cluster="lab", act=TenantAct.CREATE, name="physics", max_nodes=4, max_gpus=None, max_jobs=-1
    )


async def test_many_nodes_are_asked_for_in_parts() -> None:
    channel = Answering()
    nodes = NodeSet(f"n{each}" for each in range(1100))
    await administration(channel).change_nodes(NodeChange.RESUME, nodes, "", by="s")
    assert len(channel.asked) == 3


async def test_a_bad_question_is_not_even_sent() -> None:
    channel = Answering()
    with pytest.raises(UsageError):
        await administration(channel).change_nodes(NodeChange.DRAIN, NodeSet(["ALL"]), "x", by="s")
    assert channel.asked == []


async def test_rights_are_read() -> None:
    rights = GateRights(groups=(VerbGroup.TENANTS,), user="slurm")
    channel = Answering(Answer(outcome=Outcome.DONE, output=rights.written()))
    assert await administration(channel).rights() == rights
    with pytest.raises(InternalError):
        await administration(Answering()).rights()


@pytest.mark.parametrize(
    ("outcome", "message", "kind"),
    [
        (Outcome.FAILED, "slurm_update error: Invalid node name specified", Unavailable),
        (Outcome.FAILED, "Unable to contact slurm controller", Unavailable),
        (Outcome.FAILED, "sacctmgr: error: slurmdbd: Connection refused", Unavailable),
        (Outcome.FAILED, "slurm_update error: Invalid user id", ConfigurationError),
        (Outcome.FAILED, "Access/permission denied", ConfigurationError),
        (Outcome.NOT_OFFERED, "this gate does not allow `nodes`", ConfigurationError),
        (Outcome.ACCOUNT_REFUSED, "no account", ConfigurationError),
        (Outcome.BAD_QUESTION, "a verb that is not known", ConfigurationError),
        (Outcome.UNSURE, "late", Unsure),
        (Outcome.BUSY, "too many", Unavailable),
        (Outcome.REFUSED, "no grant for this", Unavailable),
        (Outcome.UNTIMELY, "12:00", Unavailable),
        (Outcome.BROKEN, "the helper failed here", InternalError),
    ],
)
async def test_each_answer_has_its_error_and_a_hint(
    outcome: Outcome, message: str, kind: type[LatticeError]
) -> None:
    channel = Answering(Answer(outcome=outcome, message=message))
    with pytest.raises(kind) as error:
        await administration(channel).change_nodes(NodeChange.DRAIN, NodeSet(["n1"]), "x", by="s")
    assert type(error.value) is kind
    assert error.value.hint


@pytest.mark.spec("OPS-8")
async def test_what_a_site_does_not_allow_names_the_setting() -> None:
    channel = Answering(Answer(outcome=Outcome.NOT_OFFERED))
    with pytest.raises(ConfigurationError) as error:
        await administration(channel).change_tenant(
            TenantAct.CREATE, "physics", LimitChange(), by="s"
        )
    assert "--allow tenants" in (error.value.hint or "")
    assert "/etc/default/lattice-gate" in (error.value.hint or "")


async def test_without_a_gate_nothing_is_changed() -> None:
    with pytest.raises(ConfigurationError, match="no gate"):
        await administration(None).change_nodes(NodeChange.DRAIN, NodeSet(["n1"]), "x", by="s")


@pytest.mark.parametrize(
    ("problem", "kind"), [(Unavailable("no answer."), Unavailable), (OSError("torn"), Unsure)]
)
async def test_a_gate_that_is_away(problem: Exception, kind: type[LatticeError]) -> None:
    with pytest.raises(kind) as error:
        await administration(Answering(problem)).change_nodes(
            NodeChange.DRAIN, NodeSet(["n1"]), "x", by="s"
        )
    assert type(error.value) is kind
    assert error.value.hint
