"""One of two servers is dead: every command succeeds at the other, in silence and about as fast."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.addresses import SERVER_REST_PORT
from lab.laboratory import Lab
from lab.server import Server
from tests.e2e.people import Person, Said
from tests.e2e.put_right import NODES, administrator, linked, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

LONGER_S = 1.0
NOBODY = f"https://10.77.0.250:{SERVER_REST_PORT}"
"""An address of the lab's network that no host has: what is sent there is never answered."""


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    """Both servers are up and every node is linked, before a story and after it."""
    put_right(lab, administrator(lab))
    yield
    put_right(lab, administrator(lab))


@pytest.fixture
def job(lab: Lab, alice: Person) -> Iterator[int]:
    """One that was measured already: before its first sample `top` has nothing to show."""
    lab.jobs.cancel_all()
    number = lab.sbatch("alice", wrap="echo begun; sleep 600")
    lab.wait_job_state(number, "RUNNING")
    alice.tries("telemetry", str(number), "debug")
    eventually(lambda: alice.tries("top", str(number), "--once").code, lambda code: code == 0)
    yield number
    lab.jobs.cancel_all()


def _timed(person: Person, words: tuple[str, ...], urls: str) -> tuple[Said, float]:
    begun = time.monotonic()
    said = person.lattice(*words, env={**person.bearer, "LATTICE_API_URL": urls})
    return said, time.monotonic() - begun


def _commands(job: int) -> list[tuple[str, ...]]:
    name = str(job)
    return [
        ("whoami",),
        ("status",),
        ("status", name),
        ("logs", name),
        ("share", name, "--with", "bob"),
        ("unshare", name, "--with", "bob"),
        ("nodes",),
        ("top", name, "--once"),
        ("diag", name),
    ]


def _submit_and_cancel(person: Person, urls: str) -> float:
    """The seconds that both took."""
    said, first_s = _timed(person, ("submit", "--", "sleep", "300"), urls)
    assert (said.code, said.err) == (0, ""), said
    words = said.out.split()
    assert words[:2] == ["Submitted", "allocation"]
    said, second_s = _timed(person, ("cancel", words[2]), urls)
    assert (said.code, said.err) == (0, ""), said
    return max(first_s, second_s)


def _run_all(person: Person, job: int, urls: str) -> dict[tuple[str, ...], float]:
    """The seconds that each command took; none says anything of a server."""
    took = {}
    for words in _commands(job):
        said, took[words] = _timed(person, words, urls)
        assert said.code == 0, (words, said)
        assert "reach" not in said.err, (words, said)
    took["submit", "cancel"] = _submit_and_cancel(person, urls)
    return took


def _both(lab: Lab) -> str:
    return ",".join(each.url for each in lab.servers)


def _kill(lab: Lab, server: Server) -> None:
    server.process.kill()
    # Where a node is reached is for the servers to settle, and has a time of its own.
    eventually(lambda: linked(administrator(lab)), lambda seen: set(seen) == set(NODES))


def _longer_s(
    before: dict[tuple[str, ...], float], after: dict[tuple[str, ...], float]
) -> dict[tuple[str, ...], float]:
    return {words: after[words] - before[words] for words in before}


@pytest.mark.spec("OPS-1", "CLI-3")
@pytest.mark.parametrize(
    "number", [pytest.param(0, id="first", marks=pytest.mark.story), pytest.param(1, id="second")]
)
def test_every_command_succeeds_with_one_server_dead(
    lab: Lab, alice: Person, job: int, number: int
) -> None:
    _kill(lab, lab.servers[number])
    _run_all(alice, job, _both(lab))


@pytest.mark.timing
@pytest.mark.spec("OPS-1", "CLI-3")
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_no_command_takes_a_second_longer_with_one_server_dead(
    lab: Lab, alice: Person, job: int, number: int
) -> None:
    before = _run_all(alice, job, _both(lab))
    _kill(lab, lab.servers[number])
    longest_s = max(_longer_s(before, _run_all(alice, job, _both(lab))).values())
    assert longest_s <= LONGER_S


@pytest.mark.spec("OPS-1", "CLI-3")
def test_every_command_succeeds_where_a_host_answers_nothing(
    lab: Lab, alice: Person, job: int
) -> None:
    _run_all(alice, job, f"{NOBODY},{lab.servers[0].url}")


@pytest.mark.timing
@pytest.mark.spec("OPS-1", "CLI-3")
def test_no_command_takes_a_second_longer_where_a_host_answers_nothing(
    lab: Lab, alice: Person, job: int
) -> None:
    alive = lab.servers[0].url
    before = _run_all(alice, job, alive)
    longest_s = max(_longer_s(before, _run_all(alice, job, f"{NOBODY},{alive}")).values())
    assert longest_s <= LONGER_S


@pytest.mark.spec("OPS-1", "CLI-3")
def test_a_frozen_server_is_passed_over(lab: Lab, alice: Person) -> None:
    lab.servers[0].process.freeze()
    said, _ = _timed(alice, ("whoami",), _both(lab))
    assert (said.code, said.err) == (0, ""), said
    _submit_and_cancel(alice, _both(lab))


@pytest.mark.spec("OPS-1", "CLI-2")
def test_where_both_are_dead_both_are_named(lab: Lab, alice: Person) -> None:
    for server in lab.servers:
        server.process.kill()
    for words in (("status",), ("submit", "--", "true")):
        said, _ = _timed(alice, words, _both(lab))
        assert said.code == 75, said
        assert all(each.url in said.err for each in lab.servers), said


@pytest.mark.spec("AUTH-1", "OPS-1")
def test_a_sign_in_is_the_clusters(lab: Lab, alice: Person) -> None:
    """Kept under one server's address, used with the other's alone and in the other order."""
    first, second = (each.url for each in lab.servers)
    script = """
import os, sys
from lattice.client.credential import Credential
from lattice.client.settings import Settings
from lattice.client.tokens import open_vault

vault = open_vault(Settings.load(os.environ))
if sys.argv[1] == "out":
    vault.delete()
else:
    vault.save(Credential(os.environ["T"], expires_at=None, issuer="i", client_id="c"), None)
"""
    token = {"T": alice.bearer["LATTICE_TOKEN"]}

    def locker(what: str) -> None:
        env = {**token, "LATTICE_API_URL": f"{first},{second}"}
        done = lab.run_as("alice", ["python", "-c", script, what], env=env)
        assert done.returncode == 0, done

    locker("in")
    try:
        for urls in (f"{second},{first}", second, first):
            said = alice.lattice("whoami", env={"LATTICE_API_URL": urls})
            assert said.code == 0, (urls, said)
    finally:
        locker("out")
