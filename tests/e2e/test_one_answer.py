"""AUTH-12 on the real thing: what is another's takes as long to refuse as what never was."""

from __future__ import annotations

import http.client
import ssl
import statistics
import time

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person

pytestmark = [pytest.mark.lab, pytest.mark.spec("AUTH-12")]

_ROUNDS = 25


def test_refusals_cost_the_same(quiet_lab: Lab, bob: Person) -> None:
    running = quiet_lab.sbatch("alice", wrap="sleep 300")
    done = quiet_lab.sbatch("alice", wrap="true")
    quiet_lab.wait_job_state(running, "RUNNING")
    quiet_lab.wait_job_state(done, "COMPLETED")
    time.sleep(3)
    trust = ssl.create_default_context(cafile=str(quiet_lab.layout.certificates / "ca.crt"))
    names = {"running": running, "done": done, "absent": 7_000_000}
    times: dict[str, list[float]] = {name: [] for name in names}
    with quiet_lab.enter_network():
        server = http.client.HTTPSConnection(
            quiet_lab.servers[0].address, 8080, context=trust, timeout=30
        )
        for turn in range(_ROUNDS):
            for name, job in names.items():
                # A suffix that changes nothing but keeps every question a new one.
                path = f"/v1/allocations/{job}@{1_600_000_000 + turn}"
                begun = time.perf_counter()
                server.request(
                    "GET",
                    path,
                    headers={"Authorization": f"Bearer {bob.bearer['LATTICE_TOKEN']}"},
                )
                answer = server.getresponse()
                answer.read()
                times[name].append(time.perf_counter() - begun)
                assert answer.status == 404
        server.close()
    medians = {name: statistics.median(each) for name, each in times.items()}
    least, most = min(medians.values()), max(medians.values())
    # Real differences (a row read or not) are far below what one call to slurmdbd varies by.
    spread = statistics.median(abs(each - medians["absent"]) for each in times["absent"])
    assert most - least <= max(0.05 * most, 3 * spread), (medians, spread)
