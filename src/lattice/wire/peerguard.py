"""The guard of the agents' listener: certificates of the cluster, and nothing else.

TLS has verified the signature of the cluster's authority before. The guard reads the identity,
compares its kind with what the rpc declares, and calls `believe`, which checks revocation and
quarantine. Rpcs for people do not exist on this listener.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

from lattice.base.errors import LatticeError, PermissionRefused
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.wire.door import Context, GuardingInterceptor
from lattice.wire.peer import peer_of

KINDS = {"AGENT": PeerKind.NODE, "REPLICA": PeerKind.REPLICA}

_PEER: ContextVar[PeerIdentity] = ContextVar("lattice_grpc_peer")


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
        peer = self._known(rpc, context)
        _PEER.set(peer)
        await self._note_use(peer)

    def _known(self, rpc: str, context: Context) -> PeerIdentity:
        who = context.peer()
        try:
            needed = KINDS.get(self._permissions.get(rpc, ""))
            peer = peer_of(context)
            who = peer.uri
            if needed is None or peer.kind is not needed:
                raise PermissionRefused(f"{rpc} is not for a {peer.kind.value}.")
            self._believe(peer)
        except LatticeError as error:
            self._refused(rpc, who, error)
            raise
        return peer
