"""TLS for both listeners, from files that may change while the server runs.

Certificate, key and client authorities are read, checked and put in force together. A pair that
does not fit or has expired is refused with a log line, and the old one stays in force. A change
affects new connections only.

HTTP: uvicorn gets a `ReloadingContext`; each connection uses the current context, with its own
session cache. Loading into one context again would leave the old authorities trusted, because
OpenSSL only ever adds to a store. It would also let a client resume a session that they had
admitted.

gRPC: fetches the current certificates itself before every handshake.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError
from lattice.base.supervisor import Loop, OnFailure

_log = logging.getLogger("lattice.tls")
_LARGEST_FILE_BYTES = 1 << 20
_CLOCK_SLACK = timedelta(minutes=5)


class TlsRefused(ConfigurationError):
    """The files can't be used; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths. With `authorities`, clients must show a certificate that they signed."""

    certificate: Path
    key: Path
    authorities: Path | None = None

    def stamp(self) -> tuple[tuple[int, int, int, int], ...]:
        """Changes whenever a file is written, replaced or linked elsewhere."""
        files = (self.certificate, self.key, self.authorities)
        try:
            found = [file.stat() for file in files if file is not None]
        except OSError:
            # A file between unlink and rename; when it is back, the stamp differs.
            return ()
        return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The content of the files, checked to fit together."""

    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes | None = None

    def context(self, *, client_certificate: bool) -> ssl.SSLContext:
        """A context for one listener. Raises `TlsRefused`."""
        context = _plain_context()
        try:
            _load_pair(context, self.certificate, self.key)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsRefused(f"certificate and key can't be used: {_reason(error)}") from None
        if client_certificate:
            self._require_client(context)
        return context

    def _require_client(self, context: ssl.SSLContext) -> None:
        if self.authorities is None:
            raise TlsRefused("no authorities for client certificates are named")
        try:
            context.load_verify_locations(cadata=self.authorities.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise TlsRefused(f"the authorities can't be used: {_reason(error)}") from None
        if not context.get_ca_certs():
            raise TlsRefused("the authorities hold no certificate of an authority")
        context.verify_mode = ssl.CERT_REQUIRED


def read_material(files: TlsFiles) -> TlsMaterial:
    """Read all files and check that they fit. Raises `TlsRefused`."""
    material = TlsMaterial(
        _read(files.certificate),
        _read(files.key),
        None if files.authorities is None else _read(files.authorities),
    )
    material.context(client_certificate=material.authorities is not None)
    _check_validity(material.certificate, SystemClock().now())
    return material


def _check_validity(certificate: bytes, now: datetime) -> None:
    # A new certificate that clients refuse must not replace one that they accept.
    first = x509.load_pem_x509_certificates(certificate)[0]
    if first.not_valid_after_utc <= now:
        raise TlsRefused(
            f"the certificate expired on {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            hint="Put a renewed certificate into the file.",
        )
    if first.not_valid_before_utc > now + _CLOCK_SLACK:
        raise TlsRefused(
            f"the certificate is valid from {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, "
            f"and this machine has {now:%Y-%m-%d %H:%M} UTC",
            hint="Check the clock of this machine, then the certificate.",
        )


def root_of(chain: bytes) -> str:
    """The self-signed authority at the end of a chain, in PEM; empty if it does not have one."""
    try:
        last = x509.load_pem_x509_certificates(chain)[-1]
    except ValueError:
        return ""
    if last.issuer != last.subject:
        return ""
    return last.public_bytes(Encoding.PEM).decode()


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise TlsRefused(f"{file}: {error.strerror}") from None
    if len(data) > _LARGEST_FILE_BYTES:
        raise TlsRefused(f"{file} is too large")
    return data


def _plain_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Python only loads pairs by path. The bytes already read go through memory files. So what was
    # checked is what is served, and the key is never written to a disk.
    with _memory_file(certificate) as chain, _memory_file(key) as private:
        context.load_cert_chain(
            f"/proc/self/fd/{chain.fileno()}",
            f"/proc/self/fd/{private.fileno()}",
            password=_no_password,
        )


def _memory_file(data: bytes) -> Any:
    stream = os.fdopen(os.memfd_create("lattice-tls", os.MFD_CLOEXEC), "wb", buffering=0)
    stream.write(data)
    return stream


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and a server has none.
    raise ValueError("the key is encrypted; it must be usable without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {
            None: "no certificate in PEM form",
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "NO_START_LINE": "PEM expected",
        }
        return reasons.get(error.reason) or error.reason.lower().replace("_", " ")
    return str(error)


class ReloadingContext(ssl.SSLContext):
    """Delegates to the context that is in force when a connection is made."""

    current: Callable[[], ssl.SSLContext]

    def __new__(cls, current: Callable[[], ssl.SSLContext]) -> Self:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self.current = current
        return self

    def __init__(self, current: Callable[[], ssl.SSLContext]) -> None:
        """SSLContext does its work in `__new__`."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Called by asyncio for each accepted connection."""
        return self.current().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Called by blocking servers."""
        return self.current().wrap_socket(*args, **options)


class PlainText:
    """Both listeners without TLS."""

    encrypts = False
    loops: tuple[Loop, ...] = ()

    def prepare_http(self, config: uvicorn.Config) -> None:
        """Nothing to set."""

    def add_grpc_port(self, server: aio.Server, address: str) -> None:
        """Open the port. Raises `RuntimeError` if the address can't be used."""
        server.add_insecure_port(address)

    def reload(self) -> bool:
        """There are no files."""
        return True


class ServerTls:
    """The TLS of the server: the current material, and the watch that renews it."""

    encrypts = True

    def __init__(
        self, files: TlsFiles, *, rest_mtls: bool = False, grpc_mtls: bool = False
    ) -> None:
        self._files = files
        self._rest_mtls = rest_mtls
        self._grpc_mtls = grpc_mtls
        self._stamp = files.stamp()
        self._material = read_material(files)
        self._context = self._material.context(client_certificate=rest_mtls)
        self._served_to_grpc = self._material

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("tls", self.watch, OnFailure.RESTART),)

    def prepare_http(self, config: uvicorn.Config) -> None:
        config.load()
        config.ssl = self.http_context()

    def add_grpc_port(self, server: aio.Server, address: str) -> None:
        """Open the port. Raises `RuntimeError` if the address can't be used."""
        server.add_secure_port(address, self.grpc_credentials())

    def http_context(self) -> ssl.SSLContext:
        """For `uvicorn.Config.ssl`; follows every reload."""
        return ReloadingContext(lambda: self._context)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`; follows every reload."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(self._material),
            # The stubs don't have that the fetcher may return None.
            self._fetch_for_grpc,  # type: ignore[arg-type]
            require_client_authentication=self._grpc_mtls,
        )

    def reload(self) -> bool:
        """Read the files again, changed or not; False if they were refused."""
        self._stamp = self._files.stamp()
        try:
            material = read_material(self._files)
            context = material.context(client_certificate=self._rest_mtls)
        except TlsRefused as error:
            _log.error(
                "tls files refused, the old ones stay in force", extra={"reason": str(error)}
            )
            return False
        self._material, self._context = material, context
        _log.info("tls files reloaded", extra={"certificate": str(self._files.certificate)})
        return True

    async def watch(self, *, interval_s: float = 5.0) -> None:
        """Reload on every change of the files, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if self._files.stamp() != self._stamp:
                self.reload()

    def _fetch_for_grpc(self) -> grpc.ServerCertificateConfiguration | None:
        # Called by gRPC from its own threads, before each handshake; None means unchanged.
        material = self._material
        if material is self._served_to_grpc:
            return None
        self._served_to_grpc = material
        return self._grpc_configuration(material)

    def _grpc_configuration(self, material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
        roots = material.authorities if self._grpc_mtls else None
        pairs = [(material.key, material.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, root_certificates=roots)


ListenerTls: TypeAlias = ServerTls | PlainText
