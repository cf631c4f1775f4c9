"""The engines of the lab are the real ones, and faults on them are real faults."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request

import pytest

from lab.addresses import CONTROL, ETCD_CLIENT_PORTS, SEAWEED_S3_PORT, SLURMD_PORT
from lab.laboratory import Lab
from lab.node import Node
from lab.seaweedfs import ACCESS_KEY, BUCKET, SECRET_KEY
from lab.victoriametrics import PASSWORD, USERNAME
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(300)]

_SEND = "import socket; socket.socket(2, 2).sendto(b'{}', ('10.77.0.1', {}))"


def test_people_see_their_own_jobs_only(engines: Lab) -> None:
    jobs = {user: engines.sbatch(user, wrap="sleep 600") for user in ("alice", "bob")}
    for job in jobs.values():
        engines.wait_job_state(job, "RUNNING")
    for user, job in jobs.items():
        live = engines.run_as(user, ["squeue", "-h", "-o", "%A"]).stdout.split()
        assert live == [str(job)]
        assert _past(engines, user, str(job)) & {str(other) for other in jobs.values()} == {
            str(job)
        }
    seen = _ask_slurmrestd(engines, "lattice", "/slurm/v0.0.38/jobs")["jobs"]
    assert {job["job_id"] for job in seen} >= set(jobs.values())
    engines.jobs.cancel_all()


def _past(lab: Lab, user: str, expected: str) -> set[str]:
    """What sacct shows the user, once slurmdbd has heard of the expected job."""
    return eventually(
        lambda: set(lab.run_as(user, ["sacct", "-n", "-X", "-a", "-o", "jobid"]).stdout.split()),
        lambda seen: expected in seen,
        pause_s=0.2,
    )


def test_slurmrestd_trusts_its_own_account_only(engines: Lab) -> None:
    url = "http://localhost/slurm/v0.0.38/ping"
    ask = ["curl", "-s", "-m", "5", "--unix-socket", str(engines.slurm.files.rest_socket), url]
    assert (
        "pings"
        in engines.ctl(
            ["setpriv", "--reuid=lattice", "--regid=lattice", "--init-groups", *ask]
        ).stdout
    )
    assert "pings" not in engines.run_as("alice", ask).stdout


def _ask_slurmrestd(lab: Lab, user: str, path: str) -> dict[str, list[dict[str, object]]]:
    with lab.enter_network():
        request = urllib.request.Request(
            f"http://{CONTROL}:6820{path}",
            headers={"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": lab.slurm.token(user)},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            told: dict[str, list[dict[str, object]]] = json.load(answer)
    return told


def test_accounts_tenants_and_coordinators(engines: Lab) -> None:
    show = ["sacctmgr", "-nP", "show", "account", "withcoord", "format=account,coord"]
    coordinators = dict(line.split("|") for line in engines.ctl(show).stdout.splitlines())
    assert coordinators == {
        **dict.fromkeys(("root", "physics", "research", "biology", "genomics"), ""),
        "theory": "carol",
    }
    show = ["sacctmgr", "-nP", "show", "assoc", "format=account,parentname,user"]
    rows = {tuple(line.split("|")) for line in engines.ctl(show).stdout.splitlines()}
    assert {
        ("research", "physics", ""),
        ("theory", "physics", ""),
        ("genomics", "biology", ""),
    } < rows
    people = {(account, user) for account, _, user in rows if user}
    assert people == {
        ("root", "root"), ("root", "lattice"), ("research", "alice"), ("theory", "dave"),
        ("genomics", "bob"), ("genomics", "carol"), ("genomics", "erin"),
    }  # fmt: skip
    refused = engines.run_as("alice", ["sbatch", "-A", "genomics", "--wrap=true"])
    assert refused.returncode != 0


def test_topology_has_two_leaf_switches(engines: Lab) -> None:
    lines = engines.slurm.scontrol("show", "topology").splitlines()
    switches = {line.split()[0]: line for line in lines}
    assert "Nodes=n1,n2" in switches["SwitchName=s1"]
    assert "Nodes=n3" in switches["SwitchName=s2"]
    assert "Switches=s1,s2" in switches["SwitchName=root"]


def test_gpus_of_a_job_are_the_only_ones_it_may_open(engines: Lab) -> None:
    devices = engines.slurm.files.devices
    try_all = f"for d in {devices}/nvidia*; do (: <$d) 2>&1 | grep -c 'not permitted'; done; true"
    job = engines.sbatch("alice", "--gres=gpu:1", "-o", "gpus.out", wrap=try_all)
    engines.wait_job_state(job, "COMPLETED")
    assert (engines.layout.home / "alice" / "gpus.out").read_text().split() == ["0", "1", "1", "1"]


def test_a_used_job_id_comes_again(engines: Lab) -> None:
    first = engines.sbatch("alice", wrap="true")
    engines.wait_job_state(first, "COMPLETED")
    engines.slurm.reset_controller(first_job_id=first)
    second = engines.sbatch("bob", wrap="true")
    assert second == first
    engines.wait_job_state(second, "COMPLETED")
    show = ["sacct", "-n", "-P", "-X", "-D", "-a", "-j", str(first), "-o", "user,state"]

    def rows() -> list[str]:
        return engines.ctl(show).stdout.split()

    found = eventually(rows, lambda found: "bob|COMPLETED" in found, pause_s=0.2)
    assert sorted(found) == ["alice|COMPLETED", "bob|COMPLETED"]


def test_controller_frozen_and_thawed(engines: Lab) -> None:
    ask = ["timeout", "2", "squeue", "-h"]
    engines.slurm.ctld.freeze()
    assert engines.ctl(ask, check=False).returncode == 124
    engines.slurm.ctld.thaw()
    assert engines.ctl(ask, check=False).returncode == 0


def test_a_node_that_lost_power_comes_back(engines: Lab) -> None:
    node = engines.node("n2")
    node.power_cut()
    assert not node.alive
    assert not engines.network.accepts(SLURMD_PORT, node.address)
    node.start()
    engines.slurm.wait_nodes(["n2"])
    job = engines.sbatch("alice", "-w", "n2", wrap="true")
    engines.wait_job_state(job, "COMPLETED")


def test_slurmd_dies_and_starts_again_while_its_node_stays(engines: Lab) -> None:
    node = engines.node("n3")
    pid_1 = node.pid
    node.slurmd.kill()
    assert node.run(["pgrep", "-x", "slurmd"], check=False).stdout == ""
    node.slurmd.up()
    engines.slurm.wait_nodes(["n3"])
    job = engines.sbatch("alice", "-w", "n3", wrap="true")
    engines.wait_job_state(job, "COMPLETED")
    assert node.pid == pid_1


def test_a_frozen_node_does_not_answer(engines: Lab) -> None:
    node = engines.node("n1")
    node.freeze()
    with engines.enter_network(), socket.create_connection((node.address, SLURMD_PORT), 2) as line:
        line.settimeout(1)
        with pytest.raises(TimeoutError):
            line.recv(1)
    node.thaw()
    engines.slurm.wait_nodes(["n1"])


def test_a_link_is_cut_in_the_direction_asked(engines: Lab) -> None:
    node = engines.node("n1")
    with engines.enter_network():
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listener:
        listener.bind((CONTROL, 0))
        listener.settimeout(1)
        assert _arrives(node, listener, "before")  # also fills the neighbour tables
        assert engines.network.accepts(SLURMD_PORT, node.address)

        node.cut_off("to_node")
        assert _arrives(node, listener, "one way")
        assert not engines.network.accepts(SLURMD_PORT, node.address)

        node.cut_off("from_node")
        assert not _arrives(node, listener, "other way")

        node.cut_off()
        assert not _arrives(node, listener, "none")
        assert engines.network.accepts(SLURMD_PORT, engines.node("n2").address)

        node.heal()
        assert _arrives(node, listener, "after")
        assert engines.network.accepts(SLURMD_PORT, node.address)


def _arrives(node: Node, listener: socket.socket, word: str) -> bool:
    port = listener.getsockname()[1]
    node.run(["python3", "-c", _SEND.format(word, port)])
    try:
        return listener.recv(100).decode() == word
    except TimeoutError:
        return False


def test_a_port_is_cut_and_healed(engines: Lab) -> None:
    engines.network.cut_off_port(SEAWEED_S3_PORT)
    assert not engines.network.accepts(SEAWEED_S3_PORT)
    engines.network.heal_port(SEAWEED_S3_PORT)
    assert engines.network.accepts(SEAWEED_S3_PORT)


def test_etcd_refuses_a_client_without_certificate(engines: Lab) -> None:
    client = engines.etcd.client
    anonymous = ssl.create_default_context(cafile=str(client.authority))
    known = ssl.create_default_context(cafile=str(client.authority))
    known.load_cert_chain(client.certificate, client.key)
    for port in ETCD_CLIENT_PORTS:
        assert _greeted(engines, known, port)
        assert not _greeted(engines, anonymous, port)


def _greeted(lab: Lab, context: ssl.SSLContext, port: int) -> bool:
    # TLS 1.3 tells a client that its certificate is missing only when it reads.
    try:
        with (
            lab.enter_network(),
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return line.recv(100).startswith(b"HTTP/1.1 200")
    except (ssl.SSLError, ConnectionError):
        return False


def test_etcd_goes_on_without_one_member(engines: Lab) -> None:
    client = engines.etcd.client
    etcdctl = [
        *("env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={','.join(engines.etcd.endpoints)}"),
        *(f"--cacert={client.authority}", f"--cert={client.certificate}", f"--key={client.key}"),
    ]
    engines.ctl([*etcdctl, "put", "a", "1"])
    engines.etcd.members[0].kill()
    # It may have been the leader: a write sent before the next is elected fails, once.
    eventually(lambda: engines.ctl([*etcdctl, "put", "a", "2"], check=False).returncode == 0)
    engines.etcd.members[0].up()
    assert engines.ctl([*etcdctl, "get", "a", "--print-value-only"]).stdout.strip() == "2"


def test_the_object_store_keeps_what_its_account_wrote(engines: Lab) -> None:
    url = f"{engines.seaweedfs.endpoint}/{BUCKET}/folder/object"
    curl = ["curl", "-sS", "-m", "20", "--aws-sigv4", "aws:amz:us-east-1:s3"]
    signed = [*curl, "--user", f"{ACCESS_KEY}:{SECRET_KEY}"]
    digest = f"x-amz-content-sha256: {hashlib.sha256(b'kept').hexdigest()}"
    engines.ctl([*signed, "-f", "-X", "PUT", "-H", digest, "--data-binary", "kept", url])
    assert engines.ctl([*signed, "-f", url]).stdout == "kept"
    code = ["-o", "/dev/null", "-w", "%{http_code}"]
    assert engines.ctl([*curl, *code, "--user", "LATTICEKEY:wrong", url]).stdout == "403"


def test_the_metric_store_answers_what_it_was_told(engines: Lab) -> None:
    endpoint = engines.victoriametrics.endpoint
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        engines.enter_network(),
        pytest.raises(urllib.error.HTTPError, match="401"),
    ):
        opener.open(f"{endpoint}/api/v1/query?query=lab_test", timeout=60)
    basic = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
    opener.addheaders = [("Authorization", f"Basic {basic}")]
    with engines.enter_network():
        write = urllib.request.Request(
            f"{endpoint}/api/v1/import/prometheus", b'lab_test{a="b"} 7\n'
        )
        opener.open(write, timeout=60).close()
        # Not asked before it must be there: a miss is remembered for seconds.
        time.sleep(2.2)
        ask = f"{endpoint}/api/v1/query?query=lab_test"
        with opener.open(ask, timeout=60) as answer:
            (series,) = json.load(answer)["data"]["result"]
    assert series["metric"]["a"] == "b"
    assert series["value"][1] == "7"
