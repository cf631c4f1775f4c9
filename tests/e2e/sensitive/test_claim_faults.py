"""Many claim the same nodes at once, and servers die between a claim and its reservation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from lab.laboratory import Lab
from lab.server import Server
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

_CLAIMERS = ("alice", "dave", "erin")
"""Who may claim in the lab."""
_RACE = """
import asyncio, json, os, sys
from lattice.client import Client
from lattice.base.errors import Conflict, Unavailable

async def attempt(client, nodes):
    while True:
        try:
            answer = await client.claim_nodes(nodes)
            break
        except Conflict as refusal:
            return ["", refusal.message]
        except Unavailable:  # just after its start a server does not know the locks yet
            await asyncio.sleep(0.5)
    return [answer.claim.id if answer.changed else "", answer.claim.id]

async def main():
    async with Client.from_environment() as client:
        sets = ["n1", "n[1-2]", "n[1-3]", "n1,n3"]
        return await asyncio.gather(*(attempt(client, sets[each % 4]) for each in range(17)))

print(json.dumps(asyncio.run(main())))
"""


@pytest.fixture(scope="module")
def people(sensitive_lab: Lab) -> list[Person]:
    return [Person(sensitive_lab, each).logged_in("sensitive:claim") for each in _CLAIMERS]


@pytest.fixture(autouse=True)
def unclaimed(sensitive_lab: Lab) -> Iterator[None]:
    sensitive_lab.jobs.cancel_all()
    yield
    ada = administrator(sensitive_lab)
    for server in sensitive_lab.servers:
        server.environment.pop("LATTICE_FAILPOINT", None)
        server.start()
    eventually(partial(_released, ada), patience_s=120)


def _released(ada: Person) -> bool:
    claims = ada.asks("admin", "claims")["claims"]
    return all(ada.tries("admin", "release", each["id"]).code == 0 for each in claims)


def _reserved(lab: Lab) -> dict[str, str]:
    """User and nodes of each reservation of a claim, by its name."""
    text = lab.ctl(["scontrol", "-o", "show", "reservation"]).stdout
    found = {}
    for line in text.splitlines():
        fields = dict(each.split("=", 1) for each in line.split() if "=" in each)
        if fields.get("ReservationName", "").startswith("lattice-claim-"):
            found[fields["ReservationName"]] = f"{fields['Users']} {fields['Nodes']}"
    return found


def _claimed(person: Person) -> dict[str, str]:
    """The same, as the server has it; nothing while a claim is between two steps."""
    claims = person.asks("admin", "claims")["claims"]
    if any(each["step"] != "claimed" for each in claims):
        return {"between": "two steps"}
    return {each["reservation"]: f"{each['user']} {each['nodes']}" for each in claims}


@pytest.mark.spec("AUDIT-1")
@pytest.mark.threat("sensitive-claim")
def test_of_a_hundred_claims_over_two_servers_one_wins(
    sensitive_lab: Lab, people: list[Person]
) -> None:
    """17 of each person at each server. Who claims the same nodes again gets the same claim."""

    def race(person: Person, server: Server) -> list[list[str]]:
        env = {**person.bearer, "LATTICE_API_URL": server.url}
        done = sensitive_lab.run_as(person.name, ["python", "-c", _RACE], env=env, timeout_s=120)
        assert done.returncode == 0, done.stderr
        answers: list[list[str]] = json.loads(done.stdout)
        return answers

    pairs = [(person, server) for person in people for server in sensitive_lab.servers]
    with ThreadPoolExecutor(len(pairs)) as pool:
        answers = [
            (person.name, *each)
            for (person, _), found in zip(pairs, pool.map(lambda p: race(*p), pairs), strict=True)
            for each in found
        ]
    assert len(answers) == 102
    ((winner, claim, _),) = (each for each in answers if each[1])
    for user, made, text in answers:
        if not made:
            is_same = user == winner and text == claim
            assert is_same or f"{winner} holds n" in text, (user, text)
    (reserved,) = _reserved(sensitive_lab).items()
    assert reserved[0] == f"lattice-claim-{claim}"
    assert reserved[1].startswith(f"{winner} ")


_CLAIM = ("claims.audited", "claims.recorded", "claims.reserved", "claims.claimed")
_RELEASE = ("claims.release.audited", "claims.releasing", "claims.unreserved")


def _die_at(server: Server, person: Person, place: str, words: tuple[str, ...]) -> None:
    """The server is killed there while it does what the command asks for."""
    server.stop()
    server.environment["LATTICE_FAILPOINT"] = place
    server.start()
    env = {**person.bearer, "LATTICE_API_URL": server.url}

    def is_killed() -> bool:
        """Just after its start it may refuse, because it does not know the locks yet."""
        person.lattice(*words, env=env)
        return not server.process.alive

    eventually(is_killed)
    del server.environment["LATTICE_FAILPOINT"]


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("place", [*_CLAIM, *_RELEASE])
def test_a_claim_and_its_reservation_agree_after_a_kill_at_each_step(
    sensitive_lab: Lab, people: list[Person], place: str
) -> None:
    first, other = sensitive_lab.servers
    alice = people[0]
    ada = administrator(sensitive_lab)
    words: tuple[str, ...] = ("admin", "claim", "n1", "n2")
    if place in _RELEASE:
        assert alice.tries(*words).code == 0
        words = ("admin", "release", "n[1-2]")
    _die_at(first, alice, place, words)
    at_other = {**ada.bearer, "LATTICE_API_URL": other.url}
    assert ada.lattice("admin", "claims", env=at_other).code == 0

    first.start()
    eventually(lambda: _claimed(ada) == _reserved(sensitive_lab), patience_s=120)
    is_held = place in {"claims.release.audited", *_CLAIM[1:]}
    assert list(_reserved(sensitive_lab).values()) == (["alice n[1-2]"] if is_held else [])


@pytest.mark.long
@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("place", ["claims.refused", "claims.unreserved", "claims.undone"])
def test_of_a_claim_that_slurm_refuses_nothing_is_left_after_a_kill_at_each_step(
    sensitive_lab: Lab, people: list[Person], place: str
) -> None:
    lab, alice = sensitive_lab, people[0]
    first, _ = lab.servers
    ada = administrator(lab)
    job = lab.sbatch("bob", "-A", "genomics", "--nodelist=n1", wrap="sleep 600")
    lab.wait_job_state(job, "RUNNING")
    before = _failures(ada)
    _die_at(first, alice, place, ("admin", "claim", "n1"))
    assert _reserved(lab) == {}
    first.start()
    eventually(lambda: ada.asks("admin", "claims")["claims"] == [], patience_s=120)
    assert _reserved(lab) == {}
    assert len(_failures(ada) - before) == 1, "one entry says that it came to nothing"
    lab.jobs.cancel_all()
    lab.wait_job_state(job, "CANCELLED")
    eventually(lambda: alice.tries("admin", "claim", "n1").code == 0)
    assert list(_reserved(lab).values()) == ["alice n1"]


def _failures(ada: Person) -> set[str]:
    rows = ada.asks("audit", "query", "--act", "claim")["rows"]
    return {each["event"] for each in rows if each["outcome"] == "failed"}
