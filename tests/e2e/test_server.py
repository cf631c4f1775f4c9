"""The server as a process: who it runs as, what it refuses, how it stops, whom it serves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.addresses import SERVER_GRPC_PORT, SERVER_REST_PORT
from lab.certificates import Authority
from lab.laboratory import Lab
from lab.server import Server
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

_CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def server(lab: Lab) -> Iterator[Server]:
    """The first replica; whatever a story did to it, it is up again afterwards."""
    yield lab.servers[0]
    lab.servers[0].start()


@pytest.mark.threat("slurm-account")
def test_it_is_nobody_special(lab: Lab) -> None:
    status = Path(f"/proc/{lab.servers[0].process.pid}/status").read_text()
    facts = dict(line.split(":", 1) for line in status.splitlines())
    uids = facts["Uid"].split()
    assert "0" not in uids
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0


@pytest.mark.story
@pytest.mark.spec("OPS-7")
def test_check_config_names_every_problem_at_once(lab: Lab) -> None:
    good = lab.servers[0].config_file
    command = ["lattice-server", "--check-config", "--config"]
    done = lab.run_as("lattice", [*command, str(good)])
    *warnings, last = done.stdout.splitlines()
    assert (done.returncode, last) == (0, "configuration: ok"), done
    assert all(each.startswith("warning: ") for each in warnings), done
    broken = yaml.safe_load(good.read_text())
    broken["api"] |= {"oidc_hmac_secret": "short", "tls_key": "/nowhere.key", "rest_lisen": "x"}
    broken["vclusters"][0]["kind"] = "quantum"
    file = lab.layout.state / "broken.yaml"
    file.write_text(yaml.safe_dump(broken))
    done = lab.run_as("lattice", [*command, str(file)])
    assert done.returncode == 78
    for named in ("api.oidc_hmac_secret", "api.tls_key", "api.rest_lisen", "vclusters"):
        assert named in done.stdout, (named, done.stdout)
    assert "did you mean rest_listen" in done.stdout
    start = lab.run_as("lattice", ["lattice-server", "--config", str(file)])
    assert start.returncode == 78
    file.unlink()


@pytest.mark.story
@pytest.mark.spec("OPS-6")
def test_certificates_are_renewed_without_a_restart(lab: Lab) -> None:
    server = lab.servers[0]
    config = yaml.safe_load(server.config_file.read_text())
    cert, key = Path(config["api"]["tls_cert"]), Path(config["api"]["tls_key"])
    before = _served_certificate(lab)
    pid = server.process.pid
    fresh = Authority.load(lab.layout.certificates).issue(
        "renewed", "server-1", names=_names(lab), owner="lattice"
    )
    kept = [shutil.copy2(file, f"{file}.kept") for file in (cert, key)]
    try:
        for new, old in ((fresh.certificate, cert), (fresh.key, key)):
            old.write_bytes(Path(new).read_bytes())
        server.process.signal(signal.SIGHUP)
        after = eventually(lambda: _served_certificate(lab), lambda seen: seen != before)
        assert after != before
        assert server.process.pid == pid
        assert Person(lab, "alice").logged_in().tries("status").code == 0
    finally:
        for copy, old in zip(kept, (cert, key), strict=True):
            old.write_bytes(Path(copy).read_bytes())
            Path(copy).unlink()
        server.process.signal(signal.SIGHUP)


def _names(lab: Lab) -> tuple[str, ...]:
    return (lab.servers[0].address, "localhost", "127.0.0.1")


def _served_certificate(lab: Lab) -> str:
    with lab.enter_network():
        return ssl.get_server_certificate((lab.servers[0].address, SERVER_REST_PORT))


def test_a_stop_is_orderly_and_a_death_is_told(server: Server, alice: Person) -> None:
    server.stop()
    log = server.process.log_file.read_text()
    assert re.search(r'"event": "stopped"', log.splitlines()[-1])
    # Asked alone: a second server would answer in its place.
    alone = {**alice.bearer, "LATTICE_API_URL": server.url}
    said = alice.lattice("status", env=alone)
    assert said.code == 75
    assert "Hint:" in said.err
    server.start()
    eventually(lambda: alice.tries("status").code, lambda code: code == 0)


def test_the_next_replica_is_asked_when_one_is_gone(lab: Lab, alice: Person) -> None:
    alive = f"https://{lab.servers[0].address}:{SERVER_REST_PORT}"
    urls = f"https://10.77.0.2:{SERVER_REST_PORT + 1},{alive}"
    said = alice.lattice("status", env={**alice.bearer, "LATTICE_API_URL": urls})
    assert said.code == 0, said


@pytest.mark.story
@pytest.mark.spec("AUTH-6", "AUTH-10")
def test_services_call_over_grpc_under_the_same_rules(quiet_lab: Lab) -> None:
    job = quiet_lab.sbatch("alice", wrap="sleep 60")
    quiet_lab.wait_job_state(job, "RUNNING")
    token = str(quiet_lab.oidc.token("alice")["access_token"])
    robot = str(quiet_lab.oidc.robot_token()["access_token"])
    address = f"{quiet_lab.servers[0].address}:{SERVER_GRPC_PORT}"
    # In a process of its own: gRPC connects from threads that stay in the network they began in.
    done = quiet_lab.run_as(
        "alice",
        ["python", "-c", _GRPC_CLIENT, address, str(job)],
        env={"TOKENS": "\n".join((token, "", f"{token}x", robot))},
    )
    assert done.stdout.split() == ["alice", "UNAUTHENTICATED", "UNAUTHENTICATED", "NOT_FOUND"], done


_GRPC_CLIENT = """
import os, sys
import grpc
from lattice.wire.v1 import allocations_pb2, allocations_pb2_grpc

address, job = sys.argv[1:]
with open(os.environ["LATTICE_CA"], "rb") as roots:
    credentials = grpc.ssl_channel_credentials(roots.read())
with grpc.secure_channel(address, credentials) as channel:
    stub = allocations_pb2_grpc.AllocationServiceStub(channel)
    for token in os.environ["TOKENS"].split("\\n"):
        metadata = (("authorization", "Bearer " + token),) if token else ()
        try:
            request = allocations_pb2.GetAllocationRequest(id=job)
            card = stub.GetAllocation(request, metadata=metadata, timeout=20)
            print(card.allocation.user)
        except grpc.RpcError as refusal:
            print(refusal.code().name)
"""


@pytest.mark.threat("network")
def test_plain_text_is_not_spoken(lab: Lab) -> None:
    url = f"http://{lab.servers[0].address}:{SERVER_REST_PORT}/healthz"
    said = lab.run_as("alice", ["curl", "-s", "-m", "5", url])
    assert said.returncode != 0
    assert said.stdout == ""


@pytest.mark.story
@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request")
def test_half_requests_are_closed_and_nobody_else_notices(lab: Lab, alice: Person) -> None:
    """Attack 39: 200 connections with half a head, a length named twice, another's `Host`."""
    hostile = lab.control.room.popen(
        [
            *(sys.executable, "-m", "tests.e2e.half_requests"),
            *(lab.servers[0].address, str(SERVER_REST_PORT), "200"),
        ],
        cwd=str(_CHECKOUT),
        env={"PYTHONPATH": str(_CHECKOUT)},
    )
    assert hostile.stdout is not None
    assert hostile.stdout.readline() == "open\n"
    assert alice.tries("whoami").code == 0
    out, err = hostile.communicate(timeout=200)
    assert hostile.returncode == 0, err
    answers = json.loads(out)
    assert {each.split(" ")[1] for each in answers["halves"]} == {"408"}
    assert answers["smuggling"].startswith("HTTP/1.1 400 ")
    assert answers["leading_out"].startswith("HTTP/1.1 404 ")
    assert "evil" not in answers["leading_out"]
