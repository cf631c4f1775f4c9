"""Reads and makes the node's keys and certificates in a process that ends after each question.

The library for that would stay in the agent's memory for good. See `certificates` for the other
side. Keys pass through pipes: never in arguments, the environment or files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from typing import TypeAlias

import msgspec

from lattice.agent.identity_store import IdentityRefused
from lattice.base.errors import Unavailable
from lattice.domain.peer import PeerIdentity, PeerKind

LARGEST_BYTES = 4 << 20
"""Of a question; the file with an identity has at most a quarter of it."""
_ARGV = (sys.executable, "-P", "-m", "lattice.agent.certificates")
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH")
_TIMEOUT_S = 60.0
"""Much more than it takes: the jobs of a node may use all its processors."""


class NewRequest(msgspec.Struct, frozen=True, tag="new_request", forbid_unknown_fields=True):
    """Make a key, and a signing request for it."""

    node: str


class ReadIdentity(msgspec.Struct, frozen=True, tag="read_identity", forbid_unknown_fields=True):
    """Check that these are the identity of the node."""

    certificate: str
    key: str
    authorities: str
    node: str
    believed: str

    def __repr__(self) -> str:
        return f"ReadIdentity(node={self.node!r})"


class ReadSvid(msgspec.Struct, frozen=True, tag="read_svid", forbid_unknown_fields=True):
    """Check that this is the node's SPIFFE certificate, and pick the cluster's authorities."""

    certificate: str
    key: str
    authorities: str
    node: str
    path: str

    def __repr__(self) -> str:
        return f"ReadSvid(node={self.node!r})"


class CheckStatement(
    msgspec.Struct, frozen=True, tag="check_statement", forbid_unknown_fields=True
):
    """Check that one of the authorities signed the statement; the signature is in hex."""

    statement: str
    signature: str
    authorities: str


CertificateQuestion: TypeAlias = NewRequest | ReadIdentity | ReadSvid | CheckStatement


class PeerCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `PeerIdentity` in JSON, which has no integers as large as a serial number."""

    kind: PeerKind
    name: str
    cluster: str
    serial: str
    not_before: datetime
    not_after: datetime
    generation: int
    spiffe_id: str = ""

    @classmethod
    def of(cls, peer: PeerIdentity) -> PeerCard:
        return cls(
            peer.kind,
            peer.name,
            peer.cluster,
            f"{peer.serial:x}",
            peer.not_before,
            peer.not_after,
            peer.generation,
            peer.spiffe_id,
        )

    def identity(self) -> PeerIdentity:
        """Raises `ValueError` if the serial is no number."""
        return PeerIdentity(
            kind=self.kind,
            name=self.name,
            cluster=self.cluster,
            serial=int(self.serial, 16),
            not_before=self.not_before,
            not_after=self.not_after,
            generation=self.generation,
            spiffe_id=self.spiffe_id,
        )


class CertificateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer: a refusal, a peer, a key with its request, or nothing to add."""

    refused: str = ""
    peer: PeerCard | None = None
    key: str = ""
    csr: str = ""
    authorities: str = ""

    def __repr__(self) -> str:
        return f"CertificateAnswer(refused={self.refused!r}, peer={self.peer!r})"


class CertificateProcess:
    """The port `Certificates`. Each question starts a process."""

    def __init__(self, argv: tuple[str, ...] = _ARGV, timeout_s: float = _TIMEOUT_S) -> None:
        self._argv = argv
        self._timeout_s = timeout_s

    def new_request(self, node: str) -> tuple[str, str]:
        answer = self._ask(NewRequest(node))
        if not (answer.key and answer.csr):
            raise _unusable("it made no key")
        return answer.key, answer.csr

    def read_identity(
        self, certificate: str, key: str, authorities: str, node: str, *, believed: str = ""
    ) -> PeerIdentity:
        return _peer_in(self._ask(ReadIdentity(certificate, key, authorities, node, believed)))

    def read_svid(
        self, certificate: str, key: str, authorities: str, node: str, path: str
    ) -> tuple[PeerIdentity, str]:
        answer = self._ask(ReadSvid(certificate, key, authorities, node, path))
        return _peer_in(answer), answer.authorities

    def check_statement(self, statement: bytes, signature: bytes, authorities: str) -> None:
        answer = self._ask(CheckStatement(statement.decode(), signature.hex(), authorities))
        if answer.refused:
            raise IdentityRefused(answer.refused)

    def _ask(self, question: CertificateQuestion) -> CertificateAnswer:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            done = subprocess.run(
                self._argv,
                input=msgspec.json.encode(question),
                stdout=subprocess.PIPE,
                env=environment,
                timeout=self._timeout_s,
                check=True,
            )
            return msgspec.json.decode(done.stdout, type=CertificateAnswer)
        except subprocess.TimeoutExpired:
            raise _unusable(f"no answer within {self._timeout_s:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise _unusable(f"it ended with {error.returncode}") from None
        except OSError as error:
            raise _unusable(error.strerror or str(error)) from None
        except msgspec.MsgspecError:
            raise _unusable("its answer can't be read") from None


def _peer_in(answer: CertificateAnswer) -> PeerIdentity:
    if answer.refused or answer.peer is None:
        raise IdentityRefused(answer.refused or "the certificate can't be checked")
    try:
        return answer.peer.identity()
    except ValueError:
        raise _unusable("its answer can't be read") from None


def _unusable(reason: str) -> Unavailable:
    return Unavailable(f"The process that reads certificates failed: {reason}.")
