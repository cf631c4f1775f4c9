"""scripts/deploy on real parts: an etcd from what was written, an agent in the root of an image."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lattice.domain.joinkey import JoinKey, written
from tests.eventually import eventually
from tests.integration.unit_packages import packages_of_units

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
MEMBERS = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that install-quorum.sh writes for three members on loopback."""
    folder = tmp_path_factory.mktemp("quorum")
    named = [each for name, host in MEMBERS.items() for each in ("--member", f"{name}={host}")]
    ports = ("--client-port", str(free_port()), "--peer-port", str(free_port()))
    argv = [DEPLOY / "install-quorum.sh", *named, *ports, "--data", folder / "data"]
    subprocess.run([*argv, "--out", folder / "out"], check=True, capture_output=True)
    return folder / "out"


def free_port() -> int:
    """A port below those that Linux gives to outgoing connections."""
    for port in range(23790, 32000):
        try:
            for host in MEMBERS.values():
                with socket.socket() as probe:
                    probe.bind((host, port))
        except OSError:
            continue
        if port not in taken:
            taken.add(port)
            return port
    raise AssertionError("no port is free")


taken: set[int] = set()


def installed(quorum: Path, name: str, root: Path) -> Path:
    """The member's folder, installed below a root that has what the distribution brings."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/lib/systemd/system").mkdir(parents=True)
    (root / "etc").mkdir()
    shutil.copy("/etc/passwd", root / "etc/passwd")
    (root / "usr/bin/etcd").symlink_to("/bin/true")
    unit = root / "usr/lib/systemd/system/etcd.service"
    unit.write_text(
        "[Service]\nType=notify\nUser=etcd\nExecStart=/usr/bin/etcd\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    argv = [DEPLOY / "install-quorum.sh", "--install", quorum / name, "--root", root]
    subprocess.run(argv, check=True, capture_output=True)
    return root / "etc/etcd/lattice"


@pytest.fixture(scope="module")
def members(quorum: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Three members that run from what was installed; their addresses for clients."""
    running = []
    try:
        for name in MEMBERS:
            folder = installed(quorum, name, tmp_path_factory.mktemp("roots") / name)
            argv = ["etcd", "--config-file", folder / "etcd.yaml"]
            with (folder.parent / "log").open("wb") as log:
                member = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
                running.append(member)
        written_down = [
            yaml.safe_load((quorum / each / "etcd.yaml").read_text()) for each in MEMBERS
        ]
        yield [each["advertise-client-urls"] for each in written_down]
    finally:
        for process in running:
            process.kill()
            process.wait()


def etcdctl(endpoints: list[str], *argv: str, identity: Path) -> subprocess.CompletedProcess[str]:
    key = ["--cacert", identity / "ca.crt", "--cert", identity / "client.crt"]
    key += ["--key", identity / "client.key", "--command-timeout=5s"]
    return subprocess.run(
        ["etcdctl", "--endpoints", ",".join(endpoints), *key, *argv],
        capture_output=True,
        text=True,
        check=False,
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.story
@pytest.mark.spec("OPS-8")
def test_three_members_agree_from_what_was_written(quorum: Path, members: list[str]) -> None:
    servers = quorum / "servers"

    def healthy() -> int:
        done = etcdctl(members, "endpoint", "health", identity=servers)
        return (done.stdout + done.stderr).count("is healthy")

    eventually(healthy, lambda count: count == 3, pause_s=0.5)
    assert etcdctl(members[:1], "put", "/lattice/x", "1", identity=servers).returncode == 0
    assert etcdctl(members[2:], "get", "/lattice/x", identity=servers).stdout == "/lattice/x\n1\n"


@pytest.mark.spec("OPS-8")
def test_nobody_else_is_a_client_or_a_member(
    quorum: Path, members: list[str], tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    shutil.copytree(quorum / "servers", stranger)
    for name in ("client.crt", "client.key"):
        shutil.copy(quorum / "a" / name.replace("client", "peer"), stranger / name)
    assert etcdctl(members, "get", "x", identity=stranger).returncode != 0
    assert "etcdserver" in peer_answer(quorum, quorum / "b" / "peer")
    assert "etcdserver" not in peer_answer(quorum, quorum / "servers" / "client")


def peer_answer(quorum: Path, certificate: Path) -> str:
    """What a member answers to another one with this certificate."""
    config = yaml.safe_load((quorum / "a" / "etcd.yaml").read_text())
    address = config["listen-peer-urls"].removeprefix("https://")
    argv = ["openssl", "s_client", "-quiet", "-ign_eof", "-connect", address]
    argv += ["-CAfile", str(quorum / "a" / "peer-ca.crt")]
    return subprocess.run(
        [*argv, "-cert", f"{certificate}.crt", "-key", f"{certificate}.key"],
        input="GET /version HTTP/1.0\r\n\r\n",
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.spec("OPS-8")
def test_keys_are_for_their_owners_and_never_replaced(quorum: Path, tmp_path: Path) -> None:
    for key in quorum.rglob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
    root = tmp_path / "root"
    folder = installed(quorum, "a", root)
    assert all(each.stat().st_mode & 0o077 == 0 for each in folder.iterdir())
    drop_in = (root / "etc/systemd/system/etcd.service.d/lattice.conf").read_text()
    assert "--config-file /etc/etcd/lattice/etcd.yaml" in drop_in
    assert (root / "etc/systemd/system/multi-user.target.wants/etcd.service").is_symlink()
    again = [DEPLOY / "install-quorum.sh", "--install", quorum / "a", "--root", root]
    assert subprocess.run(again, capture_output=True, check=False).returncode == 0
    other = [*again[:2], quorum / "b", *again[3:]]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "has another member" in refused.stderr


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    return packages_of_units(tmp_path / "built")


@pytest.mark.story
@pytest.mark.spec("OPS-8")
def test_an_image_gets_agent_key_and_units(packages: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    (root / "var/lib/dpkg/status").touch()
    key = written(JoinKey(servers=("s:50051",), token="t0ken")) + "\n"
    (tmp_path / "join.key").write_text(key)
    (tmp_path / "agent.yaml").write_text("# of the site\n")
    argv = ["--packages", packages, "--join-key", tmp_path / "join.key", "--root", root]
    argv += ["--config", tmp_path / "agent.yaml"]
    for _ in range(2):  # the second time changes nothing
        done = subprocess.run(
            [DEPLOY / "install-compute.sh", *argv], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    file = root / "etc/lattice/join.key"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (key, 0o600)
    assert (root / "etc/lattice/agent.yaml").read_text() == "# of the site\n"
    wanted = root / "etc/systemd/system"
    assert (wanted / "multi-user.target.wants/lattice-enrol.service").is_symlink()
    assert (wanted / "multi-user.target.wants/lattice-agent.service").is_symlink()
    assert (wanted / "sockets.target.wants/lattice-helper.socket").is_symlink()
    status = (root / "var/lib/dpkg/status").read_text()
    assert status.count("Status: install ok installed") == 2
