"""The authority: what it signs, for whom, and what it refuses to."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from lattice.adapters.pki.authority import (
    AuthorityRefused,
    ClusterAuthority,
    RequestRefused,
    cluster_of,
    new_cluster_id,
    read_bundle,
)
from lattice.domain.peer import checked_cluster, server_name
from lattice.wire.peerguard import read_peer
from tests.fakes.certificates import (
    CLUSTER,
    DAY,
    authority_files,
    new_key,
    node_pair,
    request,
    self_signed,
)
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(clock: ManualClock) -> ClusterAuthority:
    return ClusterAuthority.create(CLUSTER, clock)


def _uses(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
def test_a_node_gets_a_short_certificate_for_a_client(
    authority: ClusterAuthority, clock: ManualClock
) -> None:
    key = new_key()
    issued = authority.sign_node(request(key, "n1"), "n1", DAY)
    made = x509.load_pem_x509_certificate(issued.pem)
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.bundle))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(f"lattice://{CLUSTER}/node/n1")]
    assert _uses(made) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert made.public_key() == key.public_key()
    now = clock.now()
    assert made.not_valid_before_utc == now - timedelta(minutes=5)
    assert made.not_valid_after_utc == issued.not_after == now + DAY
    assert made.serial_number == issued.serial


@pytest.mark.spec("AUTH-9")
def test_a_certificate_can_be_told_from_those_before_a_moment(
    authority: ClusterAuthority, clock: ManualClock
) -> None:
    issued = authority.sign_node(request(new_key()), "n1", DAY, after=clock.now())
    begin = x509.load_pem_x509_certificate(issued.pem).not_valid_before_utc
    assert begin == clock.now() + timedelta(seconds=1)


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize("generation", [0, 1, 70_000])
def test_a_certificate_carries_its_generation(authority: ClusterAuthority, generation: int) -> None:
    issued = authority.sign_node(request(new_key()), "n1", DAY, generation=generation)
    assert read_peer(issued.pem).generation == generation


@pytest.mark.spec("AUTH-9")
def test_a_replica_gets_one_for_both_ends_with_the_hosts_it_stands_on(
    authority: ClusterAuthority,
) -> None:
    hosts = ("10.0.0.1", "s1.example", "::1", "10.0.0.1")
    issued = authority.certify_replica(new_key().public_key(), "r1", hosts, DAY)
    made = x509.load_pem_x509_certificate(issued.pem)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"lattice://{CLUSTER}/replica/r1"
    ]
    assert names.get_values_for_type(x509.DNSName) == [
        server_name(CLUSTER),
        server_name(CLUSTER, "r1"),
        "s1.example",
    ]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    assert _uses(made) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("n2", ""),
        ("", f"lattice://{CLUSTER}/node/n2"),
        ("", f"lattice://{CLUSTER}/replica/n1"),
        ("", "LATTICE://other/node/n1"),
    ],
)
def test_a_request_that_names_somebody_else_is_refused(
    authority: ClusterAuthority, name: str, uri: str
) -> None:
    with pytest.raises(RequestRefused, match="somebody else than n1"):
        authority.sign_node(request(new_key(), name, uri), "n1", DAY)


@pytest.mark.spec("AUTH-9")
def test_a_request_that_names_the_node_or_something_of_no_matter_is_signed(
    authority: ClusterAuthority,
) -> None:
    for name, uri in (("n1", f"lattice://{CLUSTER}/node/n1"), ("", "https://n1.example")):
        authority.sign_node(request(new_key(), name, uri), "n1", DAY)


def _request_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_keys_of_other_kinds_are_refused(authority: ClusterAuthority) -> None:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    edwards = builder.sign(ed25519.Ed25519PrivateKey.generate(), None)
    weak = rsa.generate_private_key(65537, 1024)
    for csr in (
        edwards.public_bytes(serialization.Encoding.PEM),
        _request_of(weak),
        _request_of(ec.generate_private_key(ec.SECP256K1())),
    ):
        with pytest.raises(RequestRefused, match="P-256"):
            authority.sign_node(csr, "n1", DAY)
    authority.sign_node(_request_of(rsa.generate_private_key(65537, 2048)), "n1", DAY)


@pytest.mark.spec("AUTH-9")
def test_a_request_somebody_tampered_with_is_refused(authority: ClusterAuthority) -> None:
    csr = x509.load_pem_x509_csr(request(new_key(), "n1"))
    raw = bytearray(csr.public_bytes(serialization.Encoding.DER))
    raw[raw.index(b"n1") + 1] ^= 2  # n3
    torn = x509.load_der_x509_csr(bytes(raw)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(RequestRefused, match="own key"):
        authority.sign_node(torn, "n3", DAY)


@pytest.mark.parametrize("csr", [b"", b"hello", b"x" * 20_000, b"-----BEGIN CERTIFICATE REQUEST"])
def test_what_is_no_request_is_refused(authority: ClusterAuthority, csr: bytes) -> None:
    with pytest.raises(RequestRefused):
        authority.sign_node(csr, "n1", DAY)


@pytest.mark.spec("AUTH-9")
def test_nothing_outlives_the_authority(authority: ClusterAuthority, clock: ManualClock) -> None:
    clock.advance(3653 * 86400 - 3600)
    issued = authority.sign_node(request(new_key()), "n1", DAY)
    assert issued.not_after == authority.not_after
    clock.advance(7200)
    with pytest.raises(AuthorityRefused, match="expired"):
        authority.sign_node(request(new_key()), "n1", DAY)


def test_files_read_back(tmp_path: Path, clock: ManualClock) -> None:
    files = authority_files(tmp_path, clock=clock)
    again = ClusterAuthority.load(files.certificate, files.key, clock)
    assert again.cluster == CLUSTER
    pair = node_pair(again, "n1")
    x509.load_pem_x509_certificate(pair.certificate).verify_directly_issued_by(
        x509.load_pem_x509_certificate(files.certificate.read_bytes())
    )


def test_files_that_are_no_authority_are_refused_with_words(
    tmp_path: Path, clock: ManualClock
) -> None:
    files = authority_files(tmp_path, clock=clock)
    other = authority_files(tmp_path, clock=clock, name="other")
    with pytest.raises(AuthorityRefused, match="not that of the certificate"):
        ClusterAuthority.load(files.certificate, other.key, clock)
    with pytest.raises(AuthorityRefused, match="No such file"):
        ClusterAuthority.load(files.certificate, tmp_path / "absent", clock)
    with pytest.raises(AuthorityRefused, match="no PEM"):
        ClusterAuthority.load(files.key, files.key, clock)
    pair = self_signed((), authority=True)
    files.certificate.write_bytes(pair.certificate)
    files.key.write_bytes(pair.key)
    with pytest.raises(AuthorityRefused, match="not that of a Lattice cluster"):
        ClusterAuthority.load(files.certificate, files.key, clock)
    leaf = x509.load_pem_x509_certificate(self_signed(()).certificate)
    with pytest.raises(AuthorityRefused):
        cluster_of(leaf)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("authority-key")
def test_a_bundle_holds_authorities_of_one_cluster(clock: ManualClock) -> None:
    one, two = (ClusterAuthority.create(CLUSTER, clock) for _ in range(2))
    assert read_bundle(one.bundle + two.bundle, CLUSTER) == one.bundle + two.bundle
    stranger = ClusterAuthority.create("other", clock)
    with pytest.raises(AuthorityRefused, match="of other, not of"):
        read_bundle(one.bundle + stranger.bundle, CLUSTER)
    with pytest.raises(AuthorityRefused, match="no certificates"):
        read_bundle(b"nothing", CLUSTER)


@pytest.mark.parametrize("name", ["", "Alps", "a very long name of a cluster with Ünïcode"])
def test_a_new_id_is_one_and_never_twice(name: str) -> None:
    ids = {checked_cluster(new_cluster_id(name)) for _ in range(50)}
    assert len(ids) == 50
