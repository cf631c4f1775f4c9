"""The histogram in which the kernel counts how long reads and writes take. Pure.

Slots as in `ebpf/latency.bpf.c`, in ticks of 1/1024 ms:

    0                      below one tick, 0.98 µs
    1 + 2k, 2 + 2k         the two halves of [2^k, 2^(k+1)) ticks, for k from 0 to 25
    53                     65.536 s and longer

Fewer and wider buckets are sent, because each is a series, for each job on each node. Between 1 ms
and about a second an edge is twice the one before it; outside that it is four times. In that range
a disk, a share and a slow share differ. So a percentile from a bucket's upper edge is at most twice
(four times) the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SLOTS = 54
_TICKS_A_SECOND = 1_024_000
_POWERS = (6, 8, *range(10, 21), 22, 24)
"""The exponents of the sent edges, in ticks: 62.5 µs, 250 µs, 1 ms … 16.384 s."""
ENDLESS = "+Inf"
_ROW = 4 + SLOTS
_DEVICES, _DEVICE_COUNTERS = 8, 5
_FIRST_DEVICE = SLOTS + 2
ELSEWHERE = SLOTS + 1
"""The index of the calls on further file systems than a job has room for."""
JOB_COUNTERS = _FIRST_DEVICE + _DEVICES * _DEVICE_COUNTERS
"""64-bit numbers of a job in the kernel: the slots, the retransmitted segments, `ELSEWHERE`, and of
each of eight file systems its device, calls, nanoseconds, bytes read and bytes written."""
_MINOR_BITS = 20


def upper_edge_s(slot: int) -> float:
    """The upper edge of a slot in seconds; infinity for the last."""
    if slot == SLOTS - 1:
        return float("inf")
    power, half = divmod(slot - 1, 2)
    return (1.0 if slot == 0 else 2.0**power * (2.0 if half else 1.5)) / _TICKS_A_SECOND


def _text(power: int) -> str:
    return f"{2**power / _TICKS_A_SECOND:.7f}".rstrip("0")


_BUCKETS = (*((_text(power), 2 * power + 1) for power in _POWERS), (ENDLESS, SLOTS))
"""Each edge as text, and the number of slots below it."""
EDGES = tuple(edge for edge, _ in _BUCKETS)
"""Values of the label `le`, in order."""


def cumulative(slots: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """How many calls took at most as long as each edge; the last one counts all.

    Raises `ValueError` for an invalid histogram.
    """
    if len(slots) != SLOTS or any(type(each) is not int or each < 0 for each in slots):
        raise ValueError("not the slots of a histogram")
    return tuple((edge, sum(slots[:below])) for edge, below in _BUCKETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """What the kernel has counted for one job since the program was loaded, or the job began."""

    inode: int
    """The inode of the job's control group, which identifies one of its lives."""
    slots: tuple[int, ...]
    retransmits: int
    of_node: bool
    """True if `retransmits` are the whole node's, because not all can be attributed to jobs."""
    lost: int
    """Calls on the whole node that could not be timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCalls:
    """Reads, writes and syncs of one job on one file system, since the job began."""

    calls: int = 0
    spent_ns: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


def calls_by_device(copies: Iterable[Sequence[int]]) -> Mapping[str, FileCalls]:
    """From the counters of each CPU, by the device as `mountinfo` has it: `259:1`.

    Each copy has its file systems in an order of its own.
    """
    found: dict[str, FileCalls] = {}
    for copy in copies:
        for at in range(_FIRST_DEVICE, JOB_COUNTERS, _DEVICE_COUNTERS):
            device, calls, spent_ns, read_bytes, write_bytes = copy[at : at + _DEVICE_COUNTERS]
            if not device:
                break
            name = f"{device >> _MINOR_BITS}:{device & ((1 << _MINOR_BITS) - 1)}"
            before = found.get(name, FileCalls())
            found[name] = FileCalls(
                calls=before.calls + calls,
                spent_ns=before.spent_ns + spent_ns,
                read_bytes=before.read_bytes + read_bytes,
                write_bytes=before.write_bytes + write_bytes,
            )
    return found


def timing_row(timing: JobTiming) -> list[int]:
    head = [timing.inode, timing.lost, int(timing.of_node), timing.retransmits]
    return [*head, *timing.slots]


def timings_of(rows: Sequence[object]) -> list[JobTiming | None]:
    """Parse the rows; None for a job that the kernel had no room for. Raises `ValueError`."""
    found: list[JobTiming | None] = []
    for row in rows:
        if not isinstance(row, list) or len(row) not in (1, _ROW):
            raise ValueError("a row that is none")
        if not all(type(each) is int and 0 <= each < 2**64 for each in row):
            raise ValueError("a figure that is none")
        if len(row) == 1:
            found.append(None)
            continue
        inode, lost, of_node, retransmits, *slots = row
        found.append(
            JobTiming(
                inode=inode,
                slots=tuple(slots),
                retransmits=retransmits,
                of_node=bool(of_node),
                lost=lost,
            )
        )
    return found
