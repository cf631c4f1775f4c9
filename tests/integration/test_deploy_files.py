"""Deployment files and snippets of the documents, under the programs that they are for.

`scripts/setup long` installs those. What pip has goes into an environment of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme

from scripts.packaging.command import CACHE
from tests.eventually import eventually
from tests.integration.package_root import PackageRoot
from tests.integration.unit_packages import packages_of_units

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / "infra" / "ansible"
GCP = ROOT / "infra" / "gcp"
PROXIES = ROOT / "docs" / "operate" / "proxies.md"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="session")
def tools() -> Path:
    """The programs of requirements/deploy.txt, installed once."""
    wanted = ROOT / "requirements" / "deploy.txt"
    folder = CACHE / f"deploy-{sha256(wanted.read_bytes()).hexdigest()[:8]}"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "-q", "-r", wanted], check=True)
        (folder / "done").touch()
    return folder / "bin"


def run(*argv: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        argv,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.spec("OPS-8")
def test_scripts_are_clean() -> None:
    scripts = [*(ROOT / "scripts/deploy").iterdir(), *(GCP / "startup").glob("*.sh")]
    run("shellcheck", "-x", *scripts)


@pytest.mark.spec("OPS-8")
def test_files_for_the_cloud_are_read(tools: Path) -> None:
    files = [*GCP.glob("*.tf"), *(GCP / "packer").iterdir()]
    assert len(files) >= 5
    program = "import hcl2, sys; [hcl2.load(open(each)) for each in sys.argv[1:]]"
    run(tools / "python", "-c", program, *files)
    run("packer", "validate", "-syntax-only", "lattice-compute.pkr.hcl", cwd=GCP / "packer")


@pytest.mark.spec("OPS-8")
def test_the_cloud_opens_what_the_page_on_ports_lists() -> None:
    opened = set(re.findall(r'"(\d+)"', (GCP / "network.tf").read_text()))
    page = (ROOT / "docs/operate/ports.md").read_text()
    of_slurm = {"22", "6818"}
    assert {each for each in opened - of_slurm if each not in page} == set()


@pytest.mark.spec("OPS-8")
def test_no_job_in_the_cloud_reads_the_secrets_of_its_machine() -> None:
    # Each machine's account may read the MUNGE key, and the metadata server gives it to anybody.
    common = (GCP / "startup/common.sh").read_text()
    assert "ip daddr 169.254.169.254 tcp dport { 80, 443 } meta skuid != 0 reject" in common
    assert " nftables " in (GCP / "packer/lattice-compute.pkr.hcl").read_text()
    for script in ("login.sh", "node.sh", "server.sh"):
        lines = (GCP / "startup" / script).read_text().splitlines()
        first = next(each for each in lines if not each.startswith(("#", "source ")))
        assert first == "only_root_asks", script


@pytest.mark.spec("OPS-8")
def test_the_role_is_clean(tools: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ANSIBLE, tmp_path / "ansible")
    home = {"HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    run(
        *(tools / "ansible-playbook", "--syntax-check", "-i", "inventory.example.ini", "site.yml"),
        cwd=copy,
        **home,
    )
    run(tools / "ansible-lint", "--offline", "-q", ".", cwd=copy, **home)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageRoot]:
    """A root with Ansible in it, so that its connection is local."""
    folder = tmp_path_factory.mktemp("ansible")
    root = PackageRoot("bookworm", folder / "root", "ansible-core", "python3-apt", "systemd")
    shutil.copytree(ANSIBLE, root.folder / "root/ansible")
    shutil.copytree(packages_of_units(folder / "built"), root.folder / "root/packages")
    (root.folder / "root/join.key").write_text("lattice-join-1.e30\n")
    (root.folder / "root/inventory.ini").write_text(
        "[lattice_nodes]\nn1\n[lattice_logins]\nlogin1\n[lattice_servers]\n"
        "[all:vars]\nansible_connection=local\n"
        "lattice_packages=/root/packages\nlattice_join_key=/root/join.key\n"
    )
    yield root
    shutil.rmtree(root.folder)


def played(root: PackageRoot, *more: str) -> dict[str, int]:
    """Run the playbook; how many tasks of all hosts were changed, failed and so on."""
    argv = ("ansible-playbook", "-i", "/root/inventory.ini", "/root/ansible/site.yml", *more)
    text = root.output(*argv, LANG="C.UTF-8", ANSIBLE_NOCOLOR="1")
    sums: dict[str, int] = {}
    for name, count in re.findall(r"(\w+)=(\d+)", text.partition("PLAY RECAP")[2]):
        sums[name] = sums.get(name, 0) + int(count)
    return sums


@pytest.mark.spec("OPS-8")
def test_the_role_installs_and_then_changes_nothing(debian: PackageRoot) -> None:
    first = played(debian)
    assert first["failed"] == 0
    assert first["changed"] > 0
    key = debian.folder / "etc/lattice/join.key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("lattice-join-1.e30\n", 0o600)
    enabled = debian.folder / "etc/systemd/system"
    assert (enabled / "multi-user.target.wants/lattice-agent.service").is_symlink()
    assert (enabled / "sockets.target.wants/lattice-helper.socket").is_symlink()
    second = played(debian)
    assert (second["failed"], second["changed"]) == (0, 0)


@pytest.mark.spec("OPS-8")
def test_a_server_is_checked_without_a_change(debian: PackageRoot) -> None:
    inventory = debian.folder / "root/inventory.ini"
    text = inventory.read_text()
    inventory.write_text(text.replace("[lattice_servers]\n", "[lattice_servers]\ns1\n"))
    try:
        assert played(debian, "--check", "--limit", "s1")["failed"] == 0
    finally:
        inventory.write_text(text)
    assert not (debian.folder / "etc/lattice/server.yaml").exists()


class Login:
    """The tasks of a login node, with the server's files and the login's below one folder."""

    def __init__(self, tools: Path, folder: Path) -> None:
        self._tools = tools
        self._folder = folder
        self.server, self.login = folder / "server", folder / "login"
        (self.server / "tls").mkdir(parents=True)
        tasks = (ANSIBLE / "roles/lattice/tasks/login.yml").read_text()
        read, _, written = tasks.partition("- name: A folder for the authority")
        text = read.replace("/etc/lattice", str(self.server)) + (
            f"- name: A folder for the authority{written}".replace("/etc/lattice", str(self.login))
            .replace("owner: root", f"owner: '{os.getuid()}'")
            .replace("group: root", f"group: '{os.getgid()}'")
            .replace("{{ item.item }}", f"{self.login}/{{{{ item.item | basename }}}}")
        )
        (folder / "login.yml").write_text(text)
        (folder / "play.yml").write_text(
            "- hosts: login1\n  gather_facts: false\n  tasks:\n"
            "    - ansible.builtin.import_tasks: login.yml\n"
        )
        (folder / "hosts").write_text(
            "[lattice_servers]\ns1\n[lattice_logins]\nlogin1\n[all:vars]\n"
            f"ansible_connection=local\nansible_python_interpreter={sys.executable}\n"
        )

    def play(self, *more: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        done = subprocess.run(
            [self._tools / "ansible-playbook", "-i", "hosts", "play.yml", *more],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": f"{self._tools}:{os.environ['PATH']}",
                "HOME": str(self._folder),
                "LANG": "C.UTF-8",
                "ANSIBLE_NOCOLOR": "1",
            },
        )
        return done.returncode, done.stdout + done.stderr


@pytest.mark.spec("OPS-8")
def test_a_login_node_gets_the_files_of_the_server(tools: Path, tmp_path: Path) -> None:
    login = Login(tools, tmp_path)
    (login.server / "config.yaml").write_text("api_url: https://s1:8080\n")
    code, text = login.play()
    assert code == 0, text
    assert [each.name for each in login.login.iterdir() if each.is_file()] == ["config.yaml"]
    (login.server / "tls/ca.crt").write_text("authority\n")
    assert login.play()[0] == 0
    assert (login.login / "ca.crt").read_text() == "authority\n"


@pytest.mark.spec("OPS-8")
def test_a_login_node_says_that_the_server_can_not_be_read(tools: Path, tmp_path: Path) -> None:
    login = Login(tools, tmp_path)
    code, text = login.play()
    assert code == 2
    assert "The configuration of s1 can't be read, so this machine gets none" in text
    assert "Set it up first" in text
    assert not login.login.exists()
    (login.server / "config.yaml").mkdir()
    code, text = login.play()
    assert code == 2
    assert "The configuration of s1 can't be read, so this machine gets none" in text
    assert "is a directory" in text


class Proxied(BaseHTTPRequestHandler):
    """What stands for a server: it answers as one does that is ready."""

    def do_GET(self) -> None:
        body = b'{"ready": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Certificates as the snippets name them, and the port of a server with TLS."""
    authority = trustme.CA()
    pair = authority.issue_cert("lattice1.example.com", "lattice.example.com", "localhost")
    chain, key = pair.cert_chain_pems[0].bytes(), pair.private_key_pem.bytes()
    for name, content in (
        ("lattice.crt", chain),
        ("lattice.key", key),
        ("lattice.pem", chain + key),
        ("lattice-ca.crt", authority.cert_pem.bytes()),
    ):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair.configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxied)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield tmp_path, server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def snippet(kind: str, folder: Path, port: int, own: int) -> str:
    """A block of the page, with this machine's ports and files."""
    found = re.search(rf"^```{kind}\n(.*?)^```$", PROXIES.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    text = re.sub(r"/etc/(nginx|haproxy)/", f"{folder}/", found[1])
    text = re.sub(r"lattice\d\.example\.com:8080", f"127.0.0.1:{port}", text)
    text = text.replace("lattice2.example.com", "lattice1.example.com")
    return re.sub(r"(listen |bind :)443", rf"\g<1>{own}", text).replace("bind :", "bind 127.0.0.1:")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def answer_through(folder: Path, port: int) -> bytes:
    context = ssl.create_default_context(cafile=str(folder / "lattice-ca.crt"))
    try:
        with urllib.request.urlopen(f"https://localhost:{port}/readyz", context=context) as reply:
            return bytes(reply.read())
    except OSError as error:
        return str(error).encode()


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_the_proxies_of_the_page_pass_a_call_on(site: tuple[Path, int], kind: str) -> None:
    folder, port = site
    own = free_port()
    text = snippet(kind, folder, port, own)
    file = folder / f"{kind}.conf"
    if kind == "nginx":
        logs = f"error_log {folder}/error.log; pid {folder}/pid;"
        paths = "".join(
            f"{each}_temp_path {folder}/{each};"
            for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file.write_text(f"{logs} events {{}} http {{ access_log off; {paths}\n{text}\n}}")
        run("nginx", "-t", "-c", file)
        argv = ["nginx", "-c", file, "-g", "daemon off;"]
    else:
        file.write_text(text)
        run("haproxy", "-c", "-f", file)
        argv = ["haproxy", "-db", "-f", file]
    proxy = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answer_through(folder, own), lambda text: text == b'{"ready": true}')
    finally:
        proxy.terminate()
        proxy.wait()
