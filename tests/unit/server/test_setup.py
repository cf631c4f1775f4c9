"""`lattice-server setup` on machines with and without what it needs, below a folder."""

from __future__ import annotations

import os
import pwd
import ssl
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from lattice.server.main import main
from lattice.server.setup import certificate, command
from tests.fakes.manual_clock import ManualClock

OWN = pwd.getpwuid(os.getuid()).pw_name
UNITS = Path(__file__).parents[3] / "infra/systemd"
CONFIG = """Configuration data
AccountingStorageType   = {accounting}
AuthType                = auth/munge
ClusterName             = alpha
SLURM_VERSION           = {release}
SlurmUser               = slurm(64030)
PrivateData             = {private}
"""


class Site:
    """The programs that setup finds, and where it writes."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.root = folder / "root"
        self.programs.mkdir()
        self.root.mkdir()
        self.slurm()
        for name in ("slurmrestd", "unmunge"):
            self.program(name, "")

    def slurm(
        self,
        *,
        release: str = "24.11.5",
        private: str = "none",
        accounting: str = "accounting_storage/slurmdbd",
        answers: bool = True,
    ) -> None:
        config = CONFIG.format(release=release, private=private, accounting=accounting)
        if not answers:
            self.program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
        else:
            self.program(
                "scontrol",
                f"case \"$*\" in *partition*) echo 'PartitionName=gpu X=1'; "
                f"echo 'PartitionName=cpu X=1';; *) /bin/cat <<'END'\n{config}END\n;; esac",
            )
        self.program(
            "sacctmgr",
            f'echo "$@" >>{self.programs}/asked; case "$*" in '
            f"*configuration*) echo 'PrivateData = {private}';; esac",
        )

    def program(self, name: str, script: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def set_up(self, *flags: str) -> int:
        state = "/var/lib/lattice"
        own = ("--root", str(self.root), "--account", OWN, "--state", state)
        return main(["setup", "--host", "lattice.example", "--administrator", "root", *own, *flags])

    def file(self, path: str) -> Path:
        return self.root / path

    @property
    def config(self) -> dict[str, dict[str, object]]:
        loaded: dict[str, dict[str, object]] = yaml.safe_load(
            self.file("etc/lattice/server.yaml").read_text()
        )
        return loaded

    def contents(self) -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in self.root.rglob("*") if each.is_file()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for name in ("_FOLDERS", "_OWN_FOLDERS"):
        monkeypatch.setattr(f"lattice.server.setup.slurm_facts.{name}", ())
    found = Site(tmp_path)
    monkeypatch.setenv("PATH", str(found.programs))
    return found


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("scontrol", "There is no scontrol on this machine."),
        ("slurmrestd", "There is no slurmrestd on this machine."),
        ("unmunge", "There is no unmunge on this machine"),
    ],
)
def test_what_is_missing_is_named_and_nothing_written(
    site: Site, capsys: pytest.CaptureFixture[str], missing: str, text: str
) -> None:
    (site.programs / missing).unlink()
    assert site.set_up() == 78
    printed = capsys.readouterr().err
    assert text in printed
    assert "Hint: " in printed
    assert site.contents() == {}


@pytest.mark.spec("OPS-8")
def test_a_controller_that_is_away(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.slurm(answers=False)
    assert site.set_up() == 78
    assert "slurmctld does not answer" in capsys.readouterr().err
    assert site.contents() == {}


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize(
    "flags",
    [
        ("--oidc-issuer", "https://idp"),
        ("--tls-cert", "/x"),
        ("--etcd", "https://e:2379"),
        ("--host", "a b"),
        ("--administrator", "A b"),
        ("--account", "no-such-user"),
    ],
)
def test_answers_that_do_not_fit(site: Site, flags: tuple[str, ...]) -> None:
    assert site.set_up(*flags) == 78
    assert site.contents() == {}


@pytest.mark.spec("OPS-8", "TRY-4")
def test_a_site_without_munge_signs_in_by_slurm_tokens(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.programs / "unmunge").unlink()
    assert site.set_up("--slurm-tokens") == 0
    api = site.config["api"]
    assert (api["munge"], api["slurm_tokens"], api["administrators"]) == (False, True, ["root"])
    unit = (UNITS / "lattice-slurmrestd-jwt.service").read_text()
    socket = str(api["slurm_tokens_url"])
    assert f" -a rest_auth/jwt {socket}\n" in unit
    defaults = "/etc/default/lattice-slurmrestd-jwt"
    assert f"EnvironmentFile={defaults}\n" in unit
    text = site.file(defaults[1:]).read_text()
    assert text == f"SLURMRESTD={site.programs}/slurmrestd\nOPTIONS='-t 4'\n"
    assert "lattice login --flow slurm" in capsys.readouterr().out


@pytest.mark.spec("OPS-8", "TRY-4")
def test_a_slurmrestd_of_the_site_judges_tokens(site: Site) -> None:
    assert site.set_up("--slurm-tokens", "https://rest.example:6820") == 0
    api = site.config["api"]
    assert (api["munge"], api["slurm_tokens"]) == (True, True)
    assert api["slurm_tokens_url"] == "https://rest.example:6820"
    assert not site.file("etc/default/lattice-slurmrestd-jwt").exists()
    # One of its own needs the program.
    (site.programs / "slurmrestd").unlink()
    flags = ("--slurmrestd", "https://rest.example:6820", "--slurm-tokens")
    assert site.set_up(*flags) == 78


@pytest.mark.spec("OPS-8", "OPS-7")
def test_a_configuration_that_the_server_accepts(site: Site) -> None:
    assert site.set_up() == 0
    api = site.config["api"]
    assert api["agent_advertise"] == "lattice.example:50052"
    assert (api["munge"], api["administrators"]) == (True, ["root"])
    assert [each["name"] for each in site.config["vclusters"]] == ["gpu", "cpu"]  # type: ignore[index]
    # As on the machine itself: the paths without the folder it was written below.
    text = site.file("etc/lattice/server.yaml").read_text()
    for path in ("/etc/lattice/tls", "/var/lib/lattice"):
        text = text.replace(path, f"{site.root}{path}")
    checked = site.root / "checked.yaml"
    checked.write_text(f"{text}\n")
    assert main(["--config", str(checked), "--check-config"]) == 0


@pytest.mark.spec("OPS-8")
def test_secrets_are_for_the_account_alone(site: Site) -> None:
    assert site.set_up() == 0
    modes = {
        "etc/lattice/tls/server.key": 0o600,
        "etc/lattice/tls/ca.key": 0o600,
        "etc/lattice/tls/ca.crt": 0o644,
        "etc/lattice/server.yaml": 0o640,
        "etc/lattice/config.yaml": 0o644,
        "etc/lattice/grant-keys": 0o644,
        "var/lib/lattice/ca.key": 0o600,
        "var/lib/lattice/grant.key": 0o600,
        "var/lib/lattice": 0o700,
    }
    assert {name: stat.S_IMODE(site.file(name).stat().st_mode) for name in modes} == modes


@pytest.mark.spec("OPS-8")
def test_a_second_time_changes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    before = site.contents()
    assert len(before) >= 10
    capsys.readouterr()
    site.slurm(release="26.05.1")
    assert site.set_up("--host", "another.example") == 0
    assert site.contents() == before
    assert "made" not in capsys.readouterr().out


@pytest.mark.spec("OPS-8")
def test_what_was_lost_is_made_again_and_no_more(site: Site) -> None:
    site.set_up()
    before = site.contents()
    for name in ("etc/lattice/config.yaml", "etc/lattice/grant-keys"):
        site.file(name).unlink()
    site.file("etc/lattice/config.yaml").write_text("# comments alone, as the package brings it\n")
    assert site.set_up() == 0
    assert site.contents() == before


@pytest.mark.spec("OPS-8", "OPS-6")
def test_the_certificate_is_for_all_hosts_and_brings_its_authority(site: Site) -> None:
    assert site.set_up("--host", "10.0.0.7", "--host", "fd00::7") == 0
    chain = site.file("etc/lattice/tls/server.crt").read_bytes()
    leaf, authority = x509.load_pem_x509_certificates(chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "lattice.example" in names.get_values_for_type(x509.DNSName)
    assert {str(each) for each in names.get_values_for_type(x509.IPAddress)} >= {
        "10.0.0.7",
        "fd00::7",
    }
    leaf.verify_directly_issued_by(authority)
    client = site.file("etc/lattice/config.yaml").read_text()
    assert client == "api_url: https://lattice.example:8080\nca: /etc/lattice/tls/ca.crt\n"
    ssl.create_default_context(cafile=str(site.file("etc/lattice/tls/ca.crt")))


@pytest.mark.spec("OPS-8", "OPS-6")
def test_a_certificate_near_its_end_is_renewed_by_the_same_authority(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(command, "SystemClock", lambda: clock)
    site.set_up()
    first = site.contents()
    until = certificate.ends(site.file("etc/lattice/tls/server.crt").read_bytes())
    clock.advance(
        (until - clock.now() - certificate.RENEW_BEFORE - timedelta(days=1)).total_seconds()
    )
    site.set_up()
    assert site.contents() == first
    clock.advance(2 * 86400)
    site.set_up()
    changed = {name for name, content in site.contents().items() if first[name] != content}
    assert {Path(each).name for each in changed} == {"server.crt", "server.key"}


@pytest.mark.spec("OPS-8")
def test_a_lost_authority_is_not_replaced_in_silence(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.set_up() == 0
    folder = site.file("etc/lattice/tls")
    (folder / "ca.key").unlink()
    before = (folder / "ca.crt").read_bytes()
    assert site.set_up() == 0
    assert (folder / "ca.crt").read_bytes() == before
    assert not (folder / "ca.key").exists()
    # Near the certificate's end the key is needed.
    clock = ManualClock()
    clock.advance(720 * 86400)
    monkeypatch.setattr(command, "SystemClock", lambda: clock)
    assert site.set_up() == 78
    assert "ca.key is missing" in capsys.readouterr().err
    assert (folder / "ca.crt").read_bytes() == before


@pytest.mark.spec("OPS-8")
def test_own_certificates_and_several_servers(site: Site) -> None:
    flags = ["--tls-cert", "/c.pem", "--tls-key", "/k.pem", "--no-munge"]
    flags += ["--oidc-issuer", "https://idp.example", "--oidc-client-id", "lattice"]
    flags += ["--etcd", "https://e1:2379", "--etcd", "https://e2:2379", "--objects", "s3://logs"]
    flags += ["--slurmrestd", "unix:/run/slurmrestd.socket", "--tsdb", "https://tsdb.example"]
    assert site.set_up(*flags) == 0
    config = site.config
    assert config["quorum"] == {"endpoints": ["https://e1:2379", "https://e2:2379"]}
    assert config["objects"] == {"url": "s3://logs"}
    assert config["telemetry"] == {"tsdb_endpoint": "https://tsdb.example"}
    assert config["slurm"]["rest_url"] == "unix:/run/slurmrestd.socket"
    assert config["slurm"]["bin_dir"] == str(site.programs), "services do not search it"
    assert config["api"]["oidc_issuer"] == "https://idp.example"
    assert config["api"]["munge"] is False
    assert not site.file("etc/lattice/tls").exists()
    assert not site.file("etc/default/lattice-slurmrestd").exists()
    assert site.file("etc/default/lattice-server").read_text() == "OPTIONS=''\n"
    assert "ca:" not in site.file("etc/lattice/config.yaml").read_text()


@pytest.mark.spec("OPS-8")
def test_a_slurm_that_hides_jobs(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.slurm(private="jobs")
    assert site.set_up("--dry-run", "--account", "daemon", "--operator") == 0
    assert "sacctmgr modify user daemon set adminlevel=operator" in capsys.readouterr().out
    assert site.contents() == {}
    assert "add user" not in (site.programs / "asked").read_text()
    assert site.set_up("--account", "daemon", "--operator") == 0
    asked = (site.programs / "asked").read_text().splitlines()
    assert asked[-1] == "-i add user daemon account=root adminlevel=operator"


@pytest.mark.spec("OPS-8")
def test_a_release_that_was_not_tested_is_named(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.slurm(release="27.11.0", accounting="accounting_storage/none")
    assert site.set_up() == 0
    printed = capsys.readouterr()
    assert "Slurm 27.11.0 was not tested" in printed.err
    assert "history is not kept" in printed.out


@pytest.mark.spec("OPS-8")
def test_questions_have_a_default_and_an_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(question: str, default: str) -> str:
        asked.append(question)
        return "carol" if "administers" in question else default

    monkeypatch.setattr(command, "ask_person", answer)
    own = ["--root", str(site.root), "--account", OWN]
    assert main(["setup", *own]) == 0
    assert len(asked) == 2
    assert site.config["api"]["administrators"] == ["carol"]


@pytest.mark.parametrize("folder", ["etc", "var"])
def test_a_folder_that_can_not_be_written_is_named(
    site: Site, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.root / folder).write_text("a file")
    assert site.set_up() == 78
    printed = capsys.readouterr().err
    assert f"{site.root / folder}" in printed
    assert "Hint: " in printed


@pytest.mark.spec("OPS-8")
@pytest.mark.threat("server")
@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "grant.key"])
def test_the_account_can_not_have_another_file_given_to_it(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    link: Callable[[Path, Path], None],
    name: str,
) -> None:
    # Its state folder is its own, so it can put a link there before setup runs again.
    assert site.set_up() == 0
    file, secret = site.file(f"var/lib/lattice/{name}"), site.root / "shadow"
    file.rename(secret)
    link(secret, file)
    secret.chmod(0o600)
    before = secret.stat()
    assert site.set_up("--account", "daemon") == 78
    printed = capsys.readouterr().err
    assert f"{file} is a link" in printed
    assert "Hint: " in printed
    assert secret.stat().st_uid == before.st_uid


@pytest.mark.spec("OPS-4", "OPS-5", "OPS-8")
@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), "--allow nodes --allow tenants"),
        (("--gate-allows", "tenants"), "--allow tenants"),
        (("--gate-allows", "nodes,claims"), "--allow nodes --allow claims"),
        (("--gate-allows", "nothing"), ""),
    ],
)
def test_what_the_gate_may_change_is_a_question_of_its_own(
    site: Site, flags: tuple[str, ...], options: str
) -> None:
    assert site.set_up(*flags) == 0
    assert site.file("etc/default/lattice-gate").read_text() == f"OPTIONS='{options}'\n"
    unit = Path(__file__).parents[3] / "infra/systemd/lattice-gate.service"
    assert "EnvironmentFile=-/etc/default/lattice-gate" in unit.read_text()
    assert "$OPTIONS" in unit.read_text()


@pytest.mark.parametrize("groups", ["everything", "nodes,", "nodes tenants", "nodes,nothing"])
def test_what_the_gate_can_not_be_allowed_is_refused(
    site: Site, groups: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.set_up("--gate-allows", groups) == 78
    assert "--gate-allows has nodes, tenants, claims with" in capsys.readouterr().err
    assert site.contents() == {}
