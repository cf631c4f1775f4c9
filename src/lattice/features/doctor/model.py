"""The answer of the feature: checks with their states. Pure.

`ok` is what was measured and is well. What nobody could measure is `unknown`, with the reason. What
the site does not use is `off`, with what that means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    OFF = "off"


class CheckGroup(StrEnum):
    """The topics, in the order in which they are shown."""

    SLURM = "slurm"
    STATE = "state"
    METRICS = "metrics"
    OBJECTS = "objects"
    CERTIFICATES = "certificates"
    SIGN_IN = "sign_in"
    SERVER = "server"
    AGENTS = "agents"
    MACHINE = "this_machine"
    """The machine of the caller: the client adds these checks itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check with its result."""

    id: str
    group: CheckGroup
    title: str
    state: CheckState
    evidence: str = ""
    """What was measured, with numbers; or why nothing was measured; or what `off` means."""
    remedy: str = ""
    """One sentence to do; empty if there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCounts:
    """How many checks have each state."""

    ok: int = 0
    warning: int = 0
    failed: int = 0
    unknown: int = 0
    off: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All checks of one server."""

    version: str
    replica: str
    taken: datetime
    """The server's clock when the last check was done."""
    took_s: float
    counts: CheckCounts
    checks: tuple[Check, ...]


def counts_of(checks: Iterable[Check]) -> CheckCounts:
    states = [each.state for each in checks]
    return CheckCounts(
        ok=states.count(CheckState.OK),
        warning=states.count(CheckState.WARNING),
        failed=states.count(CheckState.FAILED),
        unknown=states.count(CheckState.UNKNOWN),
        off=states.count(CheckState.OFF),
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A check without its result; each method makes the check with one."""

    id: str
    title: str

    @property
    def group(self) -> CheckGroup:
        return CheckGroup(self.id.partition(".")[0])

    def ok(self, evidence: str) -> Check:
        return self._with(CheckState.OK, evidence)

    def warning(self, evidence: str, remedy: str) -> Check:
        return self._with(CheckState.WARNING, evidence, remedy)

    def failed(self, evidence: str, remedy: str) -> Check:
        return self._with(CheckState.FAILED, evidence, remedy)

    def unknown(self, reason: str, remedy: str = "") -> Check:
        return self._with(CheckState.UNKNOWN, reason, remedy)

    def off(self, meaning: str) -> Check:
        return self._with(CheckState.OFF, meaning)

    def _with(self, state: CheckState, evidence: str, remedy: str = "") -> Check:
        return Check(
            id=self.id,
            group=self.group,
            title=self.title,
            state=state,
            evidence=evidence,
            remedy=remedy,
        )
