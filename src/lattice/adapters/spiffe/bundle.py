"""The authorities of a SPIFFE trust domain, for the listener that nodes dial.

They come from a file, or from a Workload API. What can't be used is refused with one line in the
log, and the old authorities stay in force. Without any, TLS refuses every SVID.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from lattice.adapters.spiffe.workload import WorkloadApi
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, LatticeError

_log = logging.getLogger("lattice.spiffe")
_CHECK_EVERY_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LARGEST_BYTES = 1 << 20


class BundleRefused(ConfigurationError):
    """These are no authorities of a trust domain; the text is the reason."""


def checked_bundle(pem: bytes) -> bytes:
    """The authorities in PEM, without anything else. Raises `BundleRefused`."""
    try:
        found = x509.load_pem_x509_certificates(pem[:_LARGEST_BYTES])
        if not all(map(_is_authority, found)):
            raise BundleRefused("holds a certificate that is no authority's")
    except ValueError:
        raise BundleRefused("holds no certificates") from None
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def read_bundle_file(file: Path) -> bytes:
    """The authorities in a file. Raises `BundleRefused`."""
    try:
        return checked_bundle(file.read_bytes())
    except OSError as error:
        raise BundleRefused(f"{file}: {error.strerror}") from None
    except BundleRefused as error:
        raise BundleRefused(f"{file} {error.message}") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return False
    return basic.ca


class BundleFile:
    """Authorities from a file, which is read again when it changes. Thread-safe."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """Raises `BundleRefused` if the file can't be used."""
        self._file = file
        self._clock = clock
        self._lock = Lock()
        self._stamp = self._stamp_now()
        self._checked_at = clock.monotonic()
        self._pem = read_bundle_file(file)

    def authorities(self) -> bytes:
        """Those in force, in PEM."""
        with self._lock:
            if self._clock.monotonic() - self._checked_at >= _CHECK_EVERY_S:
                self._checked_at = self._clock.monotonic()
                stamp = self._stamp_now()
                if stamp and stamp != self._stamp:
                    self._stamp = stamp
                    self._read_again()
            return self._pem

    def _read_again(self) -> None:
        try:
            self._pem = read_bundle_file(self._file)
        except BundleRefused as error:
            _log.error("bundle refused, the old one stays", extra={"reason": error.message})
        else:
            _log.info("bundle read", extra={"file": str(self._file)})

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)


class BundleStream:
    """Authorities from a Workload API; `run` receives them. There are none before the first."""

    def __init__(
        self,
        api: WorkloadApi,
        domain: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._domain = domain
        self._sleep = sleep
        self._pem = b""

    def authorities(self) -> bytes:
        """Those in force, in PEM."""
        return self._pem

    async def run(self) -> None:
        """Receive them until cancelled. The same reason for a failure is one line."""
        pauses, logged = _pauses(), ""
        while True:
            try:
                async for pem in self._api.bundles(self._domain):
                    self._take(pem)
                    pauses, logged = _pauses(), ""
            except LatticeError as error:
                if error.message != logged:
                    reason = {"reason": error.message, "domain": self._domain}
                    _log.warning("no authorities from SPIRE", extra=reason)
                logged = error.message
            await self._sleep(next(pauses))

    def _take(self, pem: str) -> None:
        found = checked_bundle(pem.encode())
        if found != self._pem:
            self._pem = found
            _log.info("authorities from SPIRE", extra={"domain": self._domain})


Bundle: TypeAlias = BundleFile | BundleStream


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
