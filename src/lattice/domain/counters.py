"""The counters of jobs that the root helper reports during a conversation, and their format. Pure.

The verb `watch_counters` opens a conversation: packets on the same connection, one question each,
answered in order. A question names jobs by their ids and the wanted kinds, never a process. An
answer has a list for each wanted kind and each job. Long lists come in several packets, and all but
the last have `more` set. The reader joins them.

    {"want": ["io", "network"], "jobs": [42, 43]}
    {"told": {"io": {"42": [[311, 1280, 0, 4096, 8192, 1, 2]]}}, "failed": {}, "more": false}

If a job could not be read, the last packet has one more field with the reason by job id: `"unread":
{"43": "…"}`.

A new kind is a new name. A helper lists unknown kinds in `failed`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from lattice.base.strictjson import read_json
from lattice.domain.nodejobs import ProcessId

IO = "io"
NETWORK = "network"
LATENCY = "latency"
PEERS = "peers"
MOST_PEERS = 64
"""Of one job on one node: those with the most traffic."""
MOST_JOBS = 256
MOST_WANTED = 8
MOST_PACKETS = 256
"""Of one answer."""
NOT_BUILT = "not built into this helper"
TOO_MUCH = "too much to tell"
_ADDRESS = struct.Struct(">QQ")
_LARGEST_JOB = 2**32
_LARGEST = 2**64
_LONGEST_NAME = 32
_ROOM_BYTES = 48 * 1024
_ROWS_AT_ONCE = 256

Rows: TypeAlias = list[Any]
"""The rows of one job, in the format of the kind."""
Table: TypeAlias = Mapping[int, Rows]
"""By job id; a job without any rows may be missing."""


class BadTelling(Exception):
    """An invalid packet. The text is for the log."""


class CountersUnavailable(Exception):
    """Why the helper reported nothing; `last_error` is its own text."""

    def __init__(self, reason: str, last_error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_error = last_error


@dataclass(frozen=True, slots=True)
class CounterQuestion:
    want: tuple[str, ...]
    jobs: tuple[int, ...]

    def written(self) -> bytes:
        return _written({"want": self.want, "jobs": self.jobs})


@dataclass(slots=True)
class CounterAnswer:
    """The rows of each kind, and why a kind is missing."""

    rows: dict[str, dict[int, Rows]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    """Jobs with processes that could not be read, and why. No kind has rows of these."""

    def of(self, kind: str) -> Table:
        """The rows of a kind. Raises `CountersUnavailable` if the helper could not report it."""
        if kind in self.failed:
            raise CountersUnavailable(f"lattice-helper: {self.failed[kind]}")
        if kind not in self.rows:
            # A missing kind differs from a kind without rows.
            raise CountersUnavailable("lattice-helper told nothing of it")
        return self.rows[kind]


class CounterLine(Protocol):
    """The connection to the helper, for threads of probes."""

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        """Blocks for at most 2 s. Raises `CountersUnavailable`."""


class IoCounters(NamedTuple):
    """The kernel's counters of a process and the children it has reaped."""

    read_bytes: int
    """From storage."""
    write_bytes: int
    """Caused to be written to storage."""
    read_chars: int
    written_chars: int


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """One process of a job. `counted` is None if it exists but could not be read."""

    process: ProcessId
    parent: int
    """The pid of its parent if that belongs to the job too; otherwise 0."""
    counted: IoCounters | None


@dataclass(frozen=True, slots=True)
class NamespaceCounters:
    """A network namespace of a job's processes; `inode` 0 is the node's own."""

    inode: int
    counted: tuple[int, int, int, int] | None = None
    """Received bytes, sent bytes, packets, errors; all interfaces except loopback."""


@dataclass(frozen=True, slots=True)
class PeerCounters:
    """Bytes of a job's TCP connections with one address, since the job began."""

    address: bytes
    """16 bytes; IPv4 as `::ffff:a.b.c.d`."""
    sent: int
    """And acknowledged."""
    received: int


def read_asking(raw: bytes) -> CounterQuestion:
    """Parse a question and check every field. Raises `BadTelling`."""
    fields = _object(raw, {"want", "jobs"})
    want, jobs = fields["want"], fields["jobs"]
    if type(want) is not list or type(jobs) is not list:
        raise BadTelling("no lists")
    if not 0 < len(want) <= MOST_WANTED or not 0 < len(jobs) <= MOST_JOBS:
        raise BadTelling("too much, or nothing, is asked for")
    if not all(type(each) is str and 0 < len(each) <= _LONGEST_NAME for each in want):
        raise BadTelling("a name that is none")
    if not all(type(each) is int and 0 < each <= _LARGEST_JOB for each in jobs):
        raise BadTelling("a number is no job id")
    return CounterQuestion(tuple(want), tuple(dict.fromkeys(jobs)))


def write_telling(telling: CounterAnswer) -> list[bytes]:
    """The packets of one answer. A kind that needs too many packets fails with `TOO_MUCH`."""
    # Sent only if not empty, because an older agent refuses the field.
    unread = {"unread": telling.unread} if telling.unread else {}
    whole = _written({"told": telling.rows, "failed": telling.failed, **unread, "more": False})
    if len(whole) <= _ROOM_BYTES:
        return [whole]
    for kind in list(telling.rows):
        if len(list(_packets({kind: telling.rows[kind]}))) > MOST_PACKETS // MOST_WANTED:
            del telling.rows[kind]
            telling.failed[kind] = TOO_MUCH
    packets = list(_packets(telling.rows)) or [{}]
    last = len(packets) - 1
    ending = {"failed": telling.failed, **unread, "more": False}
    going_on = {"failed": {}, "more": True}
    return [
        _written({"told": part, **(ending if at == last else going_on)})
        for at, part in enumerate(packets)
    ]


def _packets(tables: Mapping[str, Table]) -> Iterator[dict[str, dict[int, Rows]]]:
    # The first packet has every kind, even one without rows.
    packet: dict[str, dict[int, Rows]] = {kind: {} for kind in tables}
    size = 0
    for kind, table in tables.items():
        for job, rows in table.items():
            for begin in range(0, max(1, len(rows)), _ROWS_AT_ONCE):
                part = rows[begin : begin + _ROWS_AT_ONCE]
                needed = len(json.dumps(part)) + len(kind) + 32
                if size and size + needed > _ROOM_BYTES:
                    yield packet
                    packet, size = {}, 0
                packet.setdefault(kind, {}).setdefault(job, []).extend(part)
                size += needed
    if packet:
        yield packet


def read_telling(raw: bytes, into: CounterAnswer) -> bool:
    """Add one packet to an answer; True if more follow. Raises `BadTelling`."""
    fields = _object(raw, {"told", "failed", "more"}, optional={"unread"})
    tables, failed, unread = fields["told"], fields["failed"], fields.get("unread", {})
    valid = (
        all(type(each) is dict for each in (tables, failed, unread))
        and all(type(table) is dict for table in tables.values())
        and all(type(rows) is list for table in tables.values() for rows in table.values())
        and all(_is_number(job) for each in (*tables.values(), unread) for job in each)
        and all(type(reason) is str for reason in (*failed.values(), *unread.values()))
        and type(fields["more"]) is bool
    )
    if not valid:
        raise BadTelling("fields of other types")
    for kind, table in tables.items():
        merged = into.rows.setdefault(kind, {})
        for job, rows in table.items():
            merged.setdefault(int(job), []).extend(rows)
    into.unread.update((int(job), reason) for job, reason in unread.items())
    into.failed.update(failed)
    return bool(fields["more"])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def processes_of(rows: Rows) -> list[ProcessCounters]:
    """The rows of `io`: pid, start, parent, and the counters if it could be read.

    Raises `BadTelling`.
    """
    found = []
    for row in rows:
        _figures(row, (3, 7))
        counted = IoCounters(*row[3:]) if len(row) == 7 else None
        found.append(ProcessCounters(ProcessId(row[0], row[1]), row[2], counted))
    return found


def network_row(each: NamespaceCounters) -> list[int]:
    return [each.inode, *(each.counted or ())]


def namespaces_of(rows: Rows) -> list[NamespaceCounters]:
    """The rows of `network`. Raises `BadTelling`."""
    found = []
    for row in rows:
        _figures(row, (1, 5))
        counted = (row[1], row[2], row[3], row[4]) if len(row) == 5 else None
        found.append(NamespaceCounters(row[0], counted))
    return found


def peer_row(inode: int, each: PeerCounters) -> list[int]:
    high, low = _ADDRESS.unpack(each.address)
    return [inode, high, low, each.sent, each.received]


def peers_of(rows: Rows, inode: int) -> list[PeerCounters] | None:
    """The rows of `peers` for the job with this control group; None: not all were counted.

    Raises `BadTelling`.
    """
    found = []
    for row in rows:
        _figures(row, (1, 5))
        if row[0] != inode:
            continue
        if len(row) == 1:
            return None
        found.append(PeerCounters(_ADDRESS.pack(*row[1:3]), row[3], row[4]))
    return found


def _figures(row: Any, lengths: tuple[int, ...]) -> None:
    if type(row) is not list or len(row) not in lengths:
        raise BadTelling("a row that is none")
    for each in row:
        if type(each) is not int or not 0 <= each < _LARGEST:
            raise BadTelling("a figure that is none")


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _object(
    raw: bytes, names: set[str], *, optional: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    try:
        document = read_json(raw)
    except ValueError:
        raise BadTelling("not a JSON object") from None
    if not isinstance(document, dict) or document.keys() - optional != names:
        raise BadTelling(f"not the fields {', '.join(sorted(names))}")
    return document
