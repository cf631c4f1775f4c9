"""What one finds who asks a server for less than it gives: old TLS, plain text, addresses.

Every port of a server is tried, and every answer is searched for a way around the server.
"""

from __future__ import annotations

import http.client
import json
import pwd
import re
import ssl
from pathlib import Path

import pytest

from lab import addresses
from lab.laboratory import Lab
from lab.seaweedfs import ACCESS_KEY, SECRET_KEY
from lab.users import SERVER_USER
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

PORTS = {
    "rest": addresses.SERVER_REST_PORT,
    "grpc": addresses.SERVER_GRPC_PORT,
    "agents": addresses.SERVER_AGENT_PORT,
    "lanes": addresses.SERVER_LANE_PORT,
}
OPENAPI = Path(__file__).parents[1] / "fixtures" / "rest" / "openapi.json"
_SECONDS = 4.0


@pytest.mark.spec("OPS-6")
@pytest.mark.threat("downgrade")
def test_no_port_speaks_old_tls_or_plain_text(lab: Lab) -> None:
    curl = ["curl", "-sS", "--insecure", "--max-time", "5"]
    for port in PORTS.values():
        address = f"{lab.servers[0].address}:{port}"
        for words in (
            [
                "--tlsv1.0",
                "--tls-max",
                "1.0",
                "--ciphers",
                "ALL:@SECLEVEL=0",
                f"https://{address}/",
            ],
            [
                "--tlsv1.1",
                "--tls-max",
                "1.1",
                "--ciphers",
                "ALL:@SECLEVEL=0",
                f"https://{address}/",
            ],
            [f"http://{address}/v1/auth/discovery"],
            ["--http2-prior-knowledge", f"http://{address}/v1/auth/discovery"],
        ):
            done = lab.control.room.run([*curl, *words], check=False)
            assert "issuer" not in done.stdout, done
            assert done.returncode != 0 or "http://" in words[-1], done
            assert "HTTP/1.1 200" not in done.stdout, done


@pytest.mark.story
@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("root-port")
def test_no_process_of_root_listens_beside_a_server(lab: Lab) -> None:
    uid = pwd.getpwnam(SERVER_USER).pw_uid
    shown = lab.control.room.run(["ss", "--no-header", "-lntupe"]).stdout.splitlines()
    ours = [line for line in shown if re.search(r'\(\("(lattice|python)', line)]
    listening = {int(line.split()[4].rpartition(":")[2]) for line in ours}
    assert listening == {*PORTS.values(), addresses.SERVER_METRICS_PORT}
    assert {found[1] for line in ours if (found := re.search(r"uid:(\d+)", line))} == {str(uid)}
    for process in (lab.gate.process, lab.node("n1").agent.helper.process):
        sockets = {
            link.readlink().name
            for link in Path(f"/proc/{process.pid}/fd").iterdir()
            if link.readlink().name.startswith("socket:")
        }
        tables = (
            Path(f"/proc/{process.pid}/net/{each}") for each in ("tcp", "tcp6", "udp", "udp6")
        )
        inodes = {
            f"socket:[{line.split()[9]}]"
            for table in tables
            for line in table.read_text().splitlines()[1:]
        }
        assert sockets
        assert not sockets & inodes
    mode = lab.gate.socket.stat()
    assert (mode.st_uid, mode.st_mode & 0o007) == (0, 0)


@pytest.mark.threat("signed-address")
def test_no_answer_leads_to_the_object_store(lab: Lab, alice: Person) -> None:
    job = lab.sbatch("alice", wrap="echo stored; sleep 1")
    lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.tries("logs", str(job)).out, lambda out: "stored" in out)
    olga = administrator(lab)
    secrets = (
        *(ACCESS_KEY, SECRET_KEY, "X-Amz-", "Signature=", "AWSAccessKeyId", "presign"),
        lab.seaweedfs.endpoint.partition("://")[2],
    )
    values = {"id": str(job), "name": "n1"}
    queries = {"ids": f"{job},{job}", "node": "n1", "query": "up", "match[]": "up"}
    asked = 0
    for path, methods in json.loads(OPENAPI.read_text())["paths"].items():
        if "get" not in methods or path.endswith("/attach"):
            continue
        needed = [
            f"{each['name']}={queries[each['name']]}"
            for each in methods["get"].get("parameters", ())
            if each["in"] == "query" and each["name"] in queries
        ]
        place = path.format_map(values) + (f"?{'&'.join(needed)}" if needed else "")
        for person in (alice, olga):
            head, body = _answer(lab, person, place)
            asked += 1
            for each in secrets:
                assert each.lower() not in (head + body).lower(), (place, each)
    assert asked > 60


def _answer(lab: Lab, person: Person, path: str) -> tuple[str, str]:
    """Head and beginning of the body, however it is answered; streams are left after a while."""
    trust = ssl.create_default_context(cafile=str(lab.layout.certificates / "ca.crt"))
    server = lab.servers[0]
    line = http.client.HTTPSConnection(
        server.address, addresses.SERVER_REST_PORT, context=trust, timeout=_SECONDS
    )
    headers = {"Authorization": f"Bearer {person.bearer['LATTICE_TOKEN']}"}
    body = b""
    with lab.enter_network():
        try:
            line.request("GET", path, headers=headers)
            answer = line.getresponse()
            while part := answer.read1(65536):
                body += part
        except TimeoutError:
            return "", body.decode(errors="replace")
        finally:
            line.close()
    return str(answer.headers), body.decode(errors="replace")
