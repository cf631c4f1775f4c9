"""The root helper on a node: what it counts of jobs, and what it does not do yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.users import AGENT_USER
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.counters import HelperCounterLine
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.counters import IO, ProcessCounters, processes_of
from lattice.domain.privileged import (
    Answer,
    Outcome,
    Question,
    WatchCounters,
    digest_of,
    verb_of,
    write_request,
)
from lattice.domain.submission import CancelQuestion
from tests.contract.identities import being
from tests.e2e.knocking import knock
from tests.eventually import eventually

pytestmark = pytest.mark.lab


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


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("counting-child")
def test_each_job_s_processes_are_counted_with_it_alone_and_without_a_grant(
    quiet_lab: Lab, helper: NodeHelper
) -> None:
    work = "dd if=/dev/zero of=/dev/null bs=1M count=20; sleep 120"
    job = quiet_lab.sbatch("alice", "-w", "n1", wrap=work)
    other = quiet_lab.sbatch("bob", "-w", "n1", wrap="sleep 120")
    for each in (job, other):
        quiet_lab.wait_job_state(each, "RUNNING")
    line = HelperCounterLine(helper.socket, SystemClock())

    def told(number: int) -> list[ProcessCounters]:
        # Who asks is looked at when the connection is made.
        with being(AGENT_USER):
            return processes_of(line.ask([IO], [number]).of(IO).get(number, []))

    def read_chars(found: list[ProcessCounters]) -> int:
        return sum(each.counted.read_chars for each in found if each.counted)

    hers = eventually(lambda: told(job), lambda found: read_chars(found) > 20 * 2**20)
    his = eventually(lambda: told(other), bool)
    assert not {each.process for each in hers} & {each.process for each in his}
    assert all(each.counted is not None for each in (*hers, *his))
    assert told(max(job, other) + 1) == []
    line.close()


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("counting-child")
def test_nobody_but_the_agent_is_told_numbers(helper: NodeHelper) -> None:
    answer = knock(helper.socket, write_request("", WatchCounters()), user="root")
    assert answer.outcome is Outcome.REFUSED


@pytest.mark.spec("AUTH-9")
def test_a_verb_of_the_gate_is_none_of_a_nodes(helper: NodeHelper) -> None:
    answer = helper.ask(CancelQuestion(jobs=("1",)), user="alice", job=1)
    assert answer.outcome is Outcome.NOT_OFFERED
    assert "not one of a node helper" in answer.message
