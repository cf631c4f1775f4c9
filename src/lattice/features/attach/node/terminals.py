"""The node's end of a session: a connection to the holder's socket, by the server's request.

The agent keeps no state of a terminal, so a restarted agent serves sessions it never saw. It checks
only that a request belongs to its stream.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from lattice.base.errors import PermissionRefused
from lattice.domain.privileged import (
    BadQuestion,
    Enter,
    EnterSigned,
    Rejoin,
    RejoinSigned,
    read_request,
)
from lattice.domain.stream import Carrier
from lattice.features.attach.recording_frames import has_order


class Terminals(Protocol):
    """Opens terminals in jobs."""

    def open(self, request: bytes, *, resume: bool) -> AbstractAsyncContextManager[Carrier]:
        """A carrier to the holder. Raises errors of `lattice.base.errors`."""


class Recorded(Protocol):
    """Opens terminals with a recorder."""

    def connect(
        self, session: str, opening: bytes, *, resume: bool
    ) -> AbstractAsyncContextManager[Carrier]:
        """A carrier to the recorder. Raises errors of `lattice.base.errors`."""


class TerminalPassing:
    """The port `PassOn` for `StreamKind.ATTACH`."""

    def __init__(self, terminals: Terminals, recorded: Recorded | None = None) -> None:
        """Without `recorded` no terminal of sensitive work opens here."""
        self._terminals = terminals
        self._recorded = recorded

    def __call__(
        self, session: str, opening: bytes, *, resume: bool
    ) -> AbstractAsyncContextManager[Carrier]:
        if has_order(opening):
            if self._recorded is None:
                raise PermissionRefused("This node records no terminals.")
            return self._recorded.connect(session, opening, resume=resume)
        try:
            _, _, question = read_request(opening)
        except BadQuestion as fault:
            raise PermissionRefused(f"The question can't be asked: {fault}.") from None
        if not isinstance(question, Rejoin if resume else Enter) or question.session != session:
            raise PermissionRefused("The question is not this session's.")
        if isinstance(question, EnterSigned | RejoinSigned):
            raise PermissionRefused("A terminal of sensitive work needs a recorder.")
        return self._terminals.open(opening, resume=resume)
