"""The server's configuration: its rules one by one, and the files it is shipped with."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError, status_of
from lattice.base.setting import Secret, Unread, setting_of
from lattice.domain.vcluster import VclusterKind
from lattice.server.config.api_section import AuthMode, ListenerAddress
from lattice.server.config.load import Checked, check_server_config, load_server_config
from lattice.server.config.sections import ServerConfig

CONFIG = Path(__file__).parents[3] / "config"
SECRET = "0123456789abcdef0123456789abcdef"
UNFIT = "certificate and key can't be used"
NOBODY = "set api.oidc_issuer, nobody is asked to sign in"
TOKEN = "pkcs11_key: k, pkcs11_pin_file: secret"
SLURM = "slurm: {rest_url: 'unix:/run/slurmrestd.socket'}\n"
S3 = "endpoint: 'https://s3.example', access_key_file: secret, secret_key_file: secret"


class Room:
    """A folder with a configuration file and what it names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(
        self, text: str, environ: Mapping[str, str] | None = None, *, slurm: bool = True
    ) -> Checked:
        file = self.folder / "server.yaml"
        file.write_text((SLURM if slurm else "") + text)
        return check_server_config(file, environ or {})

    def problems(self, text: str, *, slurm: bool = True) -> list[str]:
        found = self.check(text, slurm=slurm).problems
        return [re.sub(r"^\S*/server\.yaml(:\d+)?: ", "", each) for each in found]

    def warnings(self, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        checked = self.check(text, environ)
        assert checked.problems == ()
        found = checked.warnings
        return [re.sub(r"^\S*/server\.yaml(:\d+)?: ", "", each) for each in found]


@pytest.fixture
def room(tmp_path: Path, authority: trustme.CA) -> Room:
    leaf = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "crt"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "key"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    other = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    other.private_key_pem.write_to_path(str(tmp_path / "other-key"))
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "keys").write_text(f"site-2026 {'0f' * 32}\n")
    (tmp_path / "module").write_text("")
    for name in ("key", "other-key", "secret", "short", "empty", "keys"):
        (tmp_path / name).chmod(0o600)
    return Room(tmp_path)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


TLS = "tls_cert: crt, tls_key: key"
OIDC = (
    "oidc_issuer: 'https://idp.example/realms/hpc', oidc_client_id: lattice, "
    "oidc_audience: lattice-api"
)


@pytest.mark.spec("OPS-7")
def test_the_defaults(room: Room) -> None:
    config = room.check("").config
    assert config is not None
    assert str(config.api.rest_listen) == "127.0.0.1:8080"
    assert str(config.api.grpc_listen) == "127.0.0.1:50051"
    assert config.api.auth is AuthMode.NONE
    assert config.api.user_claim == "preferred_username"
    assert config.api.tenant_claim == "tenant"


PROBLEMS: dict[str, tuple[str, list[str]]] = {
    "cert without key": ("api: {tls_cert: crt}", ["api.tls_cert: needs api.tls_key too"]),
    "key without cert": ("api: {tls_key: key}", ["api.tls_key: needs api.tls_cert too"]),
    "authorities alone": ("api: {tls_ca: ca}", ["api.tls_ca: needs api.tls_cert too"]),
    "key of another": (
        "api: {tls_cert: crt, tls_key: other-key}",
        [f"api.tls_cert: {UNFIT}: the key does not belong to the certificate"],
    ),
    "authorities that are none": (
        "api: {tls_cert: crt, tls_key: key, tls_ca: secret}",
        ["api.tls_ca: the authorities can't be used: no certificate in PEM form"],
    ),
    "the same address twice": (
        "api: {rest_listen: '127.0.0.1:8080', grpc_listen: '127.0.0.1:8080'}",
        ["api.grpc_listen: is the same as api.rest_listen"],
    ),
    "outside without TLS": (
        f"api: {{rest_listen: '10.0.0.1:8080', {OIDC}}}",
        ["api.rest_listen: 10.0.0.1:8080 is not loopback: set api.tls_cert and api.tls_key"],
    ),
    "everywhere, v6": (
        f"api: {{grpc_listen: '[::]:50051', {OIDC}}}",
        ["api.grpc_listen: [::]:50051 is not loopback: set api.tls_cert and api.tls_key"],
    ),
    "outside without sign-in": (
        f"api: {{rest_listen: '0.0.0.0:8080', {TLS}}}",
        [f"api.rest_listen: 0.0.0.0:8080 is not loopback: {NOBODY}"],
    ),
    "a name is not loopback": (
        f"api: {{grpc_listen: 'gateway:1', {TLS}}}",
        [f"api.grpc_listen: gateway:1 is not loopback: {NOBODY}"],
    ),
    "no port": (
        "api: {rest_listen: localhost}",
        ["api.rest_listen: must be host:port, not 'localhost'"],
    ),
    "no host": ("api: {rest_listen: ':8080'}", ["api.rest_listen: must be host:port, not ':8080'"]),
    "port too large": (
        "api: {rest_listen: 'localhost:70000'}",
        ["api.rest_listen: 70000 is no port"],
    ),
    "v6 without brackets": (
        "api: {rest_listen: '::1:8080'}",
        ["api.rest_listen: an IPv6 address stands in brackets: [::1]:8080"],
    ),
    "issuer in plain text": (
        "api: {oidc_issuer: 'http://idp.example', oidc_client_id: x}",
        ["api.oidc_issuer: must be https:// (http:// is for loopback only)"],
    ),
    "issuer that is no URL": (
        "api: {oidc_issuer: idp.example, oidc_client_id: x}",
        ["api.oidc_issuer: must be a URL that begins with https://"],
    ),
    "issuer empty": (
        "api: {oidc_issuer: '', oidc_client_id: x}",
        ["api.oidc_issuer: must be a URL that begins with https://"],
    ),
    "issuer with a password": (
        "api: {oidc_issuer: 'https://a:b@idp.example', oidc_client_id: x}",
        ["api.oidc_issuer: must not hold a user name or a password"],
    ),
    "issuer with a query": (
        "api: {oidc_issuer: 'https://idp.example/?x=1', oidc_client_id: x}",
        ["api.oidc_issuer: must hold neither query nor fragment"],
    ),
    "issuer with a fragment": (
        "api: {oidc_issuer: 'https://idp.example/#', oidc_client_id: x}",
        ["api.oidc_issuer: must hold neither query nor fragment"],
    ),
    "issuer that is a file": (
        "api: {oidc_issuer: 'file:///etc/passwd', oidc_client_id: x}",
        ["api.oidc_issuer: must be a URL that begins with https://"],
    ),
    "issuer of a loopback look-alike": (
        "api: {oidc_issuer: 'http://127.0.0.1.example', oidc_client_id: x}",
        ["api.oidc_issuer: must be https:// (http:// is for loopback only)"],
    ),
    "keys in plain text": (
        f"api: {{{OIDC}, oidc_jwks_uri: 'http://169.254.169.254/keys'}}",
        ["api.oidc_jwks_uri: must be https:// (http:// is for loopback only)"],
    ),
    "no client": (
        "api: {oidc_issuer: 'https://idp.example'}",
        ["api.oidc_client_id: is needed with api.oidc_issuer"],
    ),
    "secret empty": (
        "api: {oidc_hmac_secret: ''}",
        ["api.oidc_hmac_secret: is empty; at least 32 are needed (openssl rand -hex 32)"],
    ),
    "secret without a value": (
        "api: {oidc_hmac_secret: }",
        ["api.oidc_hmac_secret: is empty; at least 32 are needed (openssl rand -hex 32)"],
    ),
    "secret short": (
        "api: {oidc_hmac_secret: 0123456789abcdef0123456789abcde}",
        ["api.oidc_hmac_secret: has 31 bytes; at least 32 are needed (openssl rand -hex 32)"],
    ),
    "secret short in a file": (
        "api: {oidc_hmac_secret_file: short}",
        ["api.oidc_hmac_secret: has 5 bytes; at least 32 are needed (openssl rand -hex 32)"],
    ),
    "secret empty in a file": (
        "api: {oidc_hmac_secret_file: empty}",
        ["api.oidc_hmac_secret: is empty; at least 32 are needed (openssl rand -hex 32)"],
    ),
    "claim without a name": ("api: {user_claim: ''}", ["api.user_claim: is empty"]),
    "service that is root": (
        "api: {service_accounts: {x: root}}",
        ["api.service_accounts.x: no service may be root"],
    ),
    "service without a user": (
        "api: {service_accounts: {x: 'a b'}}",
        ["api.service_accounts.x: 'a b' is no Unix user name"],
    ),
    "vCluster twice": (
        "vclusters: [{name: a, kind: hpc, partition: p}, {name: a, kind: hpc, partition: q}]",
        [
            "vclusters[0].name: 'a' stands more than once",
            "vclusters[1].name: 'a' stands more than once",
        ],
    ),
    "view twice": (
        "vclusters: [{name: a, kind: hpc, partition: p}, {name: b, kind: service, partition: p}]",
        [
            "vclusters[0].partition: 'p' with the same QOS is viewed more than once",
            "vclusters[1].partition: 'p' with the same QOS is viewed more than once",
        ],
    ),
    "vCluster named with a slash": (
        "vclusters: [{name: a/b, kind: hpc, partition: p}]",
        ["vclusters[0].name: 'a/b': letters, digits, '.', '_', '-'"],
    ),
    "bucket of sensitive work": (
        "storage: {sensitive_bucket: vault}",
        ["storage.sensitive_bucket: is not used: set sensitive.bucket"],
    ),
    "bucket of sensitive work in a folder": (
        "sensitive: {bucket: vault}",
        ["sensitive.bucket: needs objects.url with s3://"],
    ),
    "bucket of sensitive work for all": (
        f"objects: {{url: 's3://vault/logs', {S3}}}\nsensitive: {{bucket: vault}}",
        ["sensitive.bucket: is the bucket of objects: name one of its own"],
    ),
    "bucket of sensitive work for the audit log": (
        f"objects: {{url: 's3://a-b', {S3}}}\naudit: {{bucket: b-c}}\nsensitive: {{bucket: b-c}}",
        ["sensitive.bucket: is the bucket of audit: name one of its own"],
    ),
    "bucket of sensitive work without a name": (
        f"objects: {{url: 's3://logs', {S3}}}\nsensitive: {{bucket: A}}",
        ["sensitive.bucket: 'A' is no name of a bucket"],
    ),
    "site's keys that others can read": (
        "sensitive: {keys_file: module}",
        ["sensitive.keys_file: {folder}/module can be read by others (mode 0644)"],
    ),
    "site's keys that are none": (
        "sensitive: {keys_file: secret}",
        ["sensitive.keys_file: {folder}/secret has no name and 64 hex digits in line 1"],
    ),
    "site's keys in two places": (
        f"sensitive: {{keys_file: keys, pkcs11_module: module, pkcs11_token: t, {TOKEN}}}",
        ["sensitive.pkcs11_module: goes with no file: name one of the two"],
    ),
    "token without its rest": (
        "sensitive: {pkcs11_module: module}",
        [
            "sensitive.pkcs11_module: needs sensitive.pkcs11_token too",
            "sensitive.pkcs11_module: needs sensitive.pkcs11_pin_file too",
            "sensitive.pkcs11_module: needs sensitive.pkcs11_key too",
        ],
    ),
    "rest without its token": (
        "sensitive: {pkcs11_key: k}",
        ["sensitive.pkcs11_key: needs sensitive.pkcs11_module too"],
    ),
    "token with a label too long": (
        f"sensitive: {{pkcs11_module: module, pkcs11_token: {'t' * 33}, {TOKEN}}}",
        ["sensitive.pkcs11_token: has more than 32 bytes: no token has such a label"],
    ),
    "less patience with nodes of sensitive work": (
        "node_agent: {sensitive_grace_period_s: 60}",
        ["node_agent.sensitive_grace_period_s: must not be less than node_agent.grace_period_s"],
    ),
    "etcd in plain text": (
        "quorum: {endpoints: ['http://etcd.example:2379']}",
        ["quorum.endpoints[0]: must be https:// (http:// is for loopback only)"],
    ),
    "etcd key alone": (
        "quorum: {key: key}",
        ["quorum.key: quorum.cert and quorum.key go together"],
    ),
    "times that do not rise": (
        "node_agent: {degraded_after_s: 120}",
        ["node_agent.grace_period_s: must be more than node_agent.degraded_after_s"],
    ),
    "unknown limit": (
        "rate_limit: {atach_max_concurrent: 3}",
        [
            (
                "rate_limits.atach_max_concurrent: is not known here; "
                "did you mean attach_max_concurrent?"
            )
        ],
    ),
    "shared for longer than one may": (
        "sharing: {usual_days: 8, longest_days: 2}",
        ["sharing.usual_days: is longer than sharing.longest_days allows"],
    ),
    "metrics at a name": (
        "api: {metrics_listen: 'metrics.example:9106'}",
        ["api.metrics_listen: must be unix:/path or IP:PORT, not 'metrics.example:9106'"],
    ),
    "metrics where people are served": (
        "api: {metrics_listen: '127.0.0.1:8080'}",
        ["api.metrics_listen: is the same as api.rest_listen"],
    ),
    "objects nowhere": (
        "objects: {endpoint: 'https://s3.example', ca: ca}",
        ["objects.endpoint: needs objects.url too", "objects.ca: needs objects.url too"],
    ),
    "objects that are no URL": (
        "objects: {url: /var/lib/lattice}",
        ["objects.url: must be s3://bucket/prefix or file:///path, not '/var/lib/lattice'"],
    ),
    "objects in a folder with a key": (
        "objects: {url: 'file:///var/lib/lattice/objects', access_key_file: secret}",
        ["objects.access_key_file: is for s3://"],
    ),
    "objects without a key": (
        "objects: {url: 's3://lattice'}",
        [
            "objects.url: needs objects.endpoint, or objects.region for AWS",
            "objects.url: needs objects.access_key_file too",
            "objects.url: needs objects.secret_key_file too",
        ],
    ),
    "objects with a key that is none": (
        (
            "objects: {url: 's3://lattice', region: 'eu 1', ca: key, access_key_file: empty, "
            "secret_key_file: nowhere}"
        ),
        [
            "objects.region: 'eu 1' is no region",
            "objects.access_key_file: {folder}/empty is empty",
            "objects.secret_key_file: {folder}/nowhere: No such file or directory",
            "objects.ca: {folder}/key holds no certificates",
        ],
    ),
    "objects in plain text": (
        (
            "objects: {url: 's3://lattice', endpoint: 'http://s3.example', "
            "access_key_file: secret, secret_key_file: secret}"
        ),
        ["objects.endpoint: must be https:// (http:// is for loopback only)"],
    ),
    "store that is no URL": (
        "storage: {s3_endpoint: s3.example.com}",
        ["storage.s3_endpoint: must be a URL that begins with http:// or https://"],
    ),
}


@pytest.mark.spec("OPS-7", "AUTH-2", "OPS-6")
@pytest.mark.parametrize("name", PROBLEMS)
def test_each_rule(name: str, room: Room) -> None:
    text, expected = PROBLEMS[name]
    assert room.problems(text) == [each.replace("{folder}", str(room.folder)) for each in expected]


@pytest.mark.spec("OPS-8")
def test_metrics_that_other_hosts_can_read_are_told(room: Room) -> None:
    text = "0.0.0.0:9106 is not loopback: everybody who reaches it can read /metrics"
    warnings = room.warnings("api: {metrics_listen: '0.0.0.0:9106'}")
    assert f"api.metrics_listen: {text}" in warnings
    for local in ("unix:/run/lattice/metrics.sock", "127.0.0.1:9106", "[::1]:9106"):
        found = room.warnings(f"api: {{metrics_listen: '{local}'}}")
        assert not [each for each in found if "metrics_listen" in each]


@pytest.mark.spec("OPS-7")
def test_files_must_be_there_and_readable(room: Room) -> None:
    folder = room.folder
    (folder / "dir").mkdir()
    found = room.problems(
        """\
api:
  tls_cert: nowhere
  tls_key: dir
  oidc_hmac_secret_file: gone
quorum: {ca: nowhere}
""",
    )
    assert found == [
        f"api.tls_cert: {folder}/nowhere: No such file or directory",
        f"api.tls_key: {folder}/dir: is no regular file",
        f"api.oidc_hmac_secret_file: {folder}/gone can't be read: No such file or directory",
        f"quorum.ca: {folder}/nowhere: No such file or directory",
    ]


@pytest.mark.spec("OPS-7")
def test_object_stores_that_may_be(room: Room) -> None:
    keys = "access_key_file: secret, secret_key_file: secret"
    first = room.warnings("")
    for text in (
        "url: 'file:///var/lib/lattice/objects'",
        f"url: 's3://lattice/cluster-a/', endpoint: 'https://s3.example', {keys}, ca: ca",
        f"url: 's3://lattice', endpoint: 'http://127.0.0.1:8333', {keys}",
        f"url: 's3://lattice', region: eu-central-1, {keys}",
    ):
        assert room.warnings(f"objects: {{{text}}}") == first
    plain = f"url: 's3://lattice', endpoint: 'http://s3.example', allow_http: true, {keys}"
    assert room.warnings(f"objects: {{{plain}}}") == [
        *first,
        "objects.allow_http: what is stored can be read on its way",
    ]
    older = "storage: {bucket: lattice, s3_endpoint: 'https://s3.example'}"
    assert set(room.warnings(older)) - set(first) == {
        f"storage.{name}: is not used: the object store is named in objects"
        for name in ("bucket", "s3_endpoint")
    }


@pytest.mark.spec("OPS-7")
def test_slurm_must_be_named(room: Room) -> None:
    assert room.problems("", slurm=False) == [
        "slurm.rest_url: is missing: name slurmrestd, as unix:/path or a URL"
    ]
    for url, words in (
        ("unix:run/x", "absolute"),
        ("ftp://x", "begins with"),
        ("", "begins with"),
        ("http://u:p@x", "password"),
    ):
        (problem,) = room.problems(f"slurm: {{rest_url: '{url}'}}", slurm=False)
        assert words in problem
    (room.folder / "token").write_text("x")
    text = "slurm: {rest_url: 'http://127.0.0.1:6820', token_file: token}"
    assert room.problems(text, slurm=False) == ["slurm.user: is needed with slurm.token_file"]


@pytest.mark.spec("AUTH-2")
def test_which_sign_in_goes_first(room: Room) -> None:
    both = f"api: {{{OIDC}, oidc_hmac_secret: {SECRET}}}"
    checked = room.check(both)
    assert checked.config is not None
    assert checked.config.api.auth is AuthMode.ISSUER
    assert room.warnings(both) == ["api.oidc_hmac_secret: is not used: api.oidc_issuer goes first"]
    assert "development" in room.warnings("", {"LATTICE_OIDC_HMAC_SECRET": SECRET})[0]
    assert "nobody is asked to sign in" in room.warnings("")[0]
    assert room.warnings(f"api: {{{OIDC}, {TLS}, rest_listen: '0.0.0.0:443'}}") == []


@pytest.mark.spec("TRY-4", "OPS-7")
@pytest.mark.threat("slurm-token")
def test_slurm_tokens_need_a_slurmrestd_that_can_judge_them(room: Room) -> None:
    (room.folder / "token").write_text("x")
    (room.folder / "token").chmod(0o600)
    key = "api.slurm_tokens_url"
    asked = "token_file: token, user: lattice"
    api = "api: {slurm_tokens: true"
    plain = f"slurm: {{rest_url: 'http://rest.example:6820', {asked}}}\n"
    sealed = plain.replace("http://", "https://")
    assert room.problems(f"{api}}}") == [
        f"{key}: is needed: slurm.rest_url answers without a token, so it judges none"
    ]
    assert room.problems(f"{plain}{api}}}", slurm=False) == [
        f"{key}: is needed: people's tokens would go to slurm.rest_url in plain text"
    ]
    assert room.problems(f"{sealed}{api}}}", slurm=False) == []
    for url in ("http://rest.example:6820", "unix:jwt.sock", "ftp://x"):
        (problem,) = room.problems(f"{api}, slurm_tokens_url: '{url}'}}")
        assert problem.startswith(key)
    for url in ("http://127.0.0.1:6820", "unix:/run/jwt.sock", "https://rest.example:6820"):
        assert room.problems(f"{api}, slurm_tokens_url: '{url}'}}") == []
    alone = room.check(f"{api}, slurm_tokens_url: 'unix:/run/jwt.sock', administrators: [carol]}}")
    assert alone.warnings == ()
    assert alone.config is not None
    assert alone.config.api.auth is AuthMode.SLURM


@pytest.mark.spec("TRY-4", "OPS-7")
def test_what_is_set_for_sign_ins_that_nobody_is_offered(room: Room) -> None:
    (without, *_) = room.warnings(f"api: {{{OIDC}, slurm_tokens_url: 'unix:/run/jwt.sock'}}")
    assert without == "api.slurm_tokens_url: is not used: api.slurm_tokens is not set"
    (unused, *_) = room.warnings(f"api: {{{OIDC}, administrators: [carol]}}")
    assert unused == (
        "api.administrators: is not used: neither api.munge nor api.slurm_tokens is set"
    )


@pytest.mark.spec("AUTH-5", "OPS-7")
@pytest.mark.threat("id-token")
def test_an_audience_that_id_tokens_have_is_named(room: Room) -> None:
    issuer = "oidc_issuer: 'https://idp.example', oidc_client_id: lattice"
    alike = (
        "api.oidc_audience: is the client's own id, which ID tokens have too: "
        "give the API a name of its own"
    )
    assert room.warnings(f"api: {{{issuer}}}") == [alike]
    assert room.warnings(f"api: {{{issuer}, oidc_audience: lattice}}") == [alike]
    assert room.warnings(f"api: {{{issuer}, oidc_audience: lattice-api}}") == []
    assert room.warnings(f"api: {{{OIDC}, oidc_id_claims: true}}") == [
        (
            "api.oidc_id_claims: lets ID tokens pass for access tokens: "
            "only for Dex, which makes them alike"
        )
    ]


@pytest.mark.spec("AUTH-2", "OPS-7")
def test_a_secret_from_anywhere_is_the_same_secret(room: Room) -> None:
    for text, environ in (
        (f"api: {{oidc_hmac_secret: {SECRET}}}", {}),
        ("api: {oidc_hmac_secret_file: secret}", {}),
        ("", {"LATTICE_OIDC_HMAC_SECRET": SECRET}),
    ):
        config = room.check(text, environ).config
        assert config is not None
        assert config.api.oidc_hmac_secret == Secret(SECRET)
        assert config.api.auth is AuthMode.HMAC
        assert SECRET not in repr(config)


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("secret", ["", "short"])
def test_a_weak_secret_stops_the_start(room: Room, secret: str) -> None:
    file = room.folder / "server.yaml"
    file.write_text(SLURM)
    with pytest.raises(ConfigurationError) as stopped:
        load_server_config(file, {"LATTICE_OIDC_HMAC_SECRET": secret})
    assert status_of(stopped.value).exit == 78
    assert "oidc_hmac_secret" in stopped.value.problems[0]
    assert not secret or secret not in str(stopped.value.problems)


@pytest.mark.spec("AUTH-2", "OPS-7")
@pytest.mark.parametrize("secret", ["", "too-short-to-be-a-secret"])
@pytest.mark.parametrize("options", [[], ["--check-config"]], ids=["start", "check"])
def test_the_process_ends_with_78(
    room: Room,
    secret: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from lattice.server.main import main

    file = room.folder / "server.yaml"
    file.write_text(SLURM)
    monkeypatch.setenv("LATTICE_OIDC_HMAC_SECRET", secret)
    assert main(["--config", str(file), *options]) == 78
    shown = "".join(capfd.readouterr())
    assert "api.oidc_hmac_secret" in shown
    assert not secret or secret not in shown


@pytest.mark.threat("network")
def test_plain_text_outside_only_by_word_of_the_administrator(room: Room) -> None:
    text = f"api: {{{OIDC}, rest_listen: '0.0.0.0:80', insecure: true}}"
    assert room.warnings(text) == [
        "api.rest_listen: 0.0.0.0:80 is served in plain text, as api.insecure allows"
    ]


@pytest.mark.spec("OPS-6")
def test_who_must_show_a_certificate(room: Room) -> None:
    def asked(more: str) -> list[str]:
        config = room.check(f"api: {{{TLS}{more}}}").config
        assert config is not None
        return [each for each in ListenerAddress if config.api.requires_client_certificate(each)]

    assert asked("") == []
    assert asked(", tls_ca: ca") == ["rest", "grpc"]
    assert asked(", tls_ca: ca, mtls: [grpc]") == ["grpc"]
    assert asked(", tls_ca: ca, mtls: []") == []
    (warning, _) = room.warnings(f"api: {{{TLS}, tls_ca: ca, mtls: []}}")
    assert warning == "api.mtls: is empty: no listener asks for client certificates"


@pytest.mark.spec("OPS-7")
def test_a_key_that_others_can_read_is_told(room: Room) -> None:
    (room.folder / "key").chmod(0o644)
    assert any("open to others (mode 0644)" in each for each in room.warnings(f"api: {{{TLS}}}"))


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize(
    "name", ["network", "checkpoint", "scheduling", "accounting", "federation", "compat"]
)
def test_sections_of_the_scheduler_are_accepted_with_a_word(name: str, room: Room) -> None:
    found = room.warnings(f"{name}: {{anything: [1, {{x: y}}]}}")
    named = [each for each in found if each.startswith(f"{name}: ")]
    assert len(named) == 1
    assert named[0].startswith(f"{name}: accepted, not read: ")
    assert re.search("Slurm|slurm", named[0]), "it says who does it"


@pytest.mark.spec("OPS-7", "OPS-1")
def test_names_that_were_in_use_stay(room: Room) -> None:
    text = """\
quorum: {node_id: 1, data_dir: /var/lib/lattice/raft, peers: [{id: 2, address: "lattice-02:9000"}]}
rate_limit: {attach_max_concurrent: 2}
"""
    config = room.check(text).config
    assert config is not None
    assert config.rate_limits.attach_max_concurrent == 2
    assert config.quorum.peers[0].address == "lattice-02:9000"
    assert sum("Raft is etcd's" in each for each in room.warnings(text)) == 3


@pytest.mark.spec("OPS-7")
def test_what_check_config_prints(room: Room) -> None:
    bad = room.check("api: {user_claim: '', tenant_claim: ''}\nnetwork: {}\n")
    lines = bad.lines()
    assert [each.partition(":")[0] for each in lines] == [
        "problem",
        "problem",
        "warning",
        "warning",
        "configuration",
    ]
    assert lines[-1] == "configuration: 2 to correct"
    assert f"{room.folder}/server.yaml:2: api.user_claim: is empty" in lines[0]
    assert room.check("").lines()[-1] == "configuration: ok"


def test_views_reach_the_domain(room: Room) -> None:
    config = room.check("vclusters: [{name: a, kind: interactive, partition: p, qos: q}]").config
    assert config is not None
    view = config.views.of("p", "q")
    assert view is not None
    assert view.kind is VclusterKind.INTERACTIVE


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("localhost.example:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_loopback(text: str, loopback: bool) -> None:
    address = Address.parse(text)
    assert address.is_loopback is loopback
    assert str(address) == text


@pytest.mark.spec("OPS-7")
def test_the_minimal_file_is_right() -> None:
    checked = check_server_config(CONFIG / "minimal.yaml", {})
    assert checked.problems == ()


@pytest.mark.spec("OPS-7")
def test_the_production_file_is_right(room: Room, tmp_path: Path) -> None:
    text = (CONFIG / "production.yaml").read_text()
    for name, source in {
        "tls/server.crt": "crt",
        "tls/server.key": "key",
        "tls/ca.crt": "ca",
        "etcd/ca.crt": "ca",
        "etcd/client.crt": "crt",
        "etcd/client.key": "key",
        "slurm.token": "secret",
        "s3.access": "secret",
        "s3.secret": "secret",
    }.items():
        file = tmp_path / "etc" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes((tmp_path / source).read_bytes())
        file.chmod(0o600)
    folder = tmp_path / "etc" / "identity"
    paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
    assert create_identity(paths, SystemClock())
    checked = room.check(text.replace("/etc/lattice", f"{tmp_path}/etc"), slurm=False)
    assert checked.problems == ()
    assert checked.warnings == ()


@pytest.mark.spec("OPS-7")
def test_the_production_file_shows_every_option() -> None:
    text = (CONFIG / "production.yaml").read_text()
    missing = [path for path, name in _keys(ServerConfig, "") if not _shown(text, name)]
    assert missing == []


def _shown(text: str, name: str) -> bool:
    return re.search(rf"(^|[\s{{,]){name}(_file)?:", text, re.MULTILINE) is not None


def _keys(kind: Any, path: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key in fields(kind):
        hint = typing.get_type_hints(kind)[key.name]
        if setting_of(key) is None or hint is Unread:
            continue
        found.append((f"{path}{key.name}", key.name))
        origin = typing.get_origin(hint)
        if origin is tuple:
            hint = typing.get_args(hint)[0]
        if origin is Mapping:
            continue
        if is_dataclass(hint) and not hasattr(hint, "parse"):
            found.extend(_keys(hint, f"{path}{key.name}."))
    return found
