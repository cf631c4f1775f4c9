"""AUTH-12 on the real thing: what is another's takes as long to refuse as what never was."""

from __future__ import annotations

import http.client
import ssl
import statistics
import time
from collections.abc import Iterator

import pytest

from lab.addresses import SERVER_REST_PORT
from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

_ROUNDS = 20


def _seconds_of_refusals(quiet_lab: Lab, alice: Person, bob: Person) -> dict[str, list[float]]:
    """Every name is asked for once, so that no answer is one remembered from before."""
    held = quiet_lab.sbatch("alice", "-H", f"--array=1-{_ROUNDS}", wrap="true")
    done = quiet_lab.sbatch("alice", f"--array=1-{_ROUNDS}", wrap="true")
    quiet_lab.wait_job_state(done, "COMPLETED", timeout_s=90)
    eventually(lambda: alice.sees("history"), lambda seen: f"{done}_{_ROUNDS}" in seen)
    return dict(_asked(quiet_lab, bob, {"held": held, "done": done, "absent": 7_000_000}))


@pytest.mark.spec("AUTH-12")
@pytest.mark.threat("guessed-id")
@pytest.mark.timeout(300)
def test_nobody_elses_jobs_are_all_refused(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    times = _seconds_of_refusals(quiet_lab, alice, bob)
    assert {name: len(each) for name, each in times.items()} == dict.fromkeys(times, _ROUNDS)


@pytest.mark.timing
@pytest.mark.spec("AUTH-12")
@pytest.mark.timeout(300)
def test_refusals_cost_the_same(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    times = _seconds_of_refusals(quiet_lab, alice, bob)
    medians = {name: statistics.median(each) for name, each in times.items()}
    spread = max(
        statistics.median(abs(each - medians[name]) for each in taken)
        for name, taken in times.items()
    )
    least, most = min(medians.values()), max(medians.values())
    assert most - least <= max(0.05 * most, 2 * spread), (medians, spread)
    # A real difference, a row read or none, is several times what is allowed here.
    assert spread < 0.3 * most, (medians, spread)


def _asked(lab: Lab, person: Person, jobs: dict[str, int]) -> Iterator[tuple[str, list[float]]]:
    trust = ssl.create_default_context(cafile=str(lab.layout.certificates / "ca.crt"))
    headers = {"Authorization": f"Bearer {person.bearer['LATTICE_TOKEN']}"}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with lab.enter_network():
        server = http.client.HTTPSConnection(
            lab.servers[0].address, SERVER_REST_PORT, context=trust, timeout=30
        )
        for task in range(1, _ROUNDS + 1):
            for name, job in jobs.items():
                begun = time.perf_counter()
                server.request("GET", f"/v1/allocations/{job}_{task}", headers=headers)
                answer = server.getresponse()
                answer.read()
                times[name].append(time.perf_counter() - begun)
                assert answer.status == 404
        server.close()
    yield from times.items()
