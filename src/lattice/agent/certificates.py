"""Reads and makes the node's keys and certificates, in this process.

    python -P -m lattice.agent.certificates

As a program it answers one question from standard input on standard output, and ends. The agent
uses it so (`certificate_process`): what this module imports takes 9 MiB, and an agent needs it only
a few times a day. Keys pass through the pipes only.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import BinaryIO

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lattice.adapters.pki.authority import AuthorityRefused, cluster_of, is_stated_by
from lattice.agent.certificate_process import (
    LARGEST_BYTES,
    CertificateAnswer,
    CertificateQuestion,
    CheckStatement,
    NewRequest,
    PeerCard,
    ReadSvid,
)
from lattice.agent.identity_store import IdentityRefused
from lattice.base.errors import LatticeError
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.domain.spiffe import NodePath
from lattice.wire.peerguard import is_signed_by, read_peer, read_svid


class LocalCertificates:
    """The port `Certificates`."""

    def new_request(self, node: str) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node)])
        csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return pem.decode(), csr.public_bytes(serialization.Encoding.PEM).decode()

    def read_identity(
        self, certificate: str, key: str, authorities: str, node: str, *, believed: str = ""
    ) -> PeerIdentity:
        if believed and not _signed_by(certificate, believed):
            raise IdentityRefused("the certificate is not signed by an authority of this cluster")
        try:
            peer = read_peer(certificate.encode())
        except LatticeError as error:
            raise IdentityRefused(error.message) from None
        if peer.kind is not PeerKind.NODE or peer.name != node:
            owner = f"{peer.kind} {peer.name}"
            raise IdentityRefused(f"the certificate is that of {owner}, not of {node}")
        _check_key(certificate, key)
        try:
            x509.load_pem_x509_certificates(authorities.encode())
        except ValueError:
            raise IdentityRefused("key or authorities can't be read") from None
        return peer

    def read_svid(
        self, certificate: str, key: str, authorities: str, node: str, path: str
    ) -> tuple[PeerIdentity, str]:
        cluster, trusted = _clusters_own(authorities)
        try:
            peer = read_svid(certificate.encode(), cluster, NodePath(path))
        except LatticeError as error:
            raise IdentityRefused(error.message) from None
        if peer.name != node:
            raise IdentityRefused(f"the SVID {peer.spiffe_id} is not that of {node}")
        _check_key(certificate, key)
        return peer, trusted

    def check_statement(self, statement: bytes, signature: bytes, authorities: str) -> None:
        if not is_stated_by(authorities.encode(), statement, signature):
            raise IdentityRefused("the statement is not signed by an authority of this cluster")


def _clusters_own(authorities: str) -> tuple[str, str]:
    """The cluster that a file's authorities are of, and those alone. Raises `IdentityRefused`."""
    found = {}
    try:
        for each in x509.load_pem_x509_certificates(authorities.encode()):
            with suppress(AuthorityRefused):
                pem = each.public_bytes(serialization.Encoding.PEM).decode()
                found[pem] = cluster_of(each)
    except ValueError:
        raise IdentityRefused("bootstrap.ca holds no certificates") from None
    clusters = sorted(set(found.values()))
    if len(clusters) != 1:
        named = f"authorities of {' and '.join(clusters)}" if clusters else "none"
        raise IdentityRefused(f"bootstrap.ca must hold one cluster's authority, and has {named}")
    return clusters[0], "".join(found)


def _check_key(certificate: str, key: str) -> None:
    """Raises `IdentityRefused` if the key is not that of the certificate."""
    try:
        secret = serialization.load_pem_private_key(key.encode(), password=None)
        shown = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    except (ValueError, TypeError):
        raise IdentityRefused("key or authorities can't be read") from None
    if secret.public_key() != shown:
        raise IdentityRefused("the key is not that of the certificate")


def _signed_by(certificate: str, authorities: str) -> bool:
    try:
        shown = x509.load_pem_x509_certificate(certificate.encode())
        return is_signed_by(shown, authorities.encode())
    except ValueError:
        return False


def answer_to(question: CertificateQuestion) -> CertificateAnswer:
    """Answer one question of the agent."""
    local = LocalCertificates()
    if isinstance(question, NewRequest):
        key, csr = local.new_request(question.node)
        return CertificateAnswer(key=key, csr=csr)
    try:
        if isinstance(question, CheckStatement):
            local.check_statement(
                question.statement.encode(), bytes.fromhex(question.signature), question.authorities
            )
            return CertificateAnswer()
        if isinstance(question, ReadSvid):
            peer, trusted = local.read_svid(
                question.certificate,
                question.key,
                question.authorities,
                question.node,
                question.path,
            )
            return CertificateAnswer(peer=PeerCard.of(peer), authorities=trusted)
        peer = local.read_identity(
            question.certificate,
            question.key,
            question.authorities,
            question.node,
            believed=question.believed,
        )
    except IdentityRefused as refusal:
        return CertificateAnswer(refused=refusal.message)
    return CertificateAnswer(peer=PeerCard.of(peer))


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Answer the question of the source. Raises `MsgspecError` if it can't be read."""
    question = msgspec.json.decode(source.read(LARGEST_BYTES), type=CertificateQuestion)
    target.write(msgspec.json.encode(answer_to(question)))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
