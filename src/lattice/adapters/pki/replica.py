"""A replica's own identity: a key in memory, a short-lived certificate, and trusted authorities.

It is created at the start from the authority's files. It is renewed after half of the certificate's
life, or when the files change. Each handshake checks that, so nothing runs in the background.
Unusable files are refused with a line in the log, and the old identity stays in use. Open
connections are not affected.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from lattice.adapters.pki.authority import (
    AuthorityRefused,
    ClusterAuthority,
    private_pem,
    read_bundle,
)
from lattice.base.clock import Clock
from lattice.domain.peer import Issued, server_name
from lattice.wire.lane import LaneIdentity

_log = logging.getLogger("lattice.pki")
_CHECK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    """The files of the authority; `trust` may contain further ones of the same cluster."""

    certificate: Path
    key: Path
    trust: Path | None = None

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when one of them does; empty while one can't be read."""
        try:
            found = [each.stat() for each in (self.certificate, self.key, self.trust) if each]
        except OSError:
            return ()
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


@dataclass(frozen=True, slots=True)
class _InForce:
    authority: ClusterAuthority
    bundle: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    renew_at: datetime
    not_after: datetime


class ReplicaIdentity:
    """This replica's certificate and the authorities that it trusts. Thread-safe."""

    def __init__(
        self,
        files: AuthorityFiles,
        replica: str,
        hosts: Iterable[str],
        clock: Clock,
        *,
        lifetime: timedelta = timedelta(hours=24),
        more_clients: Callable[[], bytes] = bytes,
    ) -> None:
        """Raises `AuthorityRefused` if the files can't be used.

        `more_clients` returns authorities of callers beside the cluster's own, in PEM. They are
        not trusted for anything else.
        """
        self.replica = replica
        self._files = files
        self._hosts = tuple(hosts)
        self._clock = clock
        self._lifetime = lifetime
        self._more_clients = more_clients
        self._lock = Lock()
        self._stamp = files.stamp()
        self._checked_at = clock.monotonic()
        self._now = self._made(self._read())
        self._served = (self._now, b"")
        self._lanes: tuple[_InForce, bytes, ssl.SSLContext] | None = None

    @property
    def cluster(self) -> str:
        """The id of this replica's cluster."""
        return self._now.authority.cluster

    @property
    def authority(self) -> ClusterAuthority:
        """The authority that signs now."""
        return self._current().authority

    @property
    def bundle(self) -> bytes:
        """Every trusted authority; nodes get this."""
        return self._current().bundle

    @property
    def not_after(self) -> datetime:
        """When the current certificate ends."""
        return self._current().not_after

    def sign_statement(self, statement: bytes) -> bytes:
        """As `ClusterAuthority.sign_statement`, with the current authority."""
        return self.authority.sign_statement(statement)

    def sign_node(
        self,
        csr_pem: bytes,
        node: str,
        lifetime: timedelta,
        *,
        after: datetime | None = None,
        generation: int = 0,
    ) -> Issued:
        """As `ClusterAuthority.sign_node`, with the current authority."""
        return self.authority.sign_node(csr_pem, node, lifetime, after=after, generation=generation)

    def grpc_server_credentials(self) -> grpc.ServerCredentials:
        """For the agents' listener: it requires a certificate of the cluster."""
        self._served = (self._current(), self._more_clients())
        return grpc.dynamic_ssl_server_credentials(
            _configuration(*self._served),
            # The stubs don't allow None from the fetcher.
            self._fetch,  # type: ignore[arg-type]
            require_client_authentication=True,
        )

    def lane_context(self) -> ssl.SSLContext:
        """For the next connection to the listener for lanes; it requires a certificate too."""
        now, more = self._current(), self._more_clients()
        if self._lanes is None or self._lanes[0] is not now or self._lanes[1] != more:
            identity = LaneIdentity(now.key, now.certificate, now.bundle + more)
            self._lanes = (now, more, identity.context(server=True))
        return self._lanes[2]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one dial to another replica; use it with `channel_options`."""
        now = self._current()
        return grpc.ssl_channel_credentials(now.bundle, now.key, now.certificate)

    def channel_options(self, replica: str = "") -> tuple[tuple[str, str], ...]:
        """The name that the other end must prove: of this replica, or of any in the cluster."""
        return (("grpc.ssl_target_name_override", server_name(self.cluster, replica)),)

    def reload(self) -> bool:
        """Read the files again, changed or not; False if they were refused."""
        with self._lock:
            self._stamp = self._files.stamp()
            return self._remake()

    def _current(self) -> _InForce:
        with self._lock:
            if self._clock.monotonic() - self._checked_at >= _CHECK_EVERY_S:
                self._checked_at = self._clock.monotonic()
                stamp = self._files.stamp()
                if stamp and stamp != self._stamp:
                    self._stamp = stamp
                    self._remake()
            if self._clock.now() >= self._now.renew_at:
                self._renew()
            return self._now

    def _remake(self) -> bool:
        try:
            self._now = self._made(self._of_this_cluster(self._read()))
        except AuthorityRefused as error:
            _log.error("authority refused, the old one stays", extra={"reason": error.message})
            return False
        _log.info("authority read", extra={"cluster": self._now.authority.cluster})
        return True

    def _of_this_cluster(
        self, read: tuple[ClusterAuthority, bytes]
    ) -> tuple[ClusterAuthority, bytes]:
        if read[0].cluster != self._now.authority.cluster:
            raise AuthorityRefused("the authority is that of another cluster")
        return read

    def _renew(self) -> None:
        try:
            self._now = self._made((self._now.authority, self._now.bundle))
        except AuthorityRefused as error:
            _log.error("own certificate not renewed", extra={"reason": error.message})

    def _read(self) -> tuple[ClusterAuthority, bytes]:
        authority = ClusterAuthority.load(self._files.certificate, self._files.key, self._clock)
        bundle = authority.bundle
        if self._files.trust is not None:
            try:
                more = self._files.trust.read_bytes()
                bundle += read_bundle(more, authority.cluster)
            except OSError as error:
                raise AuthorityRefused(f"{self._files.trust}: {error.strerror}") from None
            except AuthorityRefused as error:
                raise AuthorityRefused(f"{self._files.trust}: {error.message}") from None
        return authority, bundle

    def _made(self, read: tuple[ClusterAuthority, bytes]) -> _InForce:
        authority, bundle = read
        key = ec.generate_private_key(ec.SECP256R1())
        issued = authority.certify_replica(
            key.public_key(), self.replica, self._hosts, self._lifetime
        )
        now = self._clock.now()
        half = now + (issued.not_after - now) / 2
        return _InForce(authority, bundle, issued.pem, private_pem(key), half, issued.not_after)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        # gRPC calls this in its own threads, before each handshake; None means "unchanged".
        now, more = self._current(), self._more_clients()
        if now is self._served[0] and more == self._served[1]:
            return None
        self._served = (now, more)
        return _configuration(now, more)


def _configuration(now: _InForce, more: bytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(now.key, now.certificate)], root_certificates=now.bundle + more
    )
