"""The keys of an attempt's logs in the object store."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.attempts import JobAttempt
from lattice.domain.logs import LogKind
from lattice.domain.objects import escaped, key_of

_NO_TENANT = "-"


@dataclass(frozen=True, slots=True)
class AttemptName(JobAttempt):
    """One attempt, with the parts of its keys."""

    @property
    def prefix(self) -> str:
        """The prefix of all keys of this attempt."""
        each = self.allocation
        first = each.first_submitted or each.submitted
        return key_of(
            each.tenant or _NO_TENANT,
            each.account or _NO_TENANT,
            each.id,
            "logs",
            f"{int(first.timestamp())}-{self.attempt.number}",
        )

    def chunk_key(self, kind: LogKind, node: str, number: int) -> str:
        return f"{self.stream_prefix(kind, node)}chunk_{number:06d}.log.zst"

    def stream_prefix(self, kind: LogKind, node: str) -> str:
        return f"{self.prefix}/{kind.value}/{escaped(node)}/"


def name_of(found: JobAttempt) -> AttemptName:
    """The same attempt with its keys."""
    return AttemptName(found.allocation, found.attempt)
