"""Attack 33: many searches of one user through a large log, while others go on as before."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from lab.addresses import SERVER_REST_PORT
from lab.laboratory import Lab
from tests.e2e.own_figures import longest_pause_s
from tests.e2e.people import Person, Said
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

LINES = 8_000_000
"""Short ones, 63 MB."""
SEARCHES = 12
_ROUNDS = 3
LONGEST_PAUSE_S = 0.1


def stored_log(lab: Lab, person: Person) -> int:
    """A finished job whose output is in the object store to its last line."""
    job = lab.sbatch(person.name, wrap=f"seq 1 {LINES}")
    lab.wait_job_state(job, "COMPLETED", timeout_s=120)
    eventually(
        lambda: person.tries("logs", str(job), "--tail", "1").out, lambda out: out == f"{LINES}\n"
    )
    return job


def during_searches(person: Person, job: int, meanwhile: Callable[[], None]) -> list[Said]:
    """Twelve at once; `meanwhile` is done again and again until the last has its answer."""
    words = ("logs", str(job), "--first-error", "--grep", "no such line$")
    return _during(partial(person.tries, *words), meanwhile)


def _during(command: Callable[[], Said], meanwhile: Callable[[], None]) -> list[Said]:
    with ThreadPoolExecutor(SEARCHES) as pool:
        searches = [pool.submit(command) for _ in range(SEARCHES)]
        while True:
            meanwhile()
            if not wait(searches, timeout=0).not_done:
                return [each.result() for each in searches]


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
def test_twelve_searches_of_one_user_leave_the_server_to_others(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    """Beyond those under way at once the client waits its turn; each has its whole answer."""
    job = stored_log(quiet_lab, alice)

    def ask() -> None:
        assert bob.asks("whoami")["user"]["value"] == "bob"

    for said in during_searches(alice, job, ask):
        assert (said.code, said.out) == (0, ""), said
        assert "No line matches." in said.err
    found = alice.tries("logs", str(job), "--grep", "^7654321$")
    assert (found.code, found.out) == (0, "7654321\n"), found.err


@pytest.mark.timing
@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
def test_others_take_at_most_three_times_as_long_meanwhile(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    job = stored_log(quiet_lab, alice)
    times: list[float] = []

    def ask() -> None:
        begun = time.monotonic()
        bob.asks("whoami")
        times.append(time.monotonic() - begun)

    # Twelve clients that only start take processor time from the one that is measured, too.
    for _ in range(_ROUNDS):
        _during(partial(alice.tries, "--version"), ask)
    usual_s = max(times)
    times.clear()
    during_searches(alice, job, ask)
    assert max(times) <= 3 * usual_s, (usual_s, sorted(times)[-5:])


@pytest.mark.timing
@pytest.mark.spec("LIMIT-4")
def test_no_turn_of_the_event_loop_is_long_meanwhile(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    """While a large log is stored and searched, and people ask for all the rest."""
    job = stored_log(quiet_lab, alice)
    running = quiet_lab.sbatch("bob", wrap="echo begun; sleep 600")
    quiet_lab.wait_job_state(running, "RUNNING")

    def ask() -> None:
        for words in (("status",), ("logs",), ("top", "--once"), ("diag",)):
            bob.tries(words[0], str(running), *words[1:])

    during_searches(alice, job, ask)
    olga = administrator(quiet_lab)
    pauses_s = [longest_pause_s(quiet_lab, each, olga) for each in quiet_lab.servers]
    assert max(pauses_s) <= LONGEST_PAUSE_S


def _trust(lab: Lab) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(lab.layout.certificates / "ca.crt"))


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
def test_a_search_ends_with_its_client(quiet_lab: Lab, alice: Person) -> None:
    """The server's log has it under a status that nobody was sent."""
    job = stored_log(quiet_lab, alice)
    server = quiet_lab.servers[0]
    request_id = f"leaves-{job}"
    headers = {
        "Authorization": f"Bearer {alice.bearer['LATTICE_TOKEN']}",
        "X-Request-Id": request_id,
    }
    with quiet_lab.enter_network():
        client = http.client.HTTPSConnection(
            server.address, SERVER_REST_PORT, context=_trust(quiet_lab), timeout=30
        )
        client.request("GET", f"/v1/allocations/{job}/logs?grep=no+such+line", headers=headers)
        client.close()

    def logged() -> list[str]:
        lines = server.process.log_file.read_text().splitlines()
        return [each for each in lines if request_id in each and "499" in each]

    eventually(logged)
