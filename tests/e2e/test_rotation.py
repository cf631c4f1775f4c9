"""Every certificate is exchanged while people follow their jobs, and nobody notices.

Those of the servers for people, the authority of nodes and replicas, and twice the nodes' own: once
to trust the next authority, and once by its signature.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from lab.agent import ClusterIdentity
from lab.certificates import SERVER_NAMES, Authority
from lab.files import give
from lab.laboratory import Lab
from lab.server import EXECUTABLE, Server
from lab.users import AGENT_USER, SERVER_USER
from lattice.adapters.pki.files import IdentityPaths
from lattice.wire.peerguard import is_signed_by
from tests.e2e.people import Person
from tests.e2e.put_right import NODES, administrator, linked, put_right
from tests.eventually import PATIENCE_S, eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

_CHECKOUT = Path(__file__).parents[2]
_PEOPLE = ("alice", "bob", "carol", "dave", "erin")
_STREAMS_EACH = 10
"""As many as one person may have."""
_OPEN = "~/not-yet"
_WRITE = f"i=0; while [ -e {_OPEN} ]; do echo $i; i=$((i+1)); sleep 0.3; done; echo $i"
_REVOKED = "certificate revoked"
_QUIET = {"end", "alive", "attempt_ended"}
"""Notes that tell nothing of a lost connection."""


@pytest.fixture
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(autouse=True)
def whole(quiet_lab: Lab, olga: Person) -> Iterator[None]:
    put_right(quiet_lab, olga)
    yield
    put_right(quiet_lab, olga)


class Follower:
    """One `lattice logs --follow` of one person; `file` has what it printed."""

    def __init__(self, lab: Lab, person: Person, job: int, file: Path) -> None:
        argv = ["lattice", "logs", str(job), "--follow", "-o", "json"]
        self._file = file
        with file.open("w") as stdout:
            self._process: subprocess.Popen[str] = lab.popen_as(
                person.name,
                argv,
                env=person.bearer,
                stdout=stdout.fileno(),
                stderr=subprocess.STDOUT,
            )

    @property
    def has_begun(self) -> bool:
        return self._file.stat().st_size > 0

    def records(self) -> list[dict[str, Any]]:
        """All that came, once the job is over; the command has succeeded."""
        code = self._process.wait(timeout=2 * PATIENCE_S)
        out = self._file.read_text()
        assert code == 0, out[-2000:]
        return [json.loads(line) for line in out.splitlines()]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _followed(lab: Lab, folder: Path) -> Iterator[list[Follower]]:
    """A job of each person, and each job followed ten times by its owner."""
    gates = [lab.layout.home / name / "not-yet" for name in _PEOPLE]
    for name, gate in zip(_PEOPLE, gates, strict=True):
        gate.touch()
        give(gate, name)
    followers: list[Follower] = []
    try:
        for number, name in enumerate(_PEOPLE):
            person = Person(lab, name).logged_in()
            job = lab.sbatch(name, "-w", NODES[number % len(NODES)], wrap=_WRITE)
            lab.wait_job_state(job, "RUNNING")
            followers += [
                Follower(lab, person, job, folder / f"{name}-{each}")
                for each in range(_STREAMS_EACH)
            ]
        eventually(lambda: all(each.has_begun for each in followers))
        yield followers
    finally:
        for gate in gates:
            gate.unlink(missing_ok=True)
        for each in followers:
            each.kill()


def _finish(lab: Lab, followers: Sequence[Follower]) -> None:
    """Every line once and in order, and nothing of a connection in between."""
    for name in _PEOPLE:
        (lab.layout.home / name / "not-yet").unlink()
    for each in followers:
        records = each.records()
        lines = [int(record["text"]) for record in records if record["type"] == "line"]
        assert lines == list(range(len(lines)))
        assert len(lines) > 20
        others = [record for record in records if record["type"] != "line"]
        assert {record.get("kind", record["type"]) for record in others} <= _QUIET, others


def _exchange_tls(lab: Lab, server: Server) -> None:
    """The certificate for people, as a site's tool would put it there."""
    fresh = Authority.load(lab.layout.certificates).issue(
        server.name, server.name, names=SERVER_NAMES, owner=SERVER_USER
    )
    assert fresh.certificate.exists()
    server.process.signal(signal.SIGHUP)


def _renew(lab: Lab, name: str) -> None:
    """The node's own certificate, and its link by the new one."""
    agent = lab.node(name).agent
    before = agent.process.log_file.read_text().count("linked to")
    renewing = [sys.executable, "-m", "tests.e2e.renew_certificate", str(agent.folder / "state")]
    lab.node(name).run(["env", f"PYTHONPATH={_CHECKOUT}", *renewing, name], user=AGENT_USER)
    agent.process.signal(signal.SIGHUP)
    eventually(lambda: agent.process.log_file.read_text().count("linked to") > before)


def _identity_of(lab: Lab, name: str) -> dict[str, Any]:
    file = lab.node(name).agent.folder / "state" / "identity.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _next_authority(lab: Lab) -> IdentityPaths:
    folder = lab.layout.state / "identity" / f"next-{time.time_ns()}"
    server = lab.servers[0]
    lab.control.room.run(
        [str(EXECUTABLE), "--config", str(server.config_file), "--next-identity", str(folder)],
        timeout_s=PATIENCE_S,
    )
    return IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")


def _replace(file: Path, content: bytes, owner: str) -> None:
    new = file.with_name(f".{file.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    give(new, owner)
    new.replace(file)


def _sign_with(identity: ClusterIdentity, successor: IdentityPaths) -> None:
    _replace(identity.paths.ca_key, successor.ca_key.read_bytes(), SERVER_USER)
    _replace(identity.paths.ca_cert, successor.ca_cert.read_bytes(), SERVER_USER)


@pytest.mark.long
@pytest.mark.spec("AUTH-9", "OPS-6")
def test_every_certificate_is_exchanged_under_fifty_streams_and_none_is_lost(
    quiet_lab: Lab, olga: Person, tmp_path: Path
) -> None:
    lab, identity = quiet_lab, ClusterIdentity(quiet_lab.layout)
    for name in NODES:
        # A certificate that was made elsewhere has no generation: each must have its own.
        eventually((lab.node(name).agent.folder / "state" / "identity.json").exists)
    pids = [each.process.pid for each in (*lab.servers, *(lab.node(n).agent for n in NODES))]
    with _followed(lab, tmp_path) as followers:
        assert len(followers) == 50
        for server in lab.servers:
            _exchange_tls(lab, server)
        successor = _next_authority(lab)
        old, new = identity.paths.ca_cert.read_bytes(), successor.ca_cert.read_bytes()
        _replace(identity.trust, old + new, SERVER_USER)
        for server in lab.servers:
            server.process.signal(signal.SIGHUP)
        for name in NODES:
            _renew(lab, name)
            eventually(
                lambda name=name: new.decode() in _identity_of(lab, name)["authorities"],
            )
        _sign_with(identity, successor)
        for server in lab.servers:
            server.process.signal(signal.SIGHUP)
        for name in NODES:
            _renew_until_signed(lab, name, new)
        assert set(linked(olga)) == set(NODES)
        _finish(lab, followers)
    now = [each.process.pid for each in (*lab.servers, *(lab.node(n).agent for n in NODES))]
    assert now == pids, "nothing was restarted"


def _renew_until_signed(lab: Lab, name: str, authority: bytes) -> None:
    """A server rereads the authority within seconds."""

    def by_the_new() -> bool:
        _renew(lab, name)
        pem = str(_identity_of(lab, name)["certificate"]).encode()
        return is_signed_by(x509.load_pem_x509_certificate(pem), authority)

    eventually(by_the_new, pause_s=3)


def _revoke(lab: Lab, olga: Person) -> float:
    """How many seconds pass until no server has a link of the node, nor takes a new one."""
    log = lab.node("n3").agent.process.log_file
    known = log.read_text().count(_REVOKED)
    begun = time.monotonic()
    assert olga.tries("admin", "revoke", "n3", "--reason", "stolen").code == 0
    try:
        eventually(lambda: "n3" not in linked(olga), pause_s=0.2)
        eventually(lambda: log.read_text().count(_REVOKED) > known)
        took_s = time.monotonic() - begun
        assert "n3" not in linked(olga)
        return took_s
    finally:
        assert olga.tries("admin", "reinstate", "n3").code == 0
        eventually(lambda: "n3" in linked(olga))


@pytest.mark.spec("AUTH-9")
def test_a_revoked_node_is_refused(lab: Lab, olga: Person) -> None:
    _revoke(lab, olga)


@pytest.mark.timing
@pytest.mark.spec("AUTH-9")
def test_a_revoked_node_is_refused_within_a_minute(lab: Lab, olga: Person) -> None:
    assert _revoke(lab, olga) <= 60
