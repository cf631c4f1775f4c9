"""`llite/*/stats` of Lustre's client.

- Any bytes give counts or None; no exception escapes.
- Every count follows from figures in the text, and text without figures gives no count.
- A line that is not whole changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from lattice.probes.facts.mounts import MountCounts, file_system_of, read_llite

TOKENS = (
    b"read_bytes 4 samples [bytes] 4096 1048576 3149824 1099511627776\n",
    b"write_bytes 2 samples [bytes]\n",
    b"read 4 samples [usecs] 100 400 1000\n",
    b"open 6 samples [regs]\n",
    b" samples ",
    b"[usec]",
    b"[bytes]",
    b"_bytes",
    b"\n",
    b"\r\n",
    b"\x0b",
    b"\x1c",
    b"\xe2\x80\xa8",
    b"\xd9\xa3",
    b"1_0",
    b"-1",
    b"999999999999999999",
    b"9999999999999999999",
)
_DIGITS = frozenset("0123456789")
_LONGEST = 18


def seeds() -> Iterable[bytes]:
    yield b"read_bytes 1 samples [bytes] 1 1 1 1\nread 1 samples [usecs] 5 5 5\n"
    yield b"read_bytes 1 samples [bytes]\n"
    yield b"read_bytes 1 samples [pages] 1 1 1\n"
    yield b"read 0 samples [usec] 0 0 0\nopen 6 samples [regs]\n"
    yield b"read 1 samples [usecs] 5 5 999999999999999999\n"
    yield b"read 1 samples [usecs] 5 5 9999999999999999999\n"
    yield b"read 1_0 samples [usecs] 5 5 5\nread -1 samples [usecs] 5 5 5\n"
    yield b"read 1 samples [usecs] 5 5 5\nread 2 samples [usecs] 6 6 6\n"
    yield b"snapshot_time 1605200000.123456789 secs.nsecs\n"


def try_one(data: bytes) -> None:
    for text in (data.decode("ascii", "replace"), data.decode("utf-8", "replace")):
        counts = read_llite(text)
        if counts is not None:
            _check(counts, text)
        # Half a line at the end, as a read between two writes would give.
        assert read_llite(f"{text}\nopen 6 samples [re") == counts
        assert "/" not in file_system_of(text)


def _check(counts: MountCounts, text: str) -> None:
    figures = [_figures(line) for line in text.split("\n")]
    standing = {float(figure) for line in figures for figure in line}
    total = sum(figure for line in figures for figure in line)
    for moved in (counts.read_bytes, counts.write_bytes):
        assert moved is None or moved in standing
    assert counts.operations is not None
    assert 0 <= counts.operations <= float(total)
    assert counts.retransmits is None
    assert counts.timeouts is None
    if counts.latency_s is not None:
        assert 0 <= counts.latency_s <= total / 1e6


def _figures(line: str) -> list[int]:
    words = line.split()
    return [int(each) for each in words if set(each) <= _DIGITS and len(each) <= _LONGEST]
