"""The scripts in scripts/deploy: what they refuse, and the bundle for a site without a network."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from lattice.domain.joinkey import JoinKey, written

DEPLOY = Path(__file__).resolve().parents[3] / "scripts" / "deploy"
NAMES = ("install-quorum", "install-compute", "make-provision-bundle", "validate")
MEMBERS = "--member a=10.0.0.1 --member b=10.0.0.2 --member c=c.example.com"
TWO = MEMBERS.rpartition(" --member")[0]
GIVEN = "--packages packages --join-key join.key"


def run(name: str, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DEPLOY / f"{name}.sh", *argv], capture_output=True, text=True, check=False
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with packages, a join key, and a root without a package manager."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("lattice-python_3.13_amd64.deb", "lattice-agent_0.1.0_amd64.deb"):
        (packages / name).write_text(f"the package {name}\n")
    (packages / "lattice-server_0.1.0_amd64.deb").write_text("for servers\n")
    key = JoinKey(servers=("lattice1.example.com:50051",), token="t0ken")
    (tmp_path / "join.key").write_text(written(key) + "\n")
    (tmp_path / "notes.txt").write_text("no key\n")
    (tmp_path / "agent.yaml").write_text("state_dir: /var/lib/lattice-agent\n")
    (tmp_path / "empty" / "etc").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_flag(name: str) -> None:
    shown = run(name, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    text = (DEPLOY / f"{name}.sh").read_text()
    taken = {each for each in text.split() if each.startswith("--") and each.endswith(")")}
    for flag in {each.rstrip(")") for each in taken} - {"--help"}:
        assert flag in shown.stdout


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("install-quorum", "3 or 5 members, not 0"),
        (f"install-quorum {TWO} --out new", "3 or 5 members, not 2"),
        (f"install-quorum {MEMBERS}", "Where to write is missing"),
        (f"install-quorum {MEMBERS} --out packages", "exists already"),
        (f"install-quorum {TWO} --member a=10.0.0.3 --out new", "twice"),
        (f"install-quorum {TWO} --member c;d=1 --out new", "NAME=ADDRESS"),
        (f"install-quorum {MEMBERS} --out new --client-port 0", "A port is"),
        (f"install-quorum {MEMBERS} --out new --days ten", "number of days"),
        (f"install-quorum {MEMBERS} --out new --data x", "absolute"),
        (f"install-quorum {MEMBERS} --outt new", "Unknown argument: --outt"),
        ("install-quorum --out", "--out needs a value"),
        ("install-quorum --install packages", "has no etcd.yaml"),
        (f"install-quorum {MEMBERS} --install packages", "goes with --root alone"),
        ("install-compute", "--packages DIR"),
        ("install-compute --packages nowhere", "is no folder"),
        ("install-compute --packages packages", "The join key is missing"),
        ("install-compute --packages packages --join-key no.key", "no file no.key"),
        ("install-compute --packages packages --join-key notes.txt", "no join key"),
        (f"install-compute {GIVEN} --config no.yaml", "no file no.yaml"),
        (f"install-compute {GIVEN} --root packages", "no root of a system"),
        (f"install-compute {GIVEN} --root empty", "neither dpkg nor rpm"),
        ("make-provision-bundle --packages packages", "The join key is missing"),
        (f"make-provision-bundle {GIVEN}", "Where to write is missing"),
        (f"make-provision-bundle {GIVEN} --out notes.txt", "exists already"),
        (
            "make-provision-bundle --packages empty --join-key join.key --out new",
            "neither lattice-python nor lattice-agent",
        ),
        ("validate", "address of a server is missing"),
        ("validate lattice1", "is no address"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_done(
    site: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    monkeypatch.chdir(site)
    before = sorted(site.rglob("*"))
    done = run(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    first, hint = done.stderr.splitlines()
    assert reason in first
    assert hint.startswith("Hint: ")
    assert sorted(site.rglob("*")) == before


def test_a_bundle_holds_packages_configuration_and_key_for_its_owner_alone(site: Path) -> None:
    out = site / "bundle.tar"
    argv = ("--packages", site / "packages", "--join-key", site / "join.key")
    done = run("make-provision-bundle", *argv, "--config", site / "agent.yaml", "--out", out)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with tarfile.open(out) as bundle:
        modes = {
            each.name.removeprefix("lattice-provision/"): each.mode
            for each in bundle
            if each.isfile()
        }
        assert {each.uid for each in bundle} == {0}
        bundle.extractall(site / "unpacked", filter="data")
    assert modes == {
        "SHA256SUMS": 0o600,
        "agent.yaml": 0o644,
        "install-compute.sh": 0o755,
        "install.sh": 0o755,
        "join.key": 0o600,
        "packages/lattice-agent_0.1.0_amd64.deb": 0o644,
        "packages/lattice-python_3.13_amd64.deb": 0o644,
    }
    folder = site / "unpacked" / "lattice-provision"
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    assert sums.keys() == modes.keys() - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert sha256((folder / name).read_bytes()).hexdigest() == digest
    # What it holds is taken as it is: the installation stops at the root, not at its input.
    refused = subprocess.run(
        [folder / "install.sh", "--root", site / "empty"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "neither dpkg nor rpm" in refused.stderr


def test_a_bundle_with_two_versions_is_refused(site: Path) -> None:
    (site / "packages" / "lattice-agent_0.2.0_amd64.deb").write_text("a newer one\n")
    argv = ("--packages", site / "packages", "--join-key", site / "join.key")
    done = run("make-provision-bundle", *argv, "--out", site / "bundle.tar")
    assert done.returncode == 2
    assert "one lattice-python and one lattice-agent" in done.stderr


@pytest.mark.parametrize("step", ["req -x509", "req -new", "x509 -req"])
def test_a_failure_of_openssl_is_shown_and_nothing_is_written(tmp_path: Path, step: str) -> None:
    real = shutil.which("openssl")
    program = tmp_path / "bin" / "openssl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in "{step}"*) echo "unknown curve" >&2; exit 1 ;; esac\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    script, out = DEPLOY / "install-quorum.sh", tmp_path / "quorum"
    done = subprocess.run(
        [script, *MEMBERS.split(), "--out", out],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "openssl made no" in done.stderr
    assert "unknown curve" in done.stderr
    assert "Hint: " in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["bin"]
