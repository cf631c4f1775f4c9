"""Certificates are read and made in a process that ends; its failures are no refusals."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.agent import certificates
from lattice.agent.certificate_process import (
    CertificateAnswer,
    CertificateProcess,
    NewRequest,
    ReadIdentity,
)
from lattice.agent.certificates import LocalCertificates
from lattice.agent.identity_store import IdentityRefused
from lattice.base.errors import Unavailable
from tests.fakes.certificates import CLUSTER, node_pair
from tests.fakes.manual_clock import ManualClock

NOTE = "import os, sys; print(sys.argv[1:], dict(os.environ), file=open(sys.argv[1], 'w'))"

NO_SERIAL = json.dumps(
    {
        "peer": {
            "kind": "node",
            "name": "n1",
            "cluster": "c",
            "serial": "x",
            "not_before": "2026-01-01T00:00:00Z",
            "not_after": "2026-01-01T00:00:00Z",
            "generation": 1,
        }
    }
)


def program(code: str, *arguments: str) -> CertificateProcess:
    return CertificateProcess((sys.executable, "-c", code, *arguments))


@pytest.mark.spec("AUTH-9")
def test_the_process_answers_as_the_library_does() -> None:
    authority = ClusterAuthority.create(CLUSTER, ManualClock())
    asked, local = CertificateProcess(), LocalCertificates()
    key, csr = asked.new_request("n1")
    certificate = authority.sign_node(csr.encode(), "n1", timedelta(days=1)).pem.decode()
    bundle = authority.bundle.decode()
    found = asked.read_identity(certificate, key, bundle, "n1", believed=bundle)
    assert found == local.read_identity(certificate, key, bundle, "n1")
    assert found.name == "n1"
    with pytest.raises(IdentityRefused, match="that of node n1, not of n2"):
        asked.read_identity(certificate, key, bundle, "n2")


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("replica-certificate")
def test_a_certificate_of_another_authority_is_refused() -> None:
    clock = ManualClock()
    authority, other = (ClusterAuthority.create(CLUSTER, clock) for _ in range(2))
    pair = node_pair(authority, "n1")
    texts = (pair.certificate.decode(), pair.key.decode(), authority.bundle.decode())
    local = LocalCertificates()
    assert local.read_identity(*texts, "n1", believed=texts[2]).name == "n1"
    with pytest.raises(IdentityRefused, match="not signed by an authority"):
        local.read_identity(*texts, "n1", believed=other.bundle.decode())


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "print('no answer')",
        "print('{}')",
        'print(\'{"key": "k"}\')',
        "import os; os.kill(os.getpid(), 9)",
    ],
    ids=["ends", "no JSON", "empty", "half", "killed"],
)
def test_a_process_that_fails_gives_no_key(code: str) -> None:
    with pytest.raises(Unavailable, match="reads certificates failed"):
        program(code).new_request("n1")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import sys; sys.exit(3)", Unavailable),
        ("print('{}')", IdentityRefused),
        ('print(\'{"refused": "no"}\')', IdentityRefused),
        (f"print({NO_SERIAL!r})", Unavailable),
    ],
    ids=["ends", "empty", "refused", "serial"],
)
def test_a_process_that_fails_accepts_no_identity(code: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        program(code).read_identity("c", "k", "a", "n1")


def test_a_program_that_is_not_there_is_no_refusal() -> None:
    with pytest.raises(Unavailable, match="No such file"):
        CertificateProcess(("/no/such/python",)).new_request("n1")


@pytest.mark.spec("AUTH-9")
def test_the_key_is_in_no_argument_and_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_AGENT_TOKEN", "t-secret")
    note = tmp_path / "note"
    with pytest.raises(Unavailable):
        program(NOTE, os.fspath(note)).read_identity("c", "k-secret", "a", "n1")
    assert "secret" not in note.read_text()


def test_questions_and_answers_show_no_key() -> None:
    assert "secret" not in repr(ReadIdentity("c", "secret", "a", "n1", ""))
    assert "secret" not in repr(CertificateAnswer(key="secret", csr="r"))


def test_a_question_that_can_not_be_read_is_not_answered() -> None:
    target = BytesIO()
    for question in (b"", b"{}", b'{"type": "new_request"}', b'{"type": "sign", "node": "n1"}'):
        with pytest.raises(msgspec.MsgspecError):
            certificates.main(BytesIO(question), target)
    assert target.getvalue() == b""
    certificates.main(BytesIO(msgspec.json.encode(NewRequest("n1"))), target)
    assert "PRIVATE KEY" in json.loads(target.getvalue())["key"]
