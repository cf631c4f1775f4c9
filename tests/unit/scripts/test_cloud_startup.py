"""The startup scripts of the cloud, with what they call replaced."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

STARTUP = Path(__file__).resolve().parents[3] / "infra/gcp/startup"
CERTIFICATE = "-----BEGIN CERTIFICATE-----"
CALLED = """
set -euo pipefail
only_root_asks() { :; }
begin_slurm() { :; }
attribute() { echo "the $1"; }
sleep() { echo slept >>"$ROOT/slept"; : >"$ROOT/is-there"; }
secret() { [ -e "$ROOT/is-there" ] && echo "$1"; }
openssl() { [ "$1" = x509 ] && [ -s "$3" ]; }
"""


def boot(root: Path) -> str:
    """Run login.sh on a machine below `root`. Returns what it printed."""
    text = (STARTUP / "login.sh").read_text()
    text = text.replace("source /usr/local/lib/lattice-cloud.sh", CALLED)
    text = text.replace("/etc/lattice", f"{root}/etc/lattice")
    done = subprocess.run(
        ["bash", "-c", text],
        env={"ROOT": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spec("OPS-8")
def test_a_login_node_takes_the_authority_from_the_secret_alone(tmp_path: Path) -> None:
    boot(tmp_path)
    tls = tmp_path / "etc/lattice/tls"
    assert (tls / "ca.crt").read_text() == "the authority-secret\n"
    assert (tmp_path / "slept").read_text() == "slept\n", "the server had not put it there yet"
    assert [each.name for each in tls.iterdir()] == ["ca.crt"]
    assert "s_client" not in (STARTUP / "login.sh").read_text()


def test_the_authority_of_the_first_boot_stays(tmp_path: Path) -> None:
    file = tmp_path / "etc/lattice/tls/ca.crt"
    file.parent.mkdir(parents=True)
    file.write_text(CERTIFICATE)
    boot(tmp_path)
    assert file.read_text() == CERTIFICATE


def test_the_server_puts_its_authority_there_before_it_serves() -> None:
    text = (STARTUP / "server.sh").read_text()
    given = text.index('add_secret "$(attribute authority-secret)" </etc/lattice/tls/ca.crt')
    assert given < text.index("enable --now lattice-server")
