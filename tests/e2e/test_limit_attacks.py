"""Attacks 23 and 24 where they need a cluster: two servers, a job's log, a node's certificate.

What one server alone can show is in `tests/integration/attacks`.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from lab.addresses import SERVER_REST_PORT
from lab.laboratory import Lab
from lab.server import Server
from lab.users import AGENT_USER
from lattice.domain.logs import LONGEST_LINE_BYTES
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

_HERE = Path(__file__).parents[2]
MOST_GROWTH_BYTES = 50 * 2**20
COMPARISONS = 10
"""Of one caller, a minute."""
_WORST = "(a+)+$"


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    """Both servers are up before a story, and every node is trusted after it."""
    put_right(lab, administrator(lab))
    yield
    put_right(lab, administrator(lab))


def _ask(lab: Lab, server: Server, person: Person, path: str, **headers: str) -> int:
    """The status of one request to one server, sent inside the lab's network."""
    trust = ssl.create_default_context(cafile=str(lab.layout.certificates / "ca.crt"))
    given = {"Authorization": f"Bearer {person.bearer['LATTICE_TOKEN']}"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with lab.enter_network():
        client = http.client.HTTPSConnection(
            server.address, SERVER_REST_PORT, context=trust, timeout=60
        )
        try:
            client.request("GET", path, headers=given)
            return client.getresponse().status
        finally:
            client.close()


@pytest.mark.spec("LIMIT-1", "LIMIT-2")
@pytest.mark.threat("caller-headers")
def test_two_servers_and_every_disguise_share_one_bucket(lab: Lab) -> None:
    """Attack 23: a minute's comparisons are granted once, whichever server is asked."""
    # One who compares nothing else, so that her bucket is full.
    olga = administrator(lab)
    first, second = lab.servers
    granted = []
    for number in range(3 * COMPARISONS):
        status = _ask(
            lab,
            (first, second)[number % 2],
            olga,
            "/v1/compare?ids=1,2",
            X_User_Id=f"somebody-{number}",
            X_Forwarded_For=f"203.0.113.{number}",
            X_Real_IP=f"203.0.113.{number}",
        )
        granted.append(status != 429)
    # A slow machine gives the bucket time to fill: one more for every six seconds.
    assert granted[:COMPARISONS] == [True] * COMPARISONS
    assert sum(granted) < 2 * COMPARISONS
    assert not granted[COMPARISONS], "the eleventh, at the server that gave half of the ten"


def _memory_bytes(server: Server, name: str) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    facts = dict(line.split(":", 1) for line in status.splitlines())
    return int(facts[name].split()[0]) * 1024


@pytest.mark.spec("LIMIT-4", "LOG-4")
@pytest.mark.threat("heavy-search")
def test_the_worst_pattern_over_the_longest_lines_ends_and_holds_nobody_up(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    """Attack 24: `--grep '(a+)+$'` over lines of nothing but a's, each with another end."""
    line = f"head -c {LONGEST_LINE_BYTES - 2} /dev/zero | tr '\\0' a; echo '!'"
    job = quiet_lab.sbatch("alice", wrap=f"for n in $(seq 20); do {line}; done; echo aaa")
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=120)
    eventually(lambda: alice.tries("logs", str(job), "--tail", "1").out, lambda out: out == "aaa\n")
    found = alice.tries("logs", str(job), "--grep", _WORST)
    assert (found.code, found.out) == (0, "aaa\n"), found.err
    assert bob.asks("whoami")["user"]["value"] == "bob"
    refused = alice.tries("logs", str(job), "--grep", r"(a)\1")
    assert refused.code == 2, "what only a backtracking engine could match is no pattern"


@pytest.mark.spec("LIMIT-4", "LOG-3")
@pytest.mark.threat("bombs")
def test_a_chunk_that_swells_costs_little(quiet_lab: Lab, alice: Person) -> None:
    """Attack 24: with a stolen certificate, a frame of 1 GiB in some kilobytes, stored and read."""
    job = quiet_lab.sbatch("alice", "-w", "n1", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    begun = eventually(lambda: alice.card(job)["allocation"]["started"])
    started = datetime.fromisoformat(begun).timestamp()
    folder = quiet_lab.node("n1").agent.folder / "state"
    for server in quiet_lab.servers:
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    before = [_memory_bytes(server, "VmRSS") for server in quiet_lab.servers]
    sent = quiet_lab.node("n1").run(
        [
            *("env", f"PYTHONPATH={_HERE}", sys.executable, "-m", "tests.e2e.forge_chunk"),
            *(str(folder), "n1", str(job), str(started), "bomb"),
        ],
        user=AGENT_USER,
        check=False,
    )
    assert sent.returncode == 0, sent
    shown = alice.tries("logs", str(job))
    assert shown.code in {0, 76}, shown.err
    assert len(shown.out) < 2**20
    peaks = [_memory_bytes(server, "VmHWM") for server in quiet_lab.servers]
    grown = [peak - held for peak, held in zip(peaks, before, strict=True)]
    assert max(grown) <= MOST_GROWTH_BYTES, grown
