"""The guard of the agents' listener: certificates of the cluster, and nothing else.

TLS has verified the signature of the cluster's authority before. The guard reads the identity from
the certificate, strictly: exactly one URI of ours, and no guesses. It compares the kind with what
the rpc declares, and calls `believe`, which checks revocation and quarantine. Rpcs for people do
not exist on this listener.

If the site has a SPIFFE trust domain, TLS accepts its authorities too. They speak for SPIFFE IDs
alone: `PeerReader` checks that the cluster's own authority signed every other certificate.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.base.errors import LatticeError, LoginRequired, PermissionRefused
from lattice.domain.peer import BadName, PeerIdentity, PeerKind, read_uri
from lattice.domain.spiffe import NodeIds, NodePath, is_spiffe, split_id
from lattice.wire.interceptor import Context, Finished, GuardingInterceptor, not_timed

_LARGEST_BYTES = 64 * 1024
_GENERATION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
KINDS = {"AGENT": PeerKind.NODE, "REPLICA": PeerKind.REPLICA}
_PEER: ContextVar[PeerIdentity] = ContextVar("lattice_grpc_peer")


def peer_of(context: Context, read: Callable[[bytes], PeerIdentity] | None = None) -> PeerIdentity:
    """The peer of an rpc on the agents' listener; `read` reads its certificate.

    Raises `LoginRequired` without a certificate, `PermissionRefused` for an invalid one.
    """
    shown = tuple(context.auth_context().get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise LoginRequired(
            "A certificate of the cluster is needed here.",
            hint="People call api.grpc_listen; this port is for agents and replicas.",
        )
    return (read or read_peer)(bytes(shown[0]))


@lru_cache(maxsize=16_384)
def read_peer(pem: bytes) -> PeerIdentity:
    """The holder of a certificate. Raises `PermissionRefused`.

    Cached, because a node shows the same one with every call. Revocation and expiry, which must be
    checked each time, are not checked here.
    """
    certificate = _loaded(pem)
    try:
        cluster, kind, name = read_uri(_only_uri(certificate))
        _for_a_client(certificate)
        generation = _generation(certificate)
    except (BadName, ValueError) as fault:
        raise _not_accepted(fault) from None
    return _identity(certificate, kind, name, cluster, generation=generation)


class PeerReader:
    """Reads certificates of the cluster's authority and of nodes of a SPIFFE trust domain."""

    def __init__(self, cluster: str, ids: NodeIds, authorities: Callable[[], bytes]) -> None:
        """`authorities` returns those of the cluster itself, in PEM."""
        self._cluster = cluster
        self._ids = ids
        self._authorities = authorities

    def read(self, pem: bytes) -> PeerIdentity:
        """The holder of a certificate. Raises `PermissionRefused`."""
        return _read_either(pem, self._cluster, self._ids, self._authorities())


@lru_cache(maxsize=16_384)
def _read_either(pem: bytes, cluster: str, ids: NodeIds, authorities: bytes) -> PeerIdentity:
    certificate = _loaded(pem)
    try:
        is_svid = is_spiffe(_only_uri(certificate))
    except (BadName, ValueError) as fault:
        raise _not_accepted(fault) from None
    if is_svid:
        return _svid(certificate, cluster, ids.node_of)
    if not is_signed_by(certificate, authorities):
        # The site's SPIRE must not be able to make a replica, or a node with another URI.
        raise _not_accepted(BadName("the cluster's authority did not sign it"))
    return read_peer(pem)


def read_svid(pem: bytes, cluster: str, path: NodePath) -> PeerIdentity:
    """The node of this cluster that a SPIFFE certificate of any trust domain names.

    For the node itself, which does not choose whom servers trust. Raises `PermissionRefused`.
    """
    return _svid(_loaded(pem), cluster, lambda uri: path.node_of(split_id(uri)[1]))


def _svid(
    certificate: x509.Certificate, cluster: str, node_of: Callable[[str], str]
) -> PeerIdentity:
    try:
        uri = _only_uri(certificate)
        node = node_of(uri)
        _for_a_client(certificate)
    except (BadName, ValueError) as fault:
        raise _not_accepted(fault) from None
    return _identity(certificate, PeerKind.NODE, node, cluster, spiffe_id=uri)


def is_signed_by(certificate: x509.Certificate, authorities: bytes) -> bool:
    """True if one of these authorities (PEM) signed the certificate itself."""
    for authority in x509.load_pem_x509_certificates(authorities):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _loaded(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem[:_LARGEST_BYTES])
    except ValueError as fault:
        raise _not_accepted(fault) from None


def _not_accepted(fault: ValueError) -> PermissionRefused:
    # The parser's own text is about ASN.1 and helps nobody.
    why = str(fault) if isinstance(fault, BadName) else "it can't be read"
    return PermissionRefused(f"The certificate is not accepted: {why}.")


def _identity(
    certificate: x509.Certificate,
    kind: PeerKind,
    name: str,
    cluster: str,
    *,
    generation: int = 0,
    spiffe_id: str = "",
) -> PeerIdentity:
    return PeerIdentity(
        kind=kind,
        name=name,
        cluster=cluster,
        serial=certificate.serial_number,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        generation=generation,
        spiffe_id=spiffe_id,
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

    `note_use` is called with each admitted certificate, before its rpc runs. `read` returns the
    holder of a certificate.
    """

    def __init__(
        self,
        permissions: Mapping[str, str],
        believe: Callable[[PeerIdentity], None],
        refused: Callable[[str, str, LatticeError], None],
        on_defect: Callable[[str, BaseException], None],
        note_use: Callable[[PeerIdentity], Awaitable[None]] = _not_noted,
        read: Callable[[bytes], PeerIdentity] = read_peer,
        finished: Finished = not_timed,
    ) -> None:
        super().__init__(on_defect, finished=finished)
        self._read = read
        self._note_use = note_use
        self._permissions = permissions
        self._believe = believe
        self._refused = refused

    async def admit(self, rpc: str, context: Context) -> None:
        """Once per call: open links of a node that is not trusted any more are ended elsewhere."""
        peer = self._known(rpc, lambda: peer_of(context, self._read), context.peer())
        _PEER.set(peer)
        await self._note_use(peer)

    async def admit_certificate(self, rpc: str, pem: bytes, who: str) -> PeerIdentity:
        """As `admit`, for a connection without gRPC that does the same as this rpc."""
        peer = self._known(rpc, lambda: self._read(pem), who)
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
