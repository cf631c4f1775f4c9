"""The guard of the agents' listener: certificates of the cluster, and nothing else.

TLS has verified the signature of the cluster's authority before. The guard reads the identity from
the certificate, strictly: exactly one URI of ours, and no guesses. It compares the kind with what
the rpc declares, and calls `believe`, which checks revocation and quarantine. Rpcs for people do
not exist on this listener.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.base.errors import LatticeError, LoginRequired, PermissionRefused
from lattice.domain.peer import BadName, PeerIdentity, PeerKind, read_uri
from lattice.wire.interceptor import Context, GuardingInterceptor

_LARGEST_BYTES = 64 * 1024
_GENERATION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
KINDS = {"AGENT": PeerKind.NODE, "REPLICA": PeerKind.REPLICA}
_PEER: ContextVar[PeerIdentity] = ContextVar("lattice_grpc_peer")


def peer_of(context: Context) -> PeerIdentity:
    """The peer of an rpc on the agents' listener.

    Raises `LoginRequired` without a certificate, `PermissionRefused` for an invalid one.
    """
    shown = tuple(context.auth_context().get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise LoginRequired(
            "A certificate of the cluster is needed here.",
            hint="People call api.grpc_listen; this port is for agents and replicas.",
        )
    return read_peer(bytes(shown[0]))


@lru_cache(maxsize=16_384)
def read_peer(pem: bytes) -> PeerIdentity:
    """The holder of a certificate. Raises `PermissionRefused`.

    Cached, because a node shows the same one with every call. Revocation and expiry, which must be
    checked each time, are not checked here.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem[:_LARGEST_BYTES])
        cluster, kind, name = read_uri(_only_uri(certificate))
        _for_a_client(certificate)
        generation = _generation(certificate)
    except BadName as fault:
        raise PermissionRefused(f"The certificate is not accepted: {fault}.") from None
    except ValueError:
        # The parser's own text is about ASN.1 and helps nobody.
        raise PermissionRefused("The certificate is not accepted: it can't be read.") from None
    return PeerIdentity(
        kind=kind,
        name=name,
        cluster=cluster,
        serial=certificate.serial_number,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        generation=generation,
    )


def _only_uri(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise BadName("it names neither a node nor a replica") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise BadName("it must carry exactly one URI")
    return uris[0]


def _generation(certificate: x509.Certificate) -> int:
    found = certificate.subject.get_attributes_for_oid(NameOID.GENERATION_QUALIFIER)
    if not found:
        return 0
    text = str(found[0].value)
    if len(found) > 1 or not _GENERATION.fullmatch(text):
        raise BadName("its generation can't be read")
    return int(text)


def _for_a_client(certificate: x509.Certificate) -> None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        raise BadName("it is not made for a client") from None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise BadName("it is not made for a client")
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return
    if basic.ca:
        raise BadName("it is an authority's own")


def grpc_peer() -> PeerIdentity:
    """The verified node or replica of the rpc that runs in this task."""
    return _PEER.get()


async def _not_noted(peer: PeerIdentity) -> None:
    """The default: the use of certificates is not recorded."""


class PeerGuard(GuardingInterceptor):
    """Admits nodes and replicas to the rpcs that are declared for them. Default is deny.

    `note_use` is called with each admitted certificate, before its rpc runs.
    """

    def __init__(
        self,
        permissions: Mapping[str, str],
        believe: Callable[[PeerIdentity], None],
        refused: Callable[[str, str, LatticeError], None],
        on_defect: Callable[[str, BaseException], None],
        note_use: Callable[[PeerIdentity], Awaitable[None]] = _not_noted,
    ) -> None:
        super().__init__(on_defect)
        self._note_use = note_use
        self._permissions = permissions
        self._believe = believe
        self._refused = refused

    async def admit(self, rpc: str, context: Context) -> None:
        """Once per call: open links of a node that is not trusted any more are ended elsewhere."""
        peer = self._known(rpc, lambda: peer_of(context), context.peer())
        _PEER.set(peer)
        await self._note_use(peer)

    async def admit_certificate(self, rpc: str, pem: bytes, who: str) -> PeerIdentity:
        """As `admit`, for a connection without gRPC that does the same as this rpc."""
        peer = self._known(rpc, lambda: read_peer(pem), who)
        await self._note_use(peer)
        return peer

    def _known(self, rpc: str, read: Callable[[], PeerIdentity], who: str) -> PeerIdentity:
        try:
            needed = KINDS.get(self._permissions.get(rpc, ""))
            peer = read()
            who = peer.uri
            if needed is None or peer.kind is not needed:
                raise PermissionRefused(f"{rpc} is not for a {peer.kind.value}.")
            self._believe(peer)
        except LatticeError as error:
            self._refused(rpc, who, error)
            raise
        return peer
