"""Reads the server's files and disks. Every function blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from lattice.base.errors import ConfigurationError
from lattice.features.doctor.service.facts import CertificateFacts, FolderFacts

_LARGEST_BYTES = 1024 * 1024
_LOGS = (Path("/var/log/journal"), Path("/run/log/journal"), Path("/var/log"))
"""Where systemd's journal is, or else other logs: the server logs to standard error."""


def folder_facts(folder: Path) -> FolderFacts:
    """The disk of a folder, or of its nearest parent that is there. Raises `OSError`."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    disk = os.statvfs(there)
    return FolderFacts(
        folder=str(folder),
        free_bytes=disk.f_bavail * disk.f_frsize,
        total_bytes=disk.f_blocks * disk.f_frsize,
        read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def log_folder_facts(folders: Sequence[Path] = _LOGS) -> FolderFacts:
    """The disk of the system's log. Raises `OSError`.

    The server's unit may see it read-only (`ProtectSystem=strict`), and does not write there.
    """
    folder = next((each for each in folders if each.is_dir()), folders[-1])
    return replace(folder_facts(folder), read_only=False)


def certificate_facts(file: Path) -> CertificateFacts:
    """The first certificate of a file and its chain. Raises `OSError`, `ConfigurationError`."""
    with file.open("rb") as stream:
        data = stream.read(_LARGEST_BYTES)
    try:
        chain = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ConfigurationError(f"{file} holds no certificate in PEM form") from None
    return CertificateFacts(
        file=str(file),
        expires=min(each.not_valid_after_utc for each in chain),
        names=tuple(_names(chain[0])),
        links=len(chain),
        fault=_chain_fault(chain),
    )


def _names(certificate: x509.Certificate) -> Iterable[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from found.get_values_for_type(x509.DNSName)
    yield from map(str, found.get_values_for_type(x509.IPAddress))


def _chain_fault(chain: Sequence[x509.Certificate]) -> str:
    """What breaks the chain; empty if nothing does.

    Its end may be an authority, as clients have the root. A root may also have signed a single
    certificate. One that names an address of its authority was signed by one below a root.
    """
    for number, (each, issuer) in enumerate(pairwise(chain), start=1):
        try:
            each.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            return f"certificate {number} of the file is not signed by the one after it"
    last = chain[-1]
    if last.issuer == last.subject or _is_authority(last) or not _names_authority(last):
        return ""
    return f"the authority that signed it is missing: {last.issuer.rfc4514_string()}"


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _names_authority(certificate: x509.Certificate) -> bool:
    try:
        certificate.extensions.get_extension_for_class(x509.AuthorityInformationAccess)
    except x509.ExtensionNotFound:
        return False
    return True
