"""A sensitive vCluster is served only where all that protects it is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock
from lattice.base.malloc import NotOverwriting
from lattice.domain.presence import Times
from lattice.server import main as program
from lattice.server.config.load import Checked, check_server_config
from lattice.server.config.sections import NodeAgentSection
from lattice.server.start import seems_sensitive

SECTIONS = {
    "slurm": "{rest_url: 'unix:/run/slurmrestd.socket'}",
    "vclusters": "[{name: a, kind: hpc, partition: p}, {name: b, kind: sensitive, partition: q}]",
    "quorum": "{endpoints: ['https://etcd.example:2379']}",
    "identity": "{ca_cert: ca.crt, ca_key: ca.key, grant_key: grant.key}",
    "gate": "{socket: /run/lattice/gate.sock}",
    "objects": (
        "{url: 's3://logs', endpoint: 'https://s3.example', access_key_file: secret, "
        "secret_key_file: secret}"
    ),
    "audit": "{bucket: log-of-acts, anchor: syslog}",
    "sensitive": "{bucket: vault, keys_file: keys}",
    "api": (
        "{oidc_issuer: 'https://idp.example/realms/hpc', oidc_client_id: lattice, "
        "oidc_audience: lattice-api, agent_listen: '127.0.0.1:50052'}"
    ),
}
# What each protects; without it the server does not start.
LACKS = {
    "quorum": (
        "quorum.endpoints: a sensitive vCluster needs etcd: claims, keys and the audit log are "
        "agreed on there. A server with --single has none"
    ),
    "gate": (
        "gate.socket: a sensitive vCluster needs it: claimed nodes are reserved in Slurm through "
        "the gate"
    ),
    "audit": (
        "audit.bucket: a sensitive vCluster needs it: a bucket with object lock, for older entries"
    ),
    "sensitive": (
        "sensitive.bucket: a sensitive vCluster needs it: a bucket of its own, for what its jobs "
        "write"
    ),
    "api": "api.oidc_issuer: a sensitive vCluster needs it, or another way to sign in",
    "identity": (
        "identity.grant_key: a sensitive vCluster needs it: the audit log is signed with it"
    ),
}


class Room:
    """A folder with all that a site with sensitive work names."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "server.yaml"
        paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
        create_identity(paths, SystemClock(), name="alpha")
        (folder / "secret").write_text("secret\n")
        (folder / "keys").write_text(f"site-2026 {'0f' * 32}\n")
        for name in ("secret", "keys"):
            (folder / name).chmod(0o600)

    def check(self, **changed: str | None) -> Checked:
        sections = {name: text for name, text in (SECTIONS | changed).items() if text is not None}
        self.file.write_text("".join(f"{name}: {text}\n" for name, text in sections.items()))
        return check_server_config(self.file, {})

    def problems(self, **changed: str | None) -> list[str]:
        found = self.check(**changed).problems
        return [re.sub(r"^\S*/server\.yaml(:\d+)?: ", "", each) for each in found]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


@pytest.mark.spec("AUTH-7", "LOG-8", "OPS-7")
@pytest.mark.threat("sensitive")
def test_a_site_that_has_all_of_it_is_accepted(room: Room) -> None:
    checked = room.check()
    assert checked.problems == ()
    assert checked.warnings == ()


@pytest.mark.spec("OPS-7", "LOG-8")
@pytest.mark.threat("sensitive")
@pytest.mark.parametrize("section", sorted(LACKS))
def test_what_is_missing_stops_the_start(room: Room, section: str) -> None:
    assert LACKS[section] in room.problems(**{section: None})
    others = room.problems(vclusters=None, **{section: None})
    assert not any("sensitive vCluster" in each for each in others), "others need none of it"


@pytest.mark.threat("sensitive")
@pytest.mark.parametrize(
    ("section", "text", "problem"),
    [
        (
            "api",
            SECTIONS["api"].replace("{", "{insecure: true, ", 1),
            "api.insecure: is not for a site with sensitive work: it would be sent in plain text",
        ),
        (
            "identity",
            SECTIONS["identity"].replace("{", "{development_token: abc, ", 1),
            (
                "identity.development_token: is not for a site with sensitive work: who has it "
                "gets the keys of any node"
            ),
        ),
        (
            "sensitive",
            "{bucket: vault}",
            (
                "sensitive.keys_file: a sensitive vCluster needs it, or sensitive.pkcs11_module: "
                "the site's keys"
            ),
        ),
    ],
    ids=["plain text", "token for all nodes", "no keys"],
)
def test_what_would_open_it_stops_the_start(
    room: Room, section: str, text: str, problem: str
) -> None:
    assert problem in room.problems(**{section: text})


@pytest.mark.parametrize(
    "logs",
    ["{retention_days: 91}", "{retention_days: 30, tenants: {clinic: {retention_days: 91}}}"],
)
def test_recordings_do_not_outlive_what_proves_them(room: Room, logs: str) -> None:
    audit = "{bucket: log-of-acts, anchor: syslog, retention_days: 90}"
    (problem,) = room.problems(audit=audit, logs=logs)
    assert problem.startswith("audit.retention_days: is shorter than the 91 days of logs.")
    audit = audit.replace("90", "91")
    assert room.problems(audit=audit, logs=logs) == []


@pytest.mark.threat("sensitive")
def test_a_log_that_could_be_rolled_back_is_a_warning(room: Room) -> None:
    checked = room.check(audit="{bucket: log-of-acts}")
    assert checked.problems == ()
    (warning,) = checked.warnings
    assert "audit.anchor: is not set, and there is sensitive work" in warning


@pytest.mark.spec("OPS-7")
@pytest.mark.threat("sensitive")
@pytest.mark.parametrize("options", [[], ["--check-config"], ["--single", "state"]])
def test_a_single_server_refuses_sensitive_work_and_says_why(
    room: Room, options: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    room.check(quorum=None)
    assert program.main(["--config", str(room.file), *options]) == 78
    assert LACKS["quorum"] in "".join(capfd.readouterr())


@pytest.mark.threat("sensitive")
def test_a_server_that_cannot_overwrite_its_memory_does_not_start(
    room: Room, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def never() -> None:
        raise NotOverwriting("freed memory is not overwritten: that takes glibc")

    monkeypatch.setattr(program, "overwrite_freed_memory", never)
    room.check()
    assert program.main(["--config", str(room.file)]) == 78
    assert "A sensitive vCluster can't be served: freed memory is not overwritten" in "".join(
        capfd.readouterr()
    )


def test_the_program_knows_early_that_it_will_have_sensitive_work(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    for text, seems in (
        ("vclusters: [{name: a, kind: hpc, partition: p}]", False),
        ("vclusters: [{name: a, kind: sensitive, partition: p}]", True),
        ("vclusters:\n  - name: a\n    kind: 'sensitive'\n    partition: p", True),
        ("sensitive: {bucket: vault}", False),
    ):
        file.write_text(text)
        assert seems_sensitive(["--config", str(file)]) is seems
        assert seems_sensitive([f"--config={file}", "--single", "x"]) is seems
    assert not seems_sensitive(["--config", str(tmp_path / "none")])
    assert not seems_sensitive(["--config"])


def test_the_patience_with_nodes_of_sensitive_work() -> None:
    assert NodeAgentSection().times == Times(30.0, 90.0, 600.0)
    assert NodeAgentSection(grace_period_s=900.0).times == Times(30.0, 900.0, 900.0)
    given = NodeAgentSection(sensitive_grace_period_s=120.0).times
    assert given == Times(30.0, 90.0, 120.0)
