"""Whoever asks the gate to change Slurm with what no server sends: nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.laboratory import Lab
from lab.slurm_config import CLUSTER
from lab.users import SERVER_USER
from lattice.access.grants import GrantSigner
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.administration import (
    MakeReservation,
    NodeChange,
    NodeQuestion,
    RemoveReservation,
    RightsQuestion,
    TenantAct,
    TenantQuestion,
)
from lattice.domain.grant import GATE, Act
from lattice.domain.privileged import Answer, Outcome, Question, digest_of, verb_of, write_request
from tests.e2e import knocking
from tests.eventually import eventually

pytestmark = pytest.mark.lab

DRAIN = NodeQuestion(cluster=CLUSTER, change=NodeChange.DRAIN, nodes=("n2",), reason="olga: x")
CREATE = TenantQuestion(
    cluster=CLUSTER, act=TenantAct.CREATE, name="evil", max_nodes=1, max_gpus=None, max_jobs=None
)

RESERVE = MakeReservation(cluster=CLUSTER, name="lattice-claim-x", user="alice", nodes=("n2",))


@pytest.fixture
def ask(lab: Lab) -> Callable[..., Answer]:
    key = SigningKey.load(lab.gate.grant_key)

    def made(
        question: Question,
        *,
        sent: Question | None = None,
        act: Act | None = None,
        grant: str | None = None,
        key: SigningKey = key,
        user: str = SERVER_USER,
    ) -> Answer:
        signed = GrantSigner(key, SystemClock()).issue(
            act or verb_of(question).act, GATE, subject="s", digest=digest_of(question)
        )
        body = write_request(signed if grant is None else grant, sent or question)
        return knocking.knock(lab.gate.socket, body, [], user)

    # A gate that has just been started refuses grants of the same second.
    eventually(lambda: made(RightsQuestion()).outcome, lambda found: found is Outcome.DONE)
    return made


def states(lab: Lab) -> set[str]:
    listed = lab.ctl(["sinfo", "-h", "-N", "-n", "n[1-3]", "-o", "%T"]).stdout.split()
    return {each.rstrip("*") for each in listed}


@pytest.mark.story
@pytest.mark.spec("AUTH-9", "OPS-4")
@pytest.mark.threat("gate-changes", "gate-grant")
def test_nothing_changes_without_a_grant_for_exactly_that(
    quiet_lab: Lab, ask: Callable[..., Answer]
) -> None:
    assert states(quiet_lab) == {"idle"}
    refused = [
        ask(DRAIN, grant=""),
        ask(DRAIN, act=Act.SUBMIT),
        ask(DRAIN, act=Act.CHANGE_TENANT),
        ask(DRAIN, key=SigningKey.generate()),
        ask(DRAIN, sent=replace(DRAIN, nodes=("n1",))),
        ask(DRAIN, sent=replace(DRAIN, change=NodeChange.DISABLE)),
        ask(DRAIN, user="root"),
    ]
    assert {each.outcome for each in refused} == {Outcome.REFUSED}
    for nodes in (("ALL",), ("n1,n2",), ("n[1-3]",), ("n1 state=down",), ("../n1",)):
        assert ask(replace(DRAIN, nodes=nodes)).outcome is Outcome.BAD_QUESTION
    for reason in ("two\nNodeName=n1 State=DOWN", "\x1b[2J", "r" * 201):
        assert ask(replace(DRAIN, reason=reason)).outcome is Outcome.BAD_QUESTION
    assert ask(replace(DRAIN, cluster="other")).outcome is Outcome.BAD_QUESTION
    assert ask(replace(DRAIN, nodes=("n2", "n9"))).outcome is Outcome.BAD_QUESTION
    for name in ("root", "-i", "a b", "a,b"):
        assert ask(replace(CREATE, name=name)).outcome is Outcome.BAD_QUESTION
    for change in (
        {"name": "lattice-claim-"},
        {"name": "upgrade"},
        {"user": "alice,bob"},
        {"user": "root"},
        {"nodes": ("ALL",)},
        {"nodes": ("n[1-3]",)},
    ):
        assert ask(replace(RESERVE, **change)).outcome is Outcome.BAD_QUESTION
    for change in ({"user": "slurm"}, {"user": SERVER_USER}, {"nodes": ("n2", "n9")}):
        assert ask(replace(RESERVE, **change)).outcome is Outcome.FAILED
    made = ["scontrol", "create", "reservation", "reservationname=upgrade", "users=bob"]
    quiet_lab.ctl([*made, "nodes=n3", "starttime=now", "duration=1:00:00"])
    release = RemoveReservation(cluster=CLUSTER, name="upgrade")
    assert ask(release).outcome is Outcome.BAD_QUESTION
    listed = quiet_lab.ctl(["scontrol", "-o", "show", "reservation"]).stdout.splitlines()
    quiet_lab.ctl(["scontrol", "delete", "reservationname=upgrade"])
    assert [each.split()[0] for each in listed] == ["ReservationName=upgrade"]
    assert states(quiet_lab) == {"idle"}
    accounts = quiet_lab.ctl(["sacctmgr", "-nP", "show", "account", "format=account"]).stdout
    assert "evil" not in accounts.split()


@pytest.mark.spec("AUTH-9", "OPS-4")
@pytest.mark.threat("gate-changes", "gate-grant")
def test_a_grant_for_a_change_works_once_and_the_log_names_it(
    quiet_lab: Lab, ask: Callable[..., Answer]
) -> None:
    key = SigningKey.load(quiet_lab.gate.grant_key)
    grant = GrantSigner(key, SystemClock()).issue(
        Act.CHANGE_NODES, GATE, subject="sub-olga", digest=digest_of(DRAIN)
    )
    try:
        assert ask(DRAIN, grant=grant) == Answer(outcome=Outcome.DONE)
        assert "drained" in states(quiet_lab)
        assert ask(DRAIN, grant=grant).outcome is Outcome.REFUSED
    finally:
        quiet_lab.ctl(["scontrol", "update", "nodename=n[1-3]", "state=resume"], check=False)
    lines = quiet_lab.gate.process.log_file.read_text().splitlines()
    acts = [json.loads(each) for each in lines if '"event": "act"' in each]
    assert (acts[-1]["change"], acts[-1]["subject"]) == ("drain n2", "sub-olga")
