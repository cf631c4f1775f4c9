"""What happened to an attempt on its nodes: alerts, and what the job itself reported. Pure.

Nodes hold the events of their jobs in memory. After the end of an attempt a server stores the
newest of them as one JSON document. It lies beside the attempt's logs and ends with their
retention. A reader ignores unknown fields of a later format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from lattice.domain.objects import key_of

if TYPE_CHECKING:
    from lattice.domain.attempts import JobAttempt

FORMAT = 1
MOST_STORED = 1000
"""Events of one attempt, over all its nodes."""
LONGEST_TEXT = 500
LONGEST_NAME = 64
MOST_ATTRIBUTES = 16
RESTARTED_AFTER_S = 60.0
"""If a node's events begin so long after the run, its agent was started again meanwhile."""
_NO_TENANT = "-"


class BadStoredEvents(ValueError):
    """Bytes that are no stored events; the text gives the reason."""


class RunEventKind(StrEnum):
    ALERT = "alert"
    JOB = "job"
    """The job reported it itself: untrusted text."""
    MODE = "mode"
    """From then on it is measured in another mode, the `name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """A moment, or a stretch; `lasts` while its end is not known. Times are the servers'."""

    kind: RunEventKind
    time: float
    ended: float | None = None
    lasts: bool = False
    name: str = ""
    """The rule of an alert; the name that the job gave."""
    subject: str = ""
    """A GPU's UUID, or empty."""
    text: str = ""
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        texts = (
            self.name,
            self.subject,
            self.text,
            *(text for pair in self.attributes for text in pair),
        )
        return 100 + sum(len(each.encode(errors="replace")) for each in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvents:
    """The events of one run of a job on one node."""

    node: str
    began: float
    """When the run began there."""
    since: float
    """From when on the node knows of events."""
    dropped: int = 0
    """Older ones that had no room."""
    events: tuple[RunEvent, ...] = ()

    @property
    def is_from_the_beginning(self) -> bool:
        return self.since - self.began <= RESTARTED_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNode:
    """Why there are no events of a node."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvents:
    """The document: the newest events of an ended attempt."""

    format: int = FORMAT
    written: datetime
    nodes: tuple[NodeEvents, ...] = ()
    silent: tuple[SilentNode, ...] = ()


def events_key(attempt: JobAttempt) -> str:
    """Its key in the object store, in the folder of the attempt's logs. Raises `BadKeyPart`."""
    each = attempt.allocation
    first = each.first_submitted or each.submitted
    return key_of(
        each.tenant or _NO_TENANT,
        each.account or _NO_TENANT,
        each.id,
        "logs",
        f"{int(first.timestamp())}-{attempt.attempt.number}",
        "events.json",
    )


def newest(nodes: Iterable[NodeEvents], most: int = MOST_STORED) -> tuple[NodeEvents, ...]:
    """The same with the newest events alone. Alerts don't give way to what the job reported."""
    found = tuple(nodes)
    ranked = sorted(
        ((event.kind is RunEventKind.ALERT, event.time, at, number)
         for at, each in enumerate(found) for number, event in enumerate(each.events)),
        reverse=True,
    )  # fmt: skip
    alerts = sum(each[0] for each in ranked)
    # Half of the room is for alerts, and all of it that the job leaves.
    room = max(most // 2, most - (len(ranked) - alerts))
    chosen = ranked[: min(alerts, room)]
    chosen += ranked[alerts:][: most - len(chosen)]
    wanted = {(at, number) for _, _, at, number in chosen}
    return tuple(
        replace(
            each,
            events=tuple(
                event for number, event in enumerate(each.events) if (at, number) in wanted
            ),
            dropped=each.dropped
            + sum((at, number) not in wanted for number in range(len(each.events))),
        )
        for at, each in enumerate(found)
    )


def encoded(events: StoredEvents) -> bytes:
    import msgspec  # noqa: PLC0415 - commands that show events do not need it

    return msgspec.json.encode(events) + b"\n"


def decoded(document: bytes) -> StoredEvents:
    """Decode a document. Raises `BadStoredEvents`."""
    import msgspec  # noqa: PLC0415

    try:
        return msgspec.json.decode(document, type=StoredEvents)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadStoredEvents(str(error)) from None
