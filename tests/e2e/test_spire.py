"""A node whose identity comes from SPIRE alone: linked, rotated, refused, revoked.

The Workload API is that of the tests (`tests/fakes/spire.py`), which `tests/contract` holds against
SPIFFE's protocol.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from lab.agent import SPIFFE_DOMAIN, Agent, ClusterIdentity
from lab.laboratory import Lab
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked, put_right
from tests.eventually import eventually
from tests.fakes.spire import MadeSvid, SpiffeAuthority, write_svid

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

_CHECKOUT = Path(__file__).parents[2]
_NODE = "n2"
_TAKEN = "certificate from SPIRE"


class SpireAgent:
    """The SPIRE agent of a node: a process that serves what `give` wrote last."""

    def __init__(self, folder: Path) -> None:
        self.authority = SpiffeAuthority(SPIFFE_DOMAIN)
        self.folder = folder
        self.socket = folder / "api.sock"
        self._process: subprocess.Popen[str] | None = None

    def give(self, svid: MadeSvid) -> None:
        write_svid(self.folder, svid, self.authority.bundle)

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.fakes.spire", str(self.socket), str(self.folder)]
        self._process = subprocess.Popen(argv, cwd=_CHECKOUT, text=True)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)


@pytest.fixture
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture
def spire(lab: Lab, olga: Person) -> Iterator[SpireAgent]:
    put_right(lab, olga)
    agent = lab.node(_NODE).agent
    folder = agent.folder / "spire"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    made = SpireAgent(folder)
    ClusterIdentity(lab.layout).spiffe_bundle.write_bytes(made.authority.bundle_pem)
    made.start()
    yield made
    made.stop()
    agent.changes.clear()
    agent.kill()
    agent.start_anew()
    # What a story revoked and did not take back.
    olga.tries("admin", "reinstate", _NODE)
    put_right(lab, olga)


def _events(agent: Agent) -> list[dict[str, str]]:
    found = []
    for line in agent.process.log_file.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def _reasons(agent: Agent) -> list[str]:
    """Why SPIRE gave no identity, each as often as it is in the log."""
    return [e.get("reason", "") for e in _events(agent) if e["event"] == "no identity from SPIRE"]


def _count(agent: Agent, event: str) -> int:
    return sum(each["event"] == event for each in _events(agent))


def _start_with_spire_alone(agent: Agent, spire: SpireAgent) -> None:
    """As a node whose image has neither a join key nor a certificate of its own."""
    agent.changes = {
        "spiffe": {"socket": f"unix://{spire.socket}"},
        "bootstrap": {"cert": None, "key": None, "ca": str(agent.folder / "ca.crt")},
    }
    agent.kill()
    agent.process.log_file.write_text("")
    agent.start_anew()


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
def test_a_node_with_an_identity_from_spire_alone_serves_and_can_be_revoked(
    lab: Lab, olga: Person, alice: Person, spire: SpireAgent
) -> None:
    agent, authority = lab.node(_NODE).agent, spire.authority
    _start_with_spire_alone(agent, spire)
    eventually(lambda: _reasons(agent), lambda found: any("SPIRE" in each for each in found))
    assert _NODE not in linked(olga), "it has nothing else to show"
    spire.give(authority.node(_NODE))
    eventually(lambda: linked(olga), lambda found: _NODE in found)
    assert not (agent.folder / "state" / "identity.json").exists()

    job = lab.sbatch("alice", "-w", _NODE, wrap=script("s", 60, pause_s=0.1))
    following = lab.popen_as("alice", ["lattice", "logs", "-f", str(job)], env=alice.bearer)
    spire.give(authority.node(_NODE))
    eventually(lambda: _count(agent, _TAKEN), lambda count: count >= 1)
    out, err = following.communicate(timeout=120)
    assert numbers((line.partition(": ")[2] or line for line in out.splitlines()), "s") == list(
        range(60)
    ), err

    before = _count(agent, _TAKEN)
    refused = {
        authority.node("n3"): "n3, and none with the path /lattice/node/n2",
        authority.node(_NODE, timedelta(hours=-2)): "lattice/node/n2 expired 2 h ago",
        authority.svid(f"/lattice/node/{_NODE}", domain="other.org"): "trust domain is other.org",
    }
    for svid, reason in refused.items():
        spire.give(svid)
        eventually(lambda: _reasons(agent)[-1], lambda found, reason=reason: reason in found)
    assert _count(agent, _TAKEN) == before
    assert _NODE in linked(olga), "what works stays until it ends"
    served = "".join(each.process.log_file.read_text() for each in lab.servers)
    assert f"its trust domain is other.org, not {SPIFFE_DOMAIN}" in served

    assert olga.tries("admin", "revoke", _NODE, "--reason", "stolen").code == 0
    eventually(lambda: linked(olga), lambda found: _NODE not in found)
    spire.give(authority.node(_NODE))
    eventually(agent.process.log_file.read_text, lambda text: "revoked; admin" in text)
    assert _NODE not in linked(olga)
    assert olga.tries("admin", "reinstate", _NODE).code == 0
    eventually(lambda: linked(olga), lambda found: _NODE in found)
