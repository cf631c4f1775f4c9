"""The root helper on a node: what it reads for a job's owner, and what it does not do yet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.users import AGENT_USER
from lattice.access.grants import GrantSigner
from lattice.base.clock import SystemClock
from lattice.base.signing import SigningKey
from lattice.domain.privileged import (
    Answer,
    DumpStacks,
    Outcome,
    Question,
    ReadProcessCounters,
    digest_of,
    verb_of,
    write_request,
)
from lattice.domain.submission import CancelQuestion
from tests.e2e.knocking import knock
from tests.e2e.people import eventually

pytestmark = [pytest.mark.lab, pytest.mark.spec("AUTH-9")]


@dataclass
class NodeHelper:
    """The helper on n1, and a server whose grants it believes."""

    socket: Path
    signer: GrantSigner

    def ask(self, question: Question, *, user: str, job: int) -> Answer:
        grant = self.signer.issue(
            verb_of(question).act, "n1", subject="s", user=user, job_id=job,
            digest=digest_of(question),
        )  # fmt: skip
        return knock(self.socket, write_request(grant, question), user=AGENT_USER)


@pytest.fixture
def helper(lab: Lab) -> NodeHelper:
    signer = GrantSigner(SigningKey.load(lab.gate.grant_key), SystemClock())
    return NodeHelper(lab.node("n1").agent.helper.socket, signer)


def test_an_owner_s_processes_are_counted_and_nobody_else_s(
    quiet_lab: Lab, helper: NodeHelper
) -> None:
    work = "dd if=/dev/zero of=/dev/null bs=1M count=20; sleep 120"
    job = quiet_lab.sbatch("alice", "-w", "n1", wrap=work)
    other = quiet_lab.sbatch("bob", "-w", "n1", wrap="sleep 120")
    for each in (job, other):
        quiet_lab.wait_job_state(each, "RUNNING")

    def pids(user: str) -> tuple[int, ...]:
        said = quiet_lab.node("n1").run(["pgrep", "-u", user, "-x", "sleep"], check=False).stdout
        return tuple(int(each) for each in said.split())

    hers = eventually(lambda: pids("alice"), bool)
    his = eventually(lambda: pids("bob"), bool)
    answer = helper.ask(ReadProcessCounters((*hers, *his, 1)), user="alice", job=job)
    assert answer.outcome is Outcome.DONE
    told = json.loads(answer.output)
    assert set(told) == {str(each) for each in hers}
    assert {"rchar", "wchar", "read_bytes", "write_bytes"} <= set(told[str(hers[0])])
    # Her name with his job, and his job with her name, show nothing.
    for user, number in (("alice", other), ("bob", job)):
        answer = helper.ask(ReadProcessCounters((*hers, *his)), user=user, job=number)
        assert json.loads(answer.output) == {}
    assert helper.ask(ReadProcessCounters((1,)), user="root", job=job).outcome is (
        Outcome.ACCOUNT_REFUSED
    )


def test_what_is_not_built_says_so(helper: NodeHelper) -> None:
    answer = helper.ask(DumpStacks((1,)), user="alice", job=1)
    assert (answer.outcome, answer.message) == (
        Outcome.NOT_OFFERED,
        "the verb `dump_stacks` is not built into this helper",
    )
    answer = helper.ask(CancelQuestion(jobs=("1",)), user="alice", job=1)
    assert answer.outcome is Outcome.NOT_OFFERED
    assert "not one of a node helper" in answer.message
