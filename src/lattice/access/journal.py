"""Ports of the journal, in which a server records admitted calls, refused calls, and acts."""

from __future__ import annotations

from typing import Protocol


class ActJournal(Protocol):
    """Records acts of people."""

    def acted(
        self, act: str, target: str, sub: str, detail: str, *, owner: str = "", tenant: str = ""
    ) -> None:
        """Record an act. `owner` and `tenant` are those of the allocation that it concerns."""


class AccessJournal(Protocol):
    """Records calls that were admitted or refused."""

    def refused(self, rpc: str, sub: str, reason: str) -> None: ...

    def admitted(self, rpc: str) -> None: ...


class RefusalJournal(Protocol):
    """Records what was refused."""

    def refused(self, rpc: str, who: str, reason: str, /) -> None: ...
